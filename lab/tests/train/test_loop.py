"""The loop: what a step does, what an evaluation notes, and what the meter counts."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.tests.train.toy import (
    DATA,
    Toy,
    assert_identical,
    finished,
    toy_trial,
    training_of,
)

from sparsewire_lab.train.checkpoints import read_checkpoint
from sparsewire_lab.train.meter import Meter
from sparsewire_lab.train.trial import Share

CPU = torch.device("cpu")

# Checks of annotations sample from Python's generator, and no two runs would draw the same.
pytestmark = pytest.mark.usefixtures("unchecked")


def gradient_of(folder: Path, **arguments: Any) -> tuple[torch.Tensor, float]:
    """The gradient and the loss of a first step, without any randomness."""
    experiment = Toy(drop=0.0, noise=0.0, batch=16, **arguments)
    training = training_of(experiment, folder)
    loss = training.advance()
    gradient = toy_trial(training).linear.weight.grad
    assert gradient is not None
    return gradient, loss.item()


def test_parts_of_a_batch_add_up_to_its_gradient(folder: Path) -> None:
    training = training_of(Toy(), folder)
    linear = toy_trial(training).linear
    x = DATA[:16]
    loss = (linear(x) - x.sum(1, keepdim=True)).square().mean()
    (want,) = torch.autograd.grad(loss, [linear.weight])
    for accumulate in (1, 2, 4):
        gradient, mean = gradient_of(folder, accumulate=accumulate)
        torch.testing.assert_close(gradient, want)
        assert mean == pytest.approx(loss.item())


def test_the_schedule_is_followed(folder: Path) -> None:
    training = training_of(Toy(), folder)
    rates = []
    loss = training.trial.loss

    def noted(model: Any, batch: int, share: Share) -> torch.Tensor:
        rates.append(training.trial.optimizer.param_groups[0]["lr"])
        return loss(model, batch, share)

    training.trial.loss = noted
    training.run()
    assert rates == [0.05] * 4 + [0.025] * 4 + [0.0125] * 4


def test_the_curve_has_a_point_for_every_evaluation(folder: Path) -> None:
    experiment = Toy(steps=10)
    training = training_of(experiment, folder)
    losses, advance = [], training.advance
    weight = toy_trial(training).linear.weight
    first = weight.detach().clone()

    def noted() -> torch.Tensor:
        losses.append(float(loss := advance()))
        return loss

    training.advance = noted
    training.trial.snapshot = lambda step: {"weight": weight}  # not a copy of it
    training.run()
    curve = training.curve
    assert curve["step"] == [0, 4, 8, 10]
    means = [sum(losses[a:b]) / (b - a) for a, b in ((0, 4), (4, 8), (8, 10))]
    assert curve["loss"] == [None, *(pytest.approx(mean) for mean in means)]
    assert len(curve["error"]) == len(curve["seconds"]) == 4
    assert training.frames["step"].tolist() == [0, 4, 8, 10]
    assert training.frames["weight"].shape == (4, 1, 4)
    assert torch.equal(training.frames["weight"][0], first)
    assert torch.equal(training.frames["weight"][-1], weight)


def test_a_run_that_learns_ends_better(folder: Path) -> None:
    state = finished(Toy(drop=0.0, steps=200, schedule="none", frames=False), folder)
    assert state["curve"]["error"][-1] < 0.1 * state["curve"]["error"][0]
    assert state["frames"] == {}


def test_evaluations_leave_random_numbers_alone(folder: Path) -> None:
    """Dropout is off in them, and they have generators of their own."""
    rare, often = (finished(Toy(evaluate_every=n), folder / str(n)) for n in (12, 1))
    assert_identical(often["model"], rare["model"])
    assert_identical(often["random"], rare["random"])


def test_models_are_judged_without_gradients_and_train_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In evaluation mode, whatever is asked; a failure in it leaves no other mode behind."""
    training = training_of(Toy(steps=4), folder)
    trial, trained, judged = training.trial, [], []

    def noted(*_: Any) -> dict[str, Any]:
        judged.append((trial.model.training, torch.is_grad_enabled()))
        return {"error": 0.5}

    for name in ("evaluate", "conclude"):
        monkeypatch.setattr(trial, name, noted)
    for name in ("snapshot", "constants"):
        monkeypatch.setattr(trial, name, lambda *_: noted() and {})
    monkeypatch.setattr(trial, "after_step", lambda: trained.append(trial.model.training))
    training.run()
    training.conclude()
    training.constants()
    assert judged == [(False, False)] * 6  # two evaluations with their snapshots, and the end
    monkeypatch.setattr(trial, "constants", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        training.constants()
    assert trained == [True] * 4
    assert trial.model.training
    assert torch.is_grad_enabled()


def test_until_stops_after_the_first_evaluation_below_it(folder: Path) -> None:
    experiment = Toy(drop=0.0, noise=0.0, steps=400, schedule="none", evaluate_every=10)
    errors = finished(experiment, folder / "whole")["curve"]["error"]
    limit = errors[5] * 1.0001
    first = next(i for i, error in enumerate(errors) if error < limit)
    early = finished(dataclasses.replace(experiment, until=limit), folder / "early")
    assert early["step"] == 10 * first < 400
    assert early["curve"]["error"] == errors[: first + 1]
    assert read_checkpoint(folder / "early" / "last.pt")["step"] == early["step"]


def test_bfloat16_runs_on_the_cpu(folder: Path) -> None:
    gradient, _ = gradient_of(folder / "step", precision="bf16")
    exact, _ = gradient_of(folder / "step")
    assert gradient.dtype == torch.float32
    assert not torch.equal(gradient, exact)
    torch.testing.assert_close(gradient, exact, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_meter_has_the_mean_since_it_was_asked_and_the_first_bad_step(bad: float) -> None:
    meter = Meter(CPU)
    assert meter.mean() is None
    for loss in (1.0, 2.0, 6.0):
        meter.note(torch.tensor(loss))
    assert meter.mean() == 3.0
    assert meter.mean() is None
    for loss in (5.0, 7.0):
        meter.note(torch.tensor(loss))
    assert meter.mean() == 6.0
    assert int(meter.first_bad) == 0
    for loss in (bad, 1.0, bad):
        meter.note(torch.tensor(loss))
    assert (int(meter.first_bad), int(meter.steps)) == (6, 8)
