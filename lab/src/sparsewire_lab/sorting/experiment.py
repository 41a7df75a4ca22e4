"""Learning to sort numbers written in digits, from their order alone: section 3.3 of the paper."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from sparsewire.checks import check_count
from sparsewire_lab.data.experiment import DigitsExperiment
from sparsewire_lab.data.numbers import LONGEST
from sparsewire_lab.sorting.trial import SortingTrial
from sparsewire_lab.train.argument_checks import check_ranges, check_sizes
from sparsewire_lab.train.options import check_size

Method = Literal[
    "likelihood",
    "exact",
    "sampled",
    "neuralsort",
    "softsort",
    "sinkhorn",
    "projection",
    "odd_even",
    "bitonic",
]
Loss = Literal["order", "ranks", "permutation", "pixels", "steps"]

_PLAIN = {"jitter": 0.0, "dropout": 0.0, "decay": 0.0, "bend": 0.0, "tanh": False, "cosine": False}
PRESETS: dict[str, dict[str, Any]] = {
    # Section 3.3 and the appendix: sampled half-permutations, as many as there are numbers.
    "paper": _PLAIN | {"method": "sampled", "loss": "steps", "lr": 5e-5},
    "ours": _PLAIN
    | {
        "method": "likelihood",
        "lr": 1e-3,
        "bend": 0.5,
        "tanh": True,
        "jitter": 1.0,
        "cosine": True,
    },
}
# What learns more of small digits in few steps, for those who want to see it on a CPU.
_ON_DIGITS = {"lr": 2e-3, "jitter": 0.3}
# What each method is trained by if that is not said, and its temperature.
_LOSSES: dict[str, Loss] = {"likelihood": "order", "projection": "ranks", "sampled": "steps"}
_WARM = ("likelihood", "neuralsort", "softsort", "sinkhorn", "projection")  # at 1
_PAPERS_TEMPERATURE = 0.1  # its C is 10; that of the others
# All methods, each with the best of the temperatures that were tried, on validation digits.
PEERS: dict[Method, float] = {
    "likelihood": 1.0,
    "exact": 1.0,
    "sampled": 0.1,
    "odd_even": 0.1,
    "bitonic": 0.3,
    "neuralsort": 1.0,
    "softsort": 1.0,
    "sinkhorn": 1.0,
    "projection": 0.1,
}
_STEPS = 12_000


@dataclass(frozen=True, kw_only=True)
class Sorting(DigitsExperiment):
    """Learn a key for numbers written in digits, such that sorting by it puts them in order.

    The paper's third experiment. A network reads each number and returns a key; a differentiable
    sort by the keys is compared with the right order. Errors are measured on 10,000 fixed
    sets, of digits that were not trained on: the share of sets that are not in order.
    """

    size: int = 16
    """Numbers in a set; the paper has 4, 8 and 16."""
    places: int = 3
    """Digits of a number, 1 to 6."""
    method: Method | None = None
    """How keys are sorted in training. likelihood: that quicksort finds the right order; exact and
    sampled: quicksort by expected half-permutations, or by sampled ones as in the paper; the
    others are peers: NeuralSort, SoftSort, Gumbel-Sinkhorn, ranks by projection as in torchsort,
    differentiable sorting networks."""
    loss: Loss | None = None
    """What is compared. order: the likelihood; ranks: with the right ones, squared; permutation:
    cross-entropy of where each number goes; pixels: of the sorted pictures; steps: of the pictures
    at each step of quicksort, the paper's intermediate loss."""
    network: Literal["paper", "wide"] | None = None
    """The key network: the paper's, or that of the four-digit protocol, which is much smaller; None
    takes the paper's, and the small one for the small digits."""
    temperature: float | None = None
    """Distance of keys at which their order becomes doubtful; None takes the method's own."""
    samples: int | None = None
    """Vectors that make a sampled half-permutation, a; None takes as many as there are numbers."""
    bend: float | None = None
    """Loss of a cut from where on more of it counts less, with method likelihood; 0: never."""
    reach: int | None = None
    """Numbers on each side of a cut that take part in it, with method likelihood; None: all."""
    tanh: bool | None = None
    """Let the features of a digit pass through tanh, with network paper (True or False)."""
    jitter: float | None = None
    """How much pictures are turned, scaled and shifted in training; 0 leaves them as they are."""
    dropout: float | None = None
    """Share of the key network's last hidden layer that is dropped in training."""
    decay: float | None = None
    """Weight decay, as in AdamW."""
    cosine: bool | None = None
    """Let the learning rate fall to zero along a cosine, after a short rise (True or False)."""
    sets: int | None = None
    """Sets that errors are measured on; None takes 10,000, and 300 of the small digits."""
    peers: bool = False
    """Train every method in turn, ours and its peers, each at its best temperature of those that
    were tried, and with all else alike."""
    keep_frames: bool = True
    """Keep the keys of some numbers, and how one set is sorted by them, for figures."""

    name: ClassVar[str] = "sorting"
    bookkeeping: ClassVar[frozenset[str]] = DigitsExperiment.bookkeeping | {"peers"}
    later: ClassVar[frozenset[str]] = frozenset({"reach"})

    def check(self) -> None:
        """Raise an error for arguments that cannot be, or would have no effect."""
        super().check()
        check_size("size", self.size, least=2)
        check_sizes(self, ("sets", "samples", "reach"))
        if check_count("places", self.places, least=1) > LONGEST:
            raise ValueError(f"places must be 1 to {LONGEST}; got {self.places}")
        check_ranges(self, ("temperature",), 1e-9, 1e6)
        check_ranges(self, ("jitter",), 0.0, 10.0)
        check_ranges(self, ("dropout", "decay"), 0.0, 1.0)
        check_ranges(self, ("bend",), 0.0, 1e6)
        for name in ("dropout", "tanh"):
            if getattr(self, name) and self.network == "wide":
                raise ValueError(
                    f"{name} has a meaning with network paper only; got {self.network}"
                )
        for name in ("method", "loss", "temperature", "samples", "bend", "reach"):
            if self.peers and getattr(self, name) is not None:
                raise ValueError(f"peers trains every method, and {name} is of one; give one")

    def resolved(self) -> "Sorting":
        """Fill in the numbers of the preset."""
        chosen = PRESETS[self.preset]
        if (self.preset, self.data) == ("ours", "digits"):
            chosen = chosen | _ON_DIGITS
        filled = self.filled(chosen)
        method = str(filled["method"])
        theirs = chosen.get("loss") if method in ("exact", "sampled") else None
        loss = self.loss or theirs or _LOSSES.get(method, "permutation")
        for one, whose in (("order", "likelihood"), ("ranks", "projection")):
            if (loss == one) != (method == whose):
                raise ValueError(f"loss {one} belongs to method {whose}; got {loss} with {method}")
        if loss == "steps" and method not in ("exact", "sampled"):
            raise ValueError(f"loss steps needs method exact or sampled; got {method}")
        if self.samples is not None and method != "sampled":
            raise ValueError(f"samples has a meaning with method sampled only; got {method}")
        if method == "bitonic" and self.size & (self.size - 1):
            raise ValueError(f"size must be a power of two for method bitonic; got {self.size}")
        for name in ("bend", "reach"):
            if getattr(self, name) and method != "likelihood":
                raise ValueError(f"{name} has a meaning with method likelihood only; got {method}")
        small = self.data == "digits" and not self.dropout and not self.tanh
        network = self.network or ("wide" if small else "paper")
        # Arguments without a meaning have one value, and one key of the record.
        filled["bend"] = filled["bend"] if method == "likelihood" else 0.0
        filled["tanh"] = filled["tanh"] and network == "paper"
        return dataclasses.replace(
            self,
            **self.shared_defaults(_STEPS if self.data == "mnist" else 500),
            **(filled | {"loss": loss}),
            temperature=self.temperature or (1.0 if method in _WARM else _PAPERS_TEMPERATURE),
            samples=(self.samples or self.size) if method == "sampled" else None,
            network=network,
            sets=self.sets or (10_000 if self.data == "mnist" else 300),
        )

    def settings(self) -> Sequence["Sorting"]:
        """Return the experiment with each method, if all are wanted."""
        if not self.peers:
            return [self]
        alone = dataclasses.replace(self, peers=False)
        odd = bool(self.size & (self.size - 1))  # no size for a bitonic network
        return [
            dataclasses.replace(alone, method=method, temperature=temperature)
            for method, temperature in PEERS.items()
            if not (odd and method == "bitonic")
        ]

    def label(self) -> str:
        """Name method, loss and sizes."""
        parts = [self.method or "", "" if self.loss == "order" else self.loss or ""]
        return " ".join([*filter(None, parts), f"{self.size}x{self.places}", self.preset])

    def build(self, seed: int, device: torch.device) -> SortingTrial:
        """Make network, digits and optimiser."""
        del seed
        return SortingTrial(self, device)
