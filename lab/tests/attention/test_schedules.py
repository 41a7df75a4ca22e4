"""Schedules of variances, rounding and places of digits, step by step."""

import pytest
import torch
from tests.helpers import sampled_layer, seeded

from sparsewire import SparseLayer
from sparsewire_lab.attention.schedules import Annealing, Placement

CPU = torch.device("cpu")


def annealing(
    falls: tuple[float, float] | None = (0.0, 0.5), rounds: float | None = 0.8
) -> tuple[SparseLayer, Annealing]:
    layer = sampled_layer((8,), (8,), tuples=8, seed=0)
    return layer, Annealing(layer, 10, falls, rounds, CPU)


@pytest.mark.parametrize("falls", [(0.0, 0.5), (0.2, 0.5), (0.5, 0.9)])
def test_variances_fall_to_their_floor_as_the_cube_of_the_time_left(falls):
    begin, end = (10 * share for share in falls)
    layer, schedule = annealing(falls)
    free = sampled_layer((8,), (8,), tuples=8, seed=0).wiring().variances - 0.1
    for step in range(13):  # a run may be longer than planned
        left = 1.0 if step <= begin else max(0.0, (end - step) / (end - begin))
        torch.testing.assert_close(layer.wiring().variances, 0.1 + left**3 * free)
        schedule.advance()
    assert (layer.wiring().variances == 0.1).all()


@pytest.mark.parametrize(("rounds", "first"), [(0.0, 0), (0.31, 4), (0.8, 8), (0.99, 10)])
def test_passes_are_rounded_from_a_step_on(rounds, first):
    layer, schedule = annealing(rounds=rounds)
    x = torch.randn(4, 8, generator=seeded(0))
    for step in range(12):
        hard = torch.allclose(layer(x), layer(x, mode="rounded"), atol=1e-6)
        assert hard == (step >= first), step
        schedule.advance()


@pytest.mark.parametrize("falls", [None, (0.0, 0.5)])
@pytest.mark.parametrize("rounds", [None, 0.8])
def test_only_what_has_a_schedule_is_changed(falls, rounds):
    layer, schedule = annealing(falls, rounds)
    for _ in range(12):
        schedule.advance()
    assert (layer.variance_factor is None) == (falls is None)
    assert (layer.hardness is None) == (rounds is None)


@pytest.mark.parametrize("start", [0.25, 0.8])
@pytest.mark.parametrize("until", [0.1, 0.4, 1.0])
def test_the_share_grows_evenly_until_digits_may_be_anywhere(start, until):
    schedule = Placement(20, start, until, CPU)
    for step in range(25):
        want = 1.0 if step >= 20 * until else start + (1 - start) * step / (20 * until)
        assert schedule.share.item() == pytest.approx(want, abs=1e-6), step
        schedule.advance()


def test_tensors_change_in_place_for_captured_steps():
    layer, schedule = annealing()
    placement = Placement(10, 0.25, 0.5, CPU)
    tensors = [layer.variance_factor, layer.hardness, placement.share]
    assert [(t.shape, t.requires_grad) for t in tensors] == [((), False)] * 3
    for _ in range(10):
        schedule.advance()
        placement.advance()
    now = [layer.variance_factor, layer.hardness, placement.share]
    assert all(a is b for a, b in zip(now, tensors, strict=True))
    assert [t.item() for t in tensors] == [0.0, 1.0, 1.0]
