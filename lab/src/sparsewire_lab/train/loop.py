"""The loop: steps, evaluations, checkpoints, and a clean end whatever happens."""

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from sparsewire.cuda_graph import CapturedStep
from sparsewire_lab.files import DiskError
from sparsewire_lab.train.checkpoints import CheckpointError, Checkpoints
from sparsewire_lab.train.distributed import synchronise_norms
from sparsewire_lab.train.interrupts import Interrupts, name_of
from sparsewire_lab.train.meter import Meter
from sparsewire_lab.train.options import Experiment
from sparsewire_lab.train.progress import Progress
from sparsewire_lab.train.randomness import random_state, seed_all, set_random_state
from sparsewire_lab.train.tensorboard import Events
from sparsewire_lab.train.timing import Timing

# Steps between looks at what lies on a GPU, or in other processes: each look makes the host wait.
_STEPS_BETWEEN_LOOKS = 50


class DivergedError(RuntimeError):
    """The loss became NaN or infinite."""


class StoppedError(RuntimeError):
    """A signal ended the run; it is saved and can be continued.

    Args:
        number: The signal.
        step: The step that was saved.
    """

    def __init__(self, number: int, step: int) -> None:
        super().__init__(f"{name_of(number)}: stopped and saved after step {step:,}")
        self.number = number


class Training:
    """One run: an experiment with one seed, from its start or from its last checkpoint.

    Args:
        experiment: With all arguments resolved.
        seed: The seed of the run.
        fabric: Says on what device and in which processes.
        folder: For checkpoints and events.
    """

    def __init__(self, experiment: Experiment, seed: int, fabric: Fabric, folder: Path) -> None:
        self.experiment, self.seed, self.fabric = experiment, seed, fabric
        self.device = fabric.device
        self.checkpoints = Checkpoints(folder)
        self.folder = folder
        seed_all(seed)
        self.trial = experiment.build(seed, self.device)
        if fabric.world_size > 1:
            synchronise_norms(self.trial.model)
        self.meter, self.timing = Meter(self.device), Timing(self.device)
        self.model, self.optimizer = fabric.setup(self.trial.model, self.trial.optimizer)
        self.curve: dict[str, list[Any]] = {}
        self.frames: dict[str, Tensor] = {}
        self.conclusion: dict[str, float] = {}
        self.step, self.best, self.saved = 0, float("inf"), -1
        self.identifier = uuid.uuid4().hex  # tells this run from one that begins it again
        self._interrupts = Interrupts(announce=fabric.is_global_zero)
        self.signal = 0  # the one that came too late to stop this run
        self.steps: int = experiment.steps  # pyright: ignore[reportAttributeAccessIssue]
        self._seconds, self._began = 0.0, time.monotonic()
        self._loss = torch.zeros((), device=self.device)

    @property
    def seconds(self) -> float:
        """Wall time of the run so far, evaluations and earlier parts of it included."""
        return self._seconds + time.monotonic() - self._began

    def run(self) -> None:
        """Train to the end.

        Raises:
            DivergedError: If the loss became NaN or infinite.
            StoppedError: If a signal came; everything is saved.
            DiskError: If a checkpoint could not be written; the one before is still there.
        """
        look_often = self.fabric.world_size == 1 and self.device.type == "cpu"
        captured = self.make_step()
        text = f"{self.experiment.label()}, seed {self.seed}"
        quiet = self.experiment.quiet or not self.fabric.is_global_zero
        with (
            self._interrupts,
            Progress(text, self.step, self.steps, quiet) as progress,
            self._events() as events,
        ):
            self.timing.begin(self.step)
            if self._evaluation_due():  # the first one, or one that a signal ended
                self.evaluate(progress, events)
            while self.step < self.steps and not self._good_enough():
                self._loss = self._checked(captured)
                self.follow_step()
                progress.advance(self.step, self._loss.item)
                look = look_often or self.step % _STEPS_BETWEEN_LOOKS == 0
                if look:
                    self._check_loss()
                if self._evaluation_due():
                    self.evaluate(progress, events)
                if look:
                    self._check_stop()
                if self.step % self.experiment.checkpoint_every == 0:
                    self.save()
            progress.finish(self.step)
            if self.saved != self.step:
                self.save()
            self.signal = self._agree(self._interrupts.received)

    def make_step(self) -> CapturedStep[[], Tensor]:
        """Return what makes a step, as one CUDA graph where that is possible and wanted."""
        return CapturedStep(
            self.advance,
            optimizer=self.trial.optimizer,
            enabled=self.experiment.capture and self.fabric.world_size == 1,
        )

    def follow_step(self) -> None:
        """Count a step, and do what follows it outside of a captured graph."""
        self.step += 1
        self.trial.after_step()
        if self.trial.schedule is not None:
            self.trial.schedule.step()

    def advance(self) -> Tensor:
        """Make one step: forward and backward for every part of the batch, then the optimiser."""
        parts = self.experiment.accumulate
        total = torch.zeros((), device=self.device)
        self.optimizer.zero_grad(set_to_none=True)
        for part in range(parts):
            with self._without_sync(part < parts - 1):
                batch = self.experiment.batch // parts
                loss = self.trial.loss(self.model, batch, self.share) / parts
                self.fabric.backward(loss)
            total = total + loss.detach()
        self.optimizer.step()
        self.meter.note(total)
        return total

    def share(self, tensor: Tensor) -> Tensor:
        """Return this process's share: every n-th instance.

        So that instances which share a wiring in one process share it in several.
        """
        return tensor[self.fabric.global_rank :: self.fabric.world_size]

    def evaluate(self, progress: Progress, events: Events) -> None:
        """Judge the model, and add a point to the curve and a frame to the snapshots."""
        self.timing.end(self.step)
        self.saved = -1  # whatever is saved lacks this evaluation
        self._check_health()
        with self.judging():
            self.trial.check_stop = self._check_stop
            try:
                metrics = self.trial.evaluate()
            finally:
                del self.trial.check_stop
            frame = self.trial.snapshot(self.step)
            # Drawn before any of them is written: what cannot be drawn leaves no half of them.
            pictures = self.trial.pictures(self.step, frame) if events.wanted else {}
        loss = self._average(self.meter.mean())
        point = {"step": self.step, "seconds": round(self.seconds, 3), "loss": loss, **metrics}
        for name, value in point.items():
            self.curve.setdefault(name, []).append(value)
        for name, tensor in {"step": torch.tensor(self.step), **frame}.items() if frame else ():
            new = tensor.detach().cpu().clone().unsqueeze(0)
            old = self.frames.get(name)
            self.frames[name] = new if old is None else torch.cat([old, new])
        progress.evaluated({self.experiment.metric: metrics[self.experiment.metric]})
        events.write(self.step, {"loss": loss, **metrics})
        events.show(self.step, pictures)
        if metrics[self.experiment.metric] < self.best:
            self.best = metrics[self.experiment.metric]
            if self.step:
                self._write(self.checkpoints.save_best)
        self.timing.begin(self.step)

    def conclude(self) -> None:
        """Measure what is measured once, when training is over."""
        with self.judging():
            self.conclusion = self.trial.conclude()

    def constants(self) -> dict[str, Tensor]:
        """Return what is saved with the snapshots."""
        with self.judging():
            return self.trial.constants()

    def save(self) -> None:
        """Save everything that the rest of the run depends on."""
        self.timing.end(self.step)
        self._check_health()
        self._write(self.checkpoints.save)
        self.saved = self.step
        self.fabric.barrier()
        self.timing.begin(self.step)

    def state(self) -> dict[str, Any]:
        """Return everything that the rest of the run depends on."""
        trial = self.trial
        return {
            "experiment": self.experiment.name,
            "arguments": self.experiment.arguments(),
            "seed": self.seed,
            "run": self.identifier,
            "step": self.step,
            "seconds": self.seconds,
            "best": self.best,
            "model": trial.model.state_dict(),
            "optimizer": trial.optimizer.state_dict(),
            "schedule": None if trial.schedule is None else trial.schedule.state_dict(),
            "extras": {name: extra.state_dict() for name, extra in trial.extras.items()},
            "meter": self.meter.state_dict(),
            "random": random_state(self.device),
            "curve": self.curve,
            "frames": self.frames,
        }

    def resume(self) -> list[str]:
        """Continue from the newest checkpoint that can be used; return what is wrong with others.

        Raises:
            CheckpointError: If none can be used.
        """
        return self.checkpoints.load(self._load)[1]

    def _load(self, path: Path, state: dict[str, Any]) -> None:
        """Load all that `state` returned.

        Raises:
            CheckpointError: If the state is of another run, or does not fit the model.
        """
        mine = {"experiment": self.experiment.name, "seed": self.seed, **self.experiment.deciding()}
        its = {**state["arguments"], "experiment": state["experiment"], "seed": state["seed"]}
        if other := [name for name, value in mine.items() if its.get(name) != value]:
            differing = ", ".join(f"{n} {its.get(n)} and not {mine[n]}" for n in other)
            raise CheckpointError(f"{path} is of another run: {differing}")
        if state["step"] > self.steps:
            raise CheckpointError(
                f"{path} must have at most {self.steps} steps; got {state['step']}"
            )
        trial = self.trial
        try:
            trial.model.load_state_dict(state["model"])
            load_optimizer(trial.optimizer, state["optimizer"])
            if trial.schedule is not None:
                trial.schedule.load_state_dict(state["schedule"])
            for name, extra in trial.extras.items():
                extra.load_state_dict(state["extras"][name])
            self.meter.load_state_dict(state["meter"])
            set_random_state(state["random"], self.device)
        except Exception as error:  # a state of the wrong form may lead to any
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise CheckpointError(f"{path} does not fit this run: {reason}") from error
        self.curve, self.frames = state["curve"], state["frames"]
        self.step, self.best, self.saved = state["step"], state["best"], state["step"]
        self.identifier = state["run"]
        self._seconds, self._began = state["seconds"], time.monotonic()

    @contextlib.contextmanager
    def judging(self) -> Iterator[None]:
        """Let the model be judged meanwhile: without dropout and without gradients."""
        self.trial.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.trial.model.train()

    def _checked(self, captured: CapturedStep[[], Tensor]) -> Tensor:
        """Make a step; where it fails because parameters are not finite any more, say so."""
        try:
            return captured()
        except (ValueError, RuntimeError) as error:
            if self._finite():
                raise
            raise self._diverged(self.step + 1) from error

    def _evaluation_due(self) -> bool:
        """Whether the model is to be judged after this step, and was not yet."""
        done = self.curve.get("step", [])
        due = self.step % (self.experiment.evaluate_every or 1) == 0 or self.step == self.steps
        return due and done[-1:] != [self.step]

    def _check_stop(self) -> None:
        """If a process received a signal, save and stop: after a step, or within an evaluation."""
        if number := self._agree(self._interrupts.received):
            self.save()
            raise StoppedError(number, self.step)

    def _check_loss(self) -> None:
        """Stop if any process had a bad loss."""
        if bad := self._agree(int(self.meter.first_bad)):
            raise self._diverged(bad, "the loss was")

    def _check_health(self) -> None:
        """Stop if the loss or a parameter is bad: such a model is neither judged nor saved."""
        self._check_loss()
        if not self._finite():
            raise self._diverged(self.step)

    def _finite(self) -> bool:
        return all(bool(p.isfinite().all()) for p in self.trial.model.parameters())

    def _write(self, save: Callable[[dict[str, Any]], None]) -> None:
        if not self.fabric.is_global_zero:
            return
        try:
            save(self.state())
        except DiskError as error:
            raise DiskError(f"{error}, after step {self.step:,}; {self._last_good()}") from error

    def _diverged(self, step: int, what: str = "parameters were") -> DivergedError:
        return DivergedError(
            f"{what} NaN or infinite in step {step:,} of seed {self.seed}; {self._last_good()}"
        )

    def _last_good(self) -> str:
        for path in (self.checkpoints.last, self.checkpoints.previous):
            if path.exists():
                return f"the last good checkpoint is {path}"
        return "nothing was saved before"

    def _good_enough(self) -> bool:
        limit, errors = self.experiment.until, self.curve[self.experiment.metric]
        return limit is not None and self.curve["step"][-1] == self.step and errors[-1] < limit

    def _without_sync(self, skip: bool) -> contextlib.AbstractContextManager[Any]:
        """Leave gradients as they are until the last part: processes meet once in a step."""
        if self.fabric.world_size == 1:
            return contextlib.nullcontext()
        return self.fabric.no_backward_sync(self.model, enabled=skip)

    def _agree(self, number: int | None) -> int:
        """Return the largest number of all processes, so that all stop after the same step."""
        number = number or 0
        if self.fabric.world_size == 1:
            return number
        return int(self.fabric.all_reduce(torch.tensor(number), reduce_op="max"))  # pyright: ignore

    def _average(self, loss: float | None) -> float | None:
        if loss is None or self.fabric.world_size == 1:
            return loss
        return float(self.fabric.all_reduce(torch.tensor(loss), reduce_op="mean"))  # pyright: ignore

    def _events(self) -> Events:
        wanted = self.experiment.tensorboard and self.fabric.is_global_zero
        return Events(self.folder / "events" if wanted else None, self.step)


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load an optimiser's state, and keep how it computes here: the state may be of a GPU."""
    here = ("capturable", "foreach", "fused")
    own = [{name: g[name] for name in here if name in g} for g in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, options in zip(optimizer.param_groups, own, strict=True):
        group.update(options)
        group["lr"] = float(group["lr"])
