"""Settling: variances that fall and passes that become rounded, step by step."""

import pytest
import torch
from tests.helpers import seeded

from sparsewire import SparseLayer
from sparsewire_lab.attention.settling import Settling

CPU = torch.device("cpu")


def make(
    falls: tuple[float, float] | None = (0.0, 0.5), rounds: float | None = 0.8
) -> tuple[SparseLayer, Settling]:
    layer = SparseLayer((8,), (8,), tuples=8, seed=0)
    return layer, Settling(layer, 10, falls, rounds, CPU)


@pytest.mark.parametrize("falls", [(0.0, 0.5), (0.2, 0.5), (0.5, 0.9)])
def test_variances_fall_to_their_floor_by_a_cube(falls):
    """Of what they are above it: the third power of what is left of the time between two shares."""
    begin, end = (10 * share for share in falls)
    layer, settling = make(falls)
    free = SparseLayer((8,), (8,), tuples=8, seed=0).wiring().variances - 0.1
    for step in range(13):  # a run may be longer than it was told
        left = 1.0 if step <= begin else max(0.0, (end - step) / (end - begin))
        torch.testing.assert_close(layer.wiring().variances, 0.1 + left**3 * free)
        settling.advance()
    assert (layer.wiring().variances == 0.1).all()


@pytest.mark.parametrize(("rounds", "first"), [(0.0, 0), (0.31, 4), (0.8, 8), (0.99, 10)])
def test_passes_are_rounded_from_a_step_on(rounds, first):
    layer, settling = make(rounds=rounds)
    x = torch.randn(4, 8, generator=seeded(0))
    for step in range(12):
        hard = torch.allclose(layer(x), layer(x, mode="rounded"), atol=1e-6)
        assert hard == (step >= first), step
        settling.advance()


def test_what_is_not_asked_for_is_left_alone():
    layer, settling = make(None, None)
    for _ in range(12):
        settling.advance()
    assert layer.variance_factor is None
    assert layer.hardness is None
    layer, _ = make(falls=None)
    assert layer.variance_factor is None
    assert layer.hardness is not None
    layer, _ = make(rounds=None)
    assert layer.hardness is None
    assert layer.variance_factor is not None


def test_numbers_change_in_place_as_captured_steps_need_it():
    layer, settling = make()
    factor, hardness = layer.variance_factor, layer.hardness
    assert factor is not None
    assert hardness is not None
    for _ in range(10):
        settling.advance()
    assert layer.variance_factor is factor
    assert layer.hardness is hardness
    assert (factor.item(), hardness.item()) == (0.0, 1.0)


@pytest.mark.parametrize("steps", [0, 2, 9])
def test_a_saved_state_comes_back(steps):
    one, settling = make()
    for _ in range(steps):
        settling.advance()
    other, again = make()
    again.load_state_dict(settling.state_dict())
    for _ in range(3):
        assert torch.equal(other.wiring().variances, one.wiring().variances)
        assert torch.equal(again.hardness, settling.hardness)  # pyright: ignore
        settling.advance()
        again.advance()
