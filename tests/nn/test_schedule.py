"""Schedules, even starts, and tuples that move at the pace of a schedule."""

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import assert_same, seeded
from torch.testing import assert_close

from sparsewire import FreeTuples, Schedule
from sparsewire.nn.pace import Pace
from sparsewire.nn.schedule import even_start

MEANS, VARIANCES = 0, 1  # what a source returns


def paced(sizes: list[int], tuples: int, **options: Any) -> tuple[FreeTuples, Pace]:
    """Free tuples with a schedule, and what holds their places."""
    options = {"schedule": Schedule()} | options
    source = FreeTuples(tuples, len(sizes), sizes=sizes, **options)
    assert source.pace is not None
    return source, source.pace


def stepped(source: FreeTuples, *changes: float, parameter: str = "raw_means") -> None:
    """Change a parameter so much in each of some steps, each after a pass in training."""
    for change in changes:
        source()
        with torch.no_grad():
            getattr(source, parameter).add_(change)


def factors(schedule: Schedule, *steps: int) -> list[float]:
    return [schedule.factor(torch.tensor(float(t))).item() for t in steps]


def test_a_factor_falls_with_an_end_and_without():
    assert factors(Schedule(steps=50), 0, 50, 450) == pytest.approx([1, 1 / 2, 1 / 10])
    assert factors(Schedule(end=100), 0, 35, 70, 1000) == pytest.approx([1, 1 / 8, 0, 0])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"steps": 0}, ValueError, "steps must be at least 1; got 0"),
        ({"end": 0}, ValueError, "end must be at least 1; got 0"),
        ({"speed": -1.0}, ValueError, "speed must be between 0 and 1000; got -1.0"),
    ],
)
def test_bad_schedules_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        Schedule(**options)


def test_tuples_without_values_to_learn_move_faster():
    assert paced([9], 3)[1].speed == 0.05
    assert paced([9], 3, learn_values=False)[1].speed == 0.2
    assert paced([9], 3, learn_values=False, schedule=Schedule(speed=0.1))[1].speed == 0.1


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    groups=st.integers(1, 6),
    together=st.integers(1, 7),
    seed=st.integers(0, 99),
)
def test_starts_are_distinct_and_even(sizes, groups, together, seed):
    start = even_start(tuple(sizes), groups * together, together, seeded(seed))
    assert start.shape == (groups * together, len(sizes))
    assert 0 <= start.min() <= start.max() <= 1
    places = (start * torch.tensor([n - 1 for n in sizes])).round().long()
    flat = torch.zeros(len(places), dtype=torch.int64)
    for column, n in zip(places.unbind(-1), sizes, strict=True):
        flat = flat * n + column
    count, flat = math.prod(sizes), flat.view(groups, together)
    parts = torch.tensor([j * count // together for j in range(together + 1)])
    assert ((parts[:-1] <= flat) & (flat < parts[1:].maximum(parts[:-1] + 1))).all()
    for part, size in zip(flat.unbind(-1), parts.diff().tolist(), strict=True):
        uses = torch.bincount(part - part.min(), minlength=max(size, 1))
        if size and groups % size == 0:  # all places of the part equally often
            assert uses.tolist() == [groups // size] * size


def test_a_start_may_lie_in_a_space_of_almost_all_integers():
    places = (even_start((2**21, 2**21, 2**20), 5, 5, seeded(0)) * 2**20).round()
    assert places[:, 0].diff().gt(2**17).all()


@pytest.mark.parametrize("size", [1e-4, 1.0, 100.0])
@pytest.mark.parametrize("parameter", ["raw_means", "raw_variances"])
def test_tuples_move_at_the_pace_of_the_schedule_at_every_rate(size, parameter):
    source, pace = paced([101], 3, schedule=Schedule(steps=2, speed=0.5), seed=0)
    pace.places.fill_(0.5)
    which, unit = (MEANS, 100) if parameter == "raw_means" else (VARIANCES, 1 / 0.2)
    before = source()[which]
    stepped(source, size, size, -size, parameter=parameter)
    moved = (source()[which] - before) * unit
    expected = 0.5 * (1 / (1 + 1 / 2) + 1 / (1 + 2 / 2) - 1 / (1 + 3 / 2))
    assert_close(moved, torch.full_like(moved, expected), rtol=1e-4, atol=1e-5)
    assert pace.steps == 3


def test_a_rate_that_falls_slows_the_tuples_down():
    source, pace = paced([101], 1, schedule=Schedule(steps=10**9, speed=1.0), seed=0)
    pace.places.fill_(0.1)
    stepped(source, *[1.0] * 50)
    before = source()[MEANS].item()
    stepped(source, 0.1)
    assert 100 * (source()[MEANS].item() - before) == pytest.approx(0.1, rel=0.02)


def test_only_steps_that_change_something_count_and_evaluation_counts_none():
    source, pace = paced([11, 7], 4, seed=0)
    stepped(source, 0.1)
    seen = source.eval()()
    assert pace.steps == 0  # the change is shown, not yet noted
    with torch.no_grad():
        assert_close(source.train()(), seen)
    for _ in range(3):
        assert_close(source(), seen)
    assert pace.steps == 1


def test_means_stop_at_the_ends_and_come_back_at_once():
    source, _ = paced([11], 1, schedule=Schedule(speed=30.0), seed=0)
    stepped(source, 1.0)
    assert source()[MEANS].item() == 1
    stepped(source, -1e-3)
    assert source()[MEANS].item() < 1


def test_the_gradient_is_that_of_a_place_whatever_came_before():
    source, pace = paced([11, 1, 5], 2, seed=0)
    pace.places.fill_(0.5)
    stepped(source, 1e-3, -7.0)
    means, variances, _ = source()
    places = means * torch.tensor([10, 1, 4])
    gradients = torch.autograd.grad(
        places.sum() + 3 * variances.sum(), [source.raw_means, source.raw_variances]
    )
    assert_close(gradients, (torch.ones(2, 3), torch.full((2,), 3.0)))


def test_a_saved_state_continues_exactly():
    source, _ = paced([11], 3, seed=0)
    stepped(source, 0.3, 0.1)
    other, _ = paced([11], 3, seed=1)
    other.load_state_dict(copy.deepcopy(source.state_dict()))
    for one in (source, other):
        stepped(one, -0.2, 0.5)
    assert_same(other.state_dict(), source.state_dict(), rtol=0, atol=0)
    assert_close(other.eval()(), source.eval()(), rtol=0, atol=0)


def test_half_precision_leaves_the_places_as_they_are():
    source, pace = paced([2000], 50, seed=0)
    places = pace.places.clone()
    means, _, values = source.bfloat16()()
    assert_close(means, places, rtol=0, atol=0)
    assert values.dtype == torch.bfloat16


def test_an_initial_variance_is_in_places():
    source, _ = paced([9, 50], 3, variance=2.0, seed=0)
    softplus = torch.nn.functional.softplus(source()[VARIANCES] + 2)
    assert_close(softplus * 0.1 * 50, torch.full((3,), 2.0))
