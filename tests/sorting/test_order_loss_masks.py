"""The likelihood of an order with padding, with weights, and with all right orders counted."""

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import pairs, seeded, seeds
from tests.sorting.test_order_loss import loss_by_loop, numbers, some_order, some_ties
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import sparsewire as sw
from sparsewire.sorting import order_loss

ENGINES = ["fourier", "reference"]


# Padding.


@pairs(
    n=[1, 2, 3, 5, 8, 13, 21],
    valid=[0.3, 0.8],
    bend=[math.inf, 0.5],
    reach=[None, 1, 3],
    ties=[False, True],
    engine=ENGINES,
)
def test_padding_has_no_influence(n, valid, bend, reach, ties, engine):
    """Wherever it is and whatever it holds, the loss and the gradient are those of the others."""
    options: dict[str, Any] = {"bend": bend, "reach": reach, "ties": ties, "reduction": "none"}
    mask = torch.rand(4, n, generator=seeded(n)) < valid
    keys, target = numbers(4, n), torch.stack([some_ties(n, seed) for seed in range(4)]).double()
    junk = torch.tensor([math.nan, math.inf, -math.inf, 1e300])[torch.arange(n) % 4].double()
    padded = keys.where(mask, junk).requires_grad_()
    with sw.engine(engine):
        losses = order_loss(padded, target.where(mask, junk), mask=mask, **options)
        (slopes,) = torch.autograd.grad(losses.sum(), padded)
        for row in range(4):
            alone = keys[row, mask[row]].requires_grad_()
            want = order_loss(alone, target[row, mask[row]], **options)
            (slope,) = torch.autograd.grad(want, alone)
            torch.testing.assert_close(losses[row], want.detach())
            torch.testing.assert_close(slopes[row, mask[row]], slope)
            assert (slopes[row, ~mask[row]] == 0).all()


@pairs(n=[3, 6], ties=[False, True, "exact"], engine=ENGINES)
def test_gradients_with_padding_and_theirs(n, ties, engine):
    mask = torch.arange(n) < torch.tensor([[n - 1], [2], [0]])
    keys, target = numbers(3, n).requires_grad_(), some_ties(n, 1).expand(3, n)
    with sw.engine(engine):
        call = lambda t: order_loss(t, target, mask=mask, ties=ties, reduction="none")  # noqa: E731
        assert gradcheck(call, keys)
        assert gradgradcheck(call, keys)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("weights", [None, torch.tensor([0.5, 2.0, 3.0])])
def test_lists_of_padding_alone_are_left_out(reduction, weights):
    keys, target = numbers(3, 5), some_order(5, 1).expand(3, 5)
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[1] = False
    kept, few = [0, 2], None if weights is None else weights[[0, 2]]
    got = order_loss(keys, target, mask=mask, weights=weights, reduction=reduction)
    want = order_loss(keys[kept], target[kept], weights=few, reduction=reduction)
    torch.testing.assert_close(got, want)
    each = order_loss(keys, target, mask=mask, weights=weights, reduction="none")
    assert each[1] == 0
    nothing = order_loss(keys, target, mask=mask & False, reduction=reduction)
    assert nothing == 0


# All right orders.


def right_orders(target: Tensor) -> list[list[int]]:
    """All ways to put the elements in a row in which no target is above a later one."""
    every = itertools.permutations(range(len(target)))
    return [list(o) for o in every if (target[list(o)].diff() >= 0).all()]


@given(st.integers(1, 6), seeds)
def test_exact_is_the_probability_of_all_right_orders(n, seed):
    keys, target = numbers(n, seed=seed), some_ties(n, seed)
    places = torch.arange(n)
    chances = [
        math.exp(-loss_by_loop(keys[order], places, 1.0, math.inf, None))
        for order in right_orders(target)
    ]
    exact = order_loss(keys, target, ties="exact").item()
    assert math.isclose(exact, -math.log(sum(chances)), abs_tol=1e-9)


@given(st.integers(1, 6), seeds, st.sampled_from([0.1, 1.0, 5.0]))
def test_the_other_two_are_at_least_as_large(n, seed, scale):
    keys, target = scale * numbers(n, seed=seed), some_ties(n, seed)
    exact, free, strict = (order_loss(keys, target, ties=t) for t in ("exact", True, False))
    assert exact <= free + 1e-9
    assert free <= strict + 1e-9


def test_one_way_through_equal_targets_can_cost_much_more():
    """Right below a cut the pair is one where each meets a smaller, or a larger, element."""
    keys, target = torch.tensor([0.0, -3.0, 3.0, 0.0]), torch.tensor([1, 2, 2, 3])
    free, exact = (order_loss(keys, target, ties=ties).item() for ties in (True, "exact"))
    assert free - exact > 0.6
    alone = order_loss(keys, torch.zeros(4), ties="exact")
    torch.testing.assert_close(alone, torch.tensor(0.0), atol=1e-6, rtol=0)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"ties": "all"}, "ties must be True, False or 'exact'; got 'all'"),
        ({"ties": "exact", "reach": 1}, "ties must be True or False with a bend or a reach"),
        ({"ties": "exact"}, "where more than 1,000 orders are right; got 'exact' for a list with"),
        ({"mask": torch.ones(7)}, "mask must be a boolean tensor, True for valid elements; got"),
        ({"mask": torch.ones(3, 3).bool()}, r"mask must broadcast to the shape of keys, \(2, 7\)"),
        ({"weights": torch.ones(7)}, r"weights must have one number for each list, \(2,\); got"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        order_loss(torch.zeros(2, 7), torch.zeros(2, 7), **call)
