"""The arguments that every experiment has, one definition for command line, help and record."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import torch

from sparsewire.checks import check_choice, check_count
from sparsewire_lab.train.trial import Trial

Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["fp32", "bf16"]

LARGEST = 2**24
"""Of sizes and numbers of things that are held in memory at once."""
_EVALUATIONS = 40  # in a run, if the user does not say


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """An experiment: its arguments, and how a run of it is built.

    Subclasses add arguments with a line of help under each. `None` stands for a default that
    depends on other arguments; `resolved` puts the number in its place.
    """

    steps: int | None = None
    """Training steps; None takes the experiment's own number."""
    batch: int = 64
    """Instances in a step, over all processes."""
    lr: float | None = None
    """Learning rate of Adam; None takes the experiment's own."""
    seeds: tuple[int, ...] = (0,)
    """Seeds; the run is repeated for each, and the results are averaged."""
    device: Device = "auto"
    """Where to train; auto takes a GPU where there is one."""
    precision: Precision = "fp32"
    """Precision of matrix products and convolutions; wirings are always computed in float32."""
    accumulate: int = 1
    """Parts into which a batch of a step is divided, whose gradients are added, to save memory."""
    capture: bool = True
    """On a single GPU, replay the whole step as one CUDA graph."""
    evaluate_every: int | None = None
    """Steps between evaluations; None makes about forty in a run."""
    checkpoint_every: int = 1000
    """Steps between checkpoints: the most that is lost when the process is killed."""
    until: float | None = None
    """Stop as soon as an evaluation is below this; None trains for all steps."""
    out: Path = Path("out")
    """Folder for records, checkpoints, events and figures."""
    resume: bool = False
    """Continue unfinished runs from their last checkpoint."""
    again: bool = False
    """Run again what is finished already, and start unfinished runs from the beginning."""
    tensorboard: bool = True
    """Write TensorBoard events next to the checkpoints."""
    figures: bool = True
    """Draw figures from the records at the end."""
    quiet: bool = False
    """Print nothing but errors."""
    dry_run: bool = False
    """Only show what would be run, where things would go, and about how long it would take."""

    #: Name of the experiment: its command, its record and its folder.
    name: ClassVar[str] = "experiment"
    #: The metric that decides which evaluation is the best: the lowest.
    metric: ClassVar[str] = "error"
    #: Arguments that do not change what is computed.
    bookkeeping: ClassVar[frozenset[str]] = frozenset(
        {
            "seeds",
            "checkpoint_every",
            "out",
            "resume",
            "again",
            "tensorboard",
            "figures",
            "quiet",
            "dry_run",
        }
    )
    #: Arguments that came when there were records already. Left open they change nothing, so that
    #: what was recorded without them is not taken for something else.
    later: ClassVar[frozenset[str]] = frozenset()

    def build(self, seed: int, device: torch.device) -> Trial:
        """Return what is trained in the run of one seed. All arguments are resolved by then."""
        raise NotImplementedError

    def resolved(self) -> "Experiment":
        """Return the same experiment with a value for every argument that was left open."""
        raise NotImplementedError

    def shared_defaults(self, steps: int) -> dict[str, Any]:
        """Return values for the open arguments that every experiment has.

        Args:
            steps: How many there are, if the user does not say.
        """
        steps = self.steps or steps
        found = "cuda" if torch.cuda.is_available() else "cpu"
        # Of few steps, a number rounded down would make up to twice as many evaluations.
        every = steps // _EVALUATIONS if steps >= 10 * _EVALUATIONS else -(-steps // _EVALUATIONS)
        return {
            "steps": steps,
            "device": found if self.device == "auto" else self.device,
            "evaluate_every": self.evaluate_every or every,
        }

    def check(self) -> None:
        """Refuse arguments that contradict each other, before any work."""
        check_size("batch", self.batch)
        for name in ("steps", "accumulate", "evaluate_every", "checkpoint_every"):
            if (count := getattr(self, name)) is not None:
                check_count(name, count, least=1)
        if self.lr is not None and not 0 < self.lr < float("inf"):
            raise ValueError(f"lr must be above 0; got {self.lr}")
        if self.until is not None and not self.until > 0:
            raise ValueError(f"until must be above 0; got {self.until}")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(
                f"seeds must be different whole numbers, at least one; got {self.seeds}"
            )
        for seed in self.seeds:
            if check_count("seeds", seed) >= 2**32:
                raise ValueError(f"seeds must be below 2**32; got {seed}")
        check_choice("device", self.device, get_args(Device))
        check_choice("precision", self.precision, get_args(Precision))
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device must be cpu or auto: cuda was asked for and none was found")
        if self.resume and self.again:
            raise ValueError("resume continues a run and again starts it anew; give one of the two")
        if self.dry_run and self.quiet:
            raise ValueError("dry_run only shows and quiet shows nothing; give one of the two")
        parts = self.accumulate * processes()
        if self.batch % parts:
            raise ValueError(
                f"batch must be divisible by accumulate × processes = {parts}; got {self.batch}"
            )

    def fetches(self) -> str | None:
        """Say what a run would fetch before it begins; None if all is there."""
        return None

    def settings(self) -> Sequence["Experiment"]:
        """Return the settings to run: this one, or those of a sweep."""
        return [self]

    def label(self) -> str:
        """Return a short name for people, such as the first part of the folder's name."""
        return self.name

    def arguments(self) -> dict[str, Any]:
        """Return all arguments as plain values, for records and checkpoints."""
        return json.loads(json.dumps(dataclasses.asdict(self), default=str))

    def deciding(self) -> dict[str, Any]:
        """Return the arguments that decide what is computed."""
        given = self.arguments()
        silent = self.bookkeeping | {name for name in self.later if given[name] is None}
        return {k: v for k, v in given.items() if k not in silent}

    def key(self) -> str:
        """Return a short fingerprint of what is computed, the same for all seeds."""
        text = json.dumps([self.name, self.deciding()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


def check_size(name: str, size: int, least: int = 1) -> int:
    """Return `size` if it is an integer of at least `least` that memory can hold."""
    if check_count(name, size, least=least) > LARGEST:
        raise ValueError(f"{name} must be at most {LARGEST:,}; got {size:,}")
    return size


def processes() -> int:
    """Return the number of processes that train together, as `torchrun` says it."""
    return int(os.environ.get("WORLD_SIZE", "1"))
