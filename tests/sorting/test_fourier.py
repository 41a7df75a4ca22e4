"""The engine of `order_loss` on the CPU against its reference, which is tested against theory."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import seeded
from torch import Tensor

import sparsewire as sw
from sparsewire.sorting.order_loss import _fourier as _cuts
from sparsewire.sorting.order_loss import cut_losses
from sparsewire.sorting.order_loss._fourier import losses_of


def case(n: int, seed: int, scale: float, kinds: int | None = None) -> tuple[Tensor, Tensor]:
    """Keys of three sets, and targets that do not fall; equal ones among them, given kinds."""
    generator = seeded(seed)
    keys = torch.randn(3, n, generator=generator, dtype=torch.float64) * scale
    if kinds is None:
        return keys, torch.rand(3, n, generator=generator).sort(-1).values
    return keys, torch.randint(kinds, (3, n), generator=generator).sort(-1).values


def assert_as_reference(keys: Tensor, goal: Tensor, ties: bool = True, bend: float = math.inf):
    leaf = keys.clone().requires_grad_()
    want = cut_losses(leaf, goal, ties, bend)
    (slopes,) = torch.autograd.grad(want.sum(), leaf)
    got, gradient = losses_of(keys, goal, ties, bend)
    torch.testing.assert_close(got, want.detach(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(gradient, slopes, rtol=1e-9, atol=1e-10)


@given(
    n=st.integers(1, 40),
    seed=st.integers(0, 99),
    scale=st.sampled_from([0.0, 1e-3, 1.0, 30.0, 1e4]),
    kinds=st.sampled_from([None, 1, 2, 5, 20]),
    ties=st.booleans(),
    bend=st.sampled_from([math.inf, 0.5]),
)
def test_losses_and_gradients_are_those_of_the_reference(n, seed, scale, kinds, ties, bend):
    assert_as_reference(*case(n, seed, scale, kinds), ties=ties, bend=bend)


@pytest.mark.parametrize("n", [100, 129, 256])
def test_large_sets_too(n):
    assert_as_reference(*case(n, 0, 1.0))
    assert_as_reference(*case(n, 1, 0.0, kinds=9))


def test_odds_that_lean_to_one_side():
    """As many small ones as large ones, but no two alike: half of them is not where they meet."""
    keys = torch.linspace(0, 5, 64, dtype=torch.float64).exp().expand(2, 64)
    goal = torch.arange(64).expand(2, 64)
    assert_as_reference(keys, goal)
    assert_as_reference(-keys, goal)


@pytest.mark.parametrize("few", [0, 8, 16])
def test_few_elements_are_tried_in_all_ways(few, monkeypatch):
    monkeypatch.setattr(_cuts, "_FEW", few)
    assert_as_reference(*case(16, 4, 1.0))
    assert_as_reference(*case(13, 5, 1.0, kinds=3))


@pytest.mark.parametrize(("n", "kinds"), [(8, 3), (21, 3), (40, None)])
def test_everything_is_made_where_the_keys_are(n, kinds, monkeypatch):
    """By default, here, on a device whose tensors mix with no others."""
    for name in ("_choices", "_every_choice"):  # not those that were kept
        monkeypatch.setattr(_cuts, name, getattr(_cuts, name).__wrapped__)
    keys, goal = case(n, 7, 1.0, kinds)
    want = losses_of(keys, goal, True, 0.5)
    with torch.device("meta"):
        got = losses_of(keys, goal, True, 0.5)
    torch.testing.assert_close(got, want)


def test_rows_are_taken_some_at_a_time(monkeypatch):
    keys, goal = case(48, 6, 1.0)
    whole = losses_of(keys, goal, True, math.inf)
    monkeypatch.setattr(_cuts, "_ELEMENTS", 1)
    torch.testing.assert_close(losses_of(keys, goal, True, math.inf), whole)


def test_what_is_not_a_number_is_a_loss_of_its_own_set():
    keys, goal = case(32, 8, 1.0)
    keys[1, 5] = math.nan
    losses, slopes = losses_of(keys, goal, True, math.inf)
    assert losses.isnan().tolist() == [False, True, False]
    assert slopes is not None
    assert slopes[[0, 2]].isfinite().all()


def test_it_is_chosen_on_the_cpu_unless_the_reference_is(monkeypatch):
    calls = []
    monkeypatch.setattr(_cuts, "losses_of", lambda *a: calls.append("here") or losses_of(*a))
    keys, goal = case(16, 9, 1.0)
    fast = sw.order_loss(keys, goal)
    assert calls == ["here"]
    with sw.engine("reference"):
        torch.testing.assert_close(sw.order_loss(keys, goal), fast)
    assert calls == ["here"]
