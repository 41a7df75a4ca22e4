"""Learning rates: which part of a model has which, by name, and how they change with the steps."""

import math
from typing import Any

import pytest
from lab.tests.attention.trials import build, of_every_looking_model, of_every_model

from sparsewire_lab.attention.trial import AttentionTrial
from sparsewire_lab.train.schedules import rise_and_fall

pytestmark = pytest.mark.usefixtures("glyphs")

RATE, SOURCE, FRAMES = 0.5, 0.25, 0.125

# What tells frames, by its name inside of the network that chooses.
LAST = {
    "finder": {"scores.weight", "norm.weight", "norm.bias", "boxes.weight", "boxes.bias"},
    "convnet": {"head.4.weight", "head.4.bias"},
}


def rates_of(trial: AttentionTrial) -> dict[str, float]:
    """The learning rate of each parameter by name."""
    groups = trial.optimizer.param_groups
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    assert sum(len(group["params"]) for group in groups) == len(rates)
    assert len(rates) == len(list(trial.model.parameters()))
    return {name: rates[id(p)] for name, p in trial.model.named_parameters()}


@of_every_looking_model
@pytest.mark.parametrize("source", ["finder", "convnet"])
@pytest.mark.parametrize("reduce", [1, 2])
def test_the_source_and_what_tells_frames_have_rates_of_their_own(model, source, reduce):
    """Variances and values of glimpses learn with the head."""
    given: dict[str, Any] = {"lr": RATE, "source_rate": SOURCE, "frame_rate": FRAMES}
    trial = build(model, source=source, reduce=reduce, cosine=False, **given)
    rates = rates_of(trial)
    before = "look.layer.source.source." if model == "glimpse" else "source."
    before += "1." if reduce > 1 else ""
    inside = {n.removeprefix(before): rate for n, rate in rates.items() if n.startswith(before)}
    assert {n for n, rate in inside.items() if rate == RATE * FRAMES} == LAST[source]
    assert {n for n, rate in inside.items() if rate == RATE * SOURCE} == {*inside} - LAST[source]
    assert sum(n.startswith("features.") for n in inside) == 12
    outside = {n: rate for n, rate in rates.items() if not n.startswith(before)}
    assert set(outside.values()) == {RATE}
    assert any(n.startswith("head.") for n in outside)
    own = {"look.layer.source.raw_variances", "look.layer.source.values"}
    assert own <= outside.keys() or model != "glimpse"
    assert len(trial.optimizer.param_groups) == 3


@of_every_model
def test_parts_of_the_same_rate_are_one_group(model):
    """Fewer groups mean fewer calls of the optimiser. A plain network has one rate."""
    same: dict[str, Any] = {"source_rate": 1.0, "frame_rate": 1.0} if model != "convnet" else {}
    trial = build(model, lr=RATE, cosine=False, **same)
    assert trial.schedule is None
    assert len(trial.optimizer.param_groups) == 1
    assert set(rates_of(trial).values()) == {RATE}


@pytest.mark.parametrize("steps", [1, 10, 50, 100, 1000])
def test_a_rate_rises_in_a_fiftieth_of_the_steps_and_falls_along_a_cosine(steps):
    """After the last step it stays at zero."""
    factor = rise_and_fall(steps)
    risen = max(1.0, steps / 50)
    for step in (*range(steps + 1), steps + 1, 3 * steps):
        fall = (1 + math.cos(math.pi * step / steps)) / 2 if step < steps else 0.0
        want = fall * (step + 1) / risen if step + 1 < risen else fall
        assert factor(step) == pytest.approx(want, abs=1e-12), step
    assert factor(0) > 0


def test_a_rate_may_be_zero():
    rates = rates_of(build("transformer", source_rate=0.0, frame_rate=0.0, cosine=False))
    assert {rate for name, rate in rates.items() if name.startswith("source.")} == {0.0}


def test_all_rates_of_a_trial_follow_it():
    trial = build("transformer", steps=100, cosine=True)
    factor = rise_and_fall(100)
    assert trial.schedule is not None
    for number in range(101):
        for group in trial.optimizer.param_groups:
            assert group["lr"] == pytest.approx(factor(number) * group["initial_lr"])
        trial.optimizer.step()
        trial.schedule.step()
