"""Learning rates: which part of a model has which, by name, and how they change with the steps."""

import math
from typing import Any

import pytest
from lab.tests.attention.trials import LOOKING, MODELS, checked, small

from sparsewire_lab.attention.trial import make_model, parameter_groups
from sparsewire_lab.train.schedules import rise_and_fall

RATE, SOURCE, FRAMES = 0.5, 0.25, 0.125

# What tells frames, by its name inside of the network that chooses.
LAST = {
    "finder": {"scores.weight", "norm.weight", "norm.bias", "boxes.weight", "boxes.bias"},
    "convnet": {"head.4.weight", "head.4.bias"},
}


def groups_of(model: Any, **options: Any) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """The learning rate of each parameter by name, and the groups."""
    made = make_model(checked(small(model, **options)))
    groups = parameter_groups(made, RATE, SOURCE, FRAMES)
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    assert sum(len(group["params"]) for group in groups) == len(rates)
    assert len(rates) == len(list(made.parameters()))
    return {name: rates[id(p)] for name, p in made.named_parameters()}, groups


@pytest.mark.parametrize("model", LOOKING)
@pytest.mark.parametrize("source", ["finder", "convnet"])
@pytest.mark.parametrize("reduce", [1, 2])
def test_the_source_and_what_tells_frames_have_rates_of_their_own(model, source, reduce):
    """Variances and values of glimpses learn with the head."""
    rates, groups = groups_of(model, source=source, reduce=reduce)
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
    assert len(groups) == 3


@pytest.mark.parametrize("model", MODELS)
def test_parts_of_the_same_rate_are_one_group(model):
    """Fewer groups mean fewer calls of the optimiser. A plain network has one rate."""
    made = make_model(checked(small(model)))
    (group,) = parameter_groups(made, RATE, source=1.0, frames=1.0)
    assert group["lr"] == RATE
    assert {id(p) for p in group["params"]} == {id(p) for p in made.parameters()}
    if model == "convnet":
        rates, groups = groups_of(model)
        assert (set(rates.values()), len(groups)) == ({RATE}, 1)


@pytest.mark.parametrize("steps", [1, 10, 50, 100, 1000])
def test_a_rate_rises_in_a_fiftieth_of_the_steps_and_falls_along_a_cosine(steps):
    factor = rise_and_fall(steps)
    risen = max(1.0, steps / 50)
    for step in range(steps + 1):
        fall = (1 + math.cos(math.pi * step / steps)) / 2
        want = fall * (step + 1) / risen if step + 1 < risen else fall
        assert factor(step) == pytest.approx(want, abs=1e-12), step
    assert factor(0) > 0


@pytest.mark.parametrize("steps", [1, 10, 1000])
def test_a_rate_stays_at_zero_after_the_last_step(steps):
    factor = rise_and_fall(steps)
    for step in (steps, steps + 1, 3 * steps):
        assert factor(step) == pytest.approx(0.0, abs=1e-12)
