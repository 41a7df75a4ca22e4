"""A small experiment that samples from every generator, and fails, stops or explodes on request."""

import dataclasses
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sparsewire_lab.train.checkpoints import read_checkpoint
from sparsewire_lab.train.loop import StoppedError, Training
from sparsewire_lab.train.options import Device, Experiment
from sparsewire_lab.train.runs import make_fabric
from sparsewire_lab.train.trial import Share, Trial, generator

DATA = torch.randn(256, 4, generator=torch.Generator().manual_seed(1))


@dataclass(frozen=True, kw_only=True)
class Toy(Experiment):
    """Learn the sum of four numbers."""

    steps: int | None = 12
    batch: int = 8
    lr: float | None = 0.05
    device: Device = "cpu"
    evaluate_every: int | None = 4
    checkpoint_every: int = 5
    tensorboard: bool = False
    figures: bool = False
    quiet: bool = True

    drop: float = 0.3
    noise: float = 0.1
    schedule: Literal["none", "halved", "cycle"] = "halved"
    frames: bool = True
    nan_at: tuple[int, ...] = ()
    burst_at: int | None = None
    rates: tuple[float, ...] = ()
    stop_at: int | None = None
    stop_with: int = signal.SIGTERM

    name: ClassVar[str] = "toy"
    bookkeeping = Experiment.bookkeeping | {"stop_at", "stop_with", "rates"}

    def resolved(self) -> "Toy":
        return dataclasses.replace(self, **self.shared_defaults(12))

    def settings(self) -> "list[Toy]":
        return [dataclasses.replace(self, lr=rate) for rate in self.rates] or [self]

    def label(self) -> str:
        return "toy: sum"

    def build(self, seed: int, device: torch.device) -> "ToyTrial":
        return ToyTrial(self, seed, device)


class Cursor:
    """Where the next batch begins, and how many steps were made."""

    def __init__(self) -> None:
        self.at, self.steps = 0, 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "steps": torch.tensor(self.steps)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.steps = state["at"], int(state["steps"])


class ToyTrial(Trial):
    def __init__(self, args: Toy, seed: int, device: torch.device) -> None:
        self.args, self.seed = args, seed
        self.linear = nn.Linear(4, 1)
        model = nn.Sequential(self.linear, nn.Dropout(args.drop))
        optimizer = torch.optim.Adam(model.parameters(), lr=args.lr or 0.05)
        schedule, rates = None, torch.optim.lr_scheduler
        if args.schedule == "halved":
            schedule = rates.LambdaLR(optimizer, lambda step: 0.5 ** (step // 4))
        elif args.schedule == "cycle":  # moves Adam's first beta too
            schedule = rates.OneCycleLR(optimizer, 0.1, total_steps=(args.steps or 12) + 1)
        self.cursor = Cursor()
        super().__init__(model, optimizer, schedule, {"cursor": self.cursor})

    def loss(self, model: Callable[..., Any], batch: int, share: Share) -> Tensor:
        x = DATA[(self.cursor.at + torch.arange(batch)) % len(DATA)]
        self.cursor.at += batch
        y = x.sum(1, keepdim=True)
        if self.args.noise:
            y = y + self.args.noise * (random.gauss(0.0, 1.0) + np.random.standard_normal())
            y = y + self.args.noise * torch.randn_like(y)
        loss = (model(share(x)) - share(y)).square().mean()
        step = self.cursor.steps + 1
        if step in self.args.nan_at:
            loss = loss * float("nan")
        if step == self.args.burst_at:
            weight = self.linear.weight
            loss = loss + (weight - weight.detach()).sum().sqrt()  # 0, and its slope is infinite
        return loss

    def after_step(self) -> None:
        self.cursor.steps += 1
        if self.cursor.steps == self.args.stop_at:
            signal.raise_signal(self.args.stop_with)

    def evaluate(self) -> dict[str, float]:
        x = torch.randn(32, 4, generator=generator(self.seed, torch.device("cpu")))
        y = torch.cat([self.model(part) for part in self.batches(x.split(16))])
        error = (y - x.sum(1, keepdim=True)).square().mean()
        return {"error": error.item(), "size": self.linear.weight.abs().max().item()}

    def snapshot(self, step: int) -> dict[str, Tensor]:
        return {"weight": self.linear.weight.clone()} if self.args.frames else {}

    def constants(self) -> dict[str, Tensor]:
        return {"shape": torch.tensor([1, 4])}


def training_of(experiment: Experiment, folder: Path, seed: int = 0) -> Training:
    return Training(experiment, seed, make_fabric(experiment), folder)


def finished(experiment: Experiment, folder: Path, seed: int = 0) -> dict[str, Any]:
    """The state at the end of a run that is made in one go."""
    training = training_of(experiment, folder, seed)
    training.run()
    return training.state()


def resumed(experiment: Experiment, folder: Path, seed: int = 0) -> dict[str, Any]:
    """The state at the end of a run that is continued from its folder."""
    training = training_of(experiment, folder, seed)
    training.resume()
    training.run()
    return training.state()


def without_times(state: dict[str, Any]) -> dict[str, Any]:
    """A state without what no two runs share: wall times and bookkeeping."""
    curve = {k: v for k, v in state["curve"].items() if k != "seconds"}
    kept = {k: v for k, v in state.items() if k not in ("run", "seconds", "arguments", "format")}
    return {**kept, "curve": curve}


def assert_identical(got: Any, want: Any, where: str = "state") -> None:
    """Compare nested values bit by bit; a failure says where."""
    if isinstance(want, Tensor):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True, msg=where)
    elif isinstance(want, dict):
        assert list(got) == list(want), where
        for key, part in want.items():
            assert_identical(got[key], part, f"{where}[{key!r}]")
    elif isinstance(want, list | tuple):
        assert len(got) == len(want), where
        for i, part in enumerate(want):
            assert_identical(got[i], part, f"{where}[{i}]")
    else:
        assert got == want or (got != got and want != want), where


@contextmanager
def full_disk(limit: int = 0) -> Iterator[None]:
    """Let no file of this process grow beyond so many bytes."""
    import resource

    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def toy_trial(training: Training) -> ToyTrial:
    assert isinstance(training.trial, ToyTrial)
    return training.trial


def stop(experiment: Any, folder: Path, step: int, number: int = signal.SIGTERM) -> None:
    """Run, or continue, until a signal comes right after a step."""
    training = training_of(experiment, folder)
    if training.checkpoints.exist():
        assert training.resume() == []
    after_step = training.trial.after_step

    def raise_signal() -> None:
        after_step()
        if training.step == step:
            signal.raise_signal(number)

    training.trial.after_step = raise_signal
    before = signal.getsignal(number)
    with pytest.raises(StoppedError, match=f"stopped and saved after step {step:,}") as stopped:
        training.run()
    assert stopped.value.number == number
    assert signal.getsignal(number) == before
    assert read_checkpoint(folder / "last.pt")["step"] == step
