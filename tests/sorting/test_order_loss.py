"""The likelihood of an order, against a sum over all choices of every cut."""

import itertools
import math
import re
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import DTYPES, pairs, seeded, seeds
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, jacrev, vmap

from sparsewire.sorting import order_loss


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return 2 * torch.randn(shape, dtype=torch.float64, generator=seeded(seed))


def some_order(n: int, seed: int) -> Tensor:
    return torch.randperm(n, generator=seeded(seed))


def some_ties(n: int, seed: int) -> Tensor:
    return torch.randint(3, (n,), generator=seeded(seed))


def loss_by_loop(
    keys: Tensor, target: Tensor, temperature: float, bend: float, reach: int | None
) -> float:
    """Minus the logarithm of the probability that every cut of every bucket is right, each bent.

    A cut chooses the upper half by the product of its weights, and is right if no target below it
    is above one of the upper half. Equal targets stand in the order of their keys.
    """
    pairs = sorted(zip(target.tolist(), keys.tolist(), strict=True))
    n, loss, size = len(pairs), 0.0, 2
    while size < 2 * n:
        for start in range(0, n, size):
            bucket = pairs[start : start + size]
            lower = size // 2
            if len(bucket) <= lower:
                continue
            if reach is not None:
                bucket = bucket[max(0, lower - reach) : lower + reach]
                lower = min(lower, reach)
            right = every = 0.0
            for low in itertools.combinations(range(len(bucket)), lower):
                high = [i for i in range(len(bucket)) if i not in low]
                weight = math.exp(sum(bucket[i][1] for i in high) / temperature)
                every += weight
                if max(bucket[i][0] for i in low) <= min(bucket[i][0] for i in high):
                    right += weight
            cut = math.log(every / right)
            loss += cut if math.isinf(bend) else bend * math.log1p(cut / bend)
        size *= 2
    return loss


# The definition.


@pairs(
    n=[0, 1, 2, 3, 5, 6, 7, 8, 9, 11],
    temperature=[0.3, 1.0, 4.0],
    bend=[math.inf, 0.1, 1.0, 20.0],
    reach=[None, 1, 2, 3, 6, 12],
    tied=[False, True],
)
def test_it_is_the_probability_of_all_cuts(n, temperature, bend, reach, tied):
    """With a reach, of those beside each cut; without equal targets, also if ties are not free."""
    keys, target = numbers(n), (some_ties if tied else some_order)(n, 1)
    options = {"temperature": temperature, "bend": bend, "reach": reach}
    want = loss_by_loop(keys, target, **options)
    for ties in (True,) if tied else (True, False):
        got = order_loss(keys, target, ties=ties, **options)
        torch.testing.assert_close(got.item(), want, atol=1e-9, rtol=1e-7)


def test_wrong_keys_cost_in_proportion_to_their_distance():
    target = torch.arange(5)
    losses = [order_loss(-scale * target.double(), target) for scale in (1e3, 1e6, 1e12)]
    for near, far, ratio in zip(losses, losses[1:], (1e3, 1e6), strict=False):
        torch.testing.assert_close(far / near, torch.tensor(ratio).double(), rtol=1e-2, atol=0)


# What does not matter.


@given(st.integers(1, 9), seeds)
def test_ties_that_may_not_change_places_are_in_the_order_of_keys_and_cost_more(n, seed):
    keys, target = numbers(n, seed=seed), some_ties(n, seed)
    strict = order_loss(keys, target, ties=False).item()
    assert order_loss(keys, target).item() <= strict + 1e-9
    by_keys = target + keys.argsort().argsort() / 100
    torch.testing.assert_close(order_loss(keys, by_keys).item(), strict)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_equal_targets_cost_nothing(n):
    keys = numbers(n).requires_grad_()
    loss = order_loss(keys, torch.full((n,), 7))
    loss.backward()
    torch.testing.assert_close(loss.item(), 0.0, atol=1e-12, rtol=0)
    assert keys.grad is not None
    torch.testing.assert_close(keys.grad, torch.zeros_like(keys), atol=1e-12, rtol=0)


@given(st.integers(0, 9), seeds, st.floats(-1e3, 1e3), st.booleans())
def test_shifting_all_keys_changes_nothing(n, seed, shift, ties):
    keys, target = numbers(n, seed=seed), some_ties(n, seed) if ties else some_order(n, seed)
    torch.testing.assert_close(order_loss(keys + shift, target), order_loss(keys, target))
    scaled = order_loss(8 * keys, target, temperature=8.0)
    torch.testing.assert_close(scaled, order_loss(keys, target))


@given(st.integers(0, 9), seeds, st.booleans())
def test_it_does_not_matter_in_which_order_elements_come(n, seed, ties):
    keys, target = numbers(n, seed=seed), some_ties(n, seed) if ties else some_order(n, seed)
    other = some_order(n, seed + 1)
    torch.testing.assert_close(order_loss(keys[other], target[other]), order_loss(keys, target))


@pytest.mark.parametrize(
    "target",
    [
        torch.tensor([3, 1, 2, 1]),
        torch.tensor([3, 1, 2, 1], dtype=torch.uint8),
        torch.tensor([0.3, -0.1, 0.0, -0.1]),
        torch.tensor([0.3, -0.5, 0.0, -0.5], dtype=torch.float16),
        torch.tensor([math.inf, -math.inf, 5.0, -math.inf]),
        torch.tensor([True, False, False, False]),
    ],
    ids=lambda target: str(target.dtype),
)
def test_targets_of_any_dtype_tell_nothing_but_an_order(target):
    keys, order = numbers(4), target.unique(return_inverse=True)[1]
    assert torch.equal(order_loss(keys, target), order_loss(keys, order))


# Gradients.


@given(st.integers(2, 9), seeds)
def test_without_ties_the_loss_is_convex(n, seed):
    target = some_order(n, seed)
    hessian = jacrev(grad(lambda k: order_loss(k, target, ties=False)))(numbers(n, seed=seed))
    assert torch.linalg.eigvalsh(hessian).min() > -1e-9


@pytest.mark.parametrize("distance", [1.0, 1e2, 1e6, 1e30])
def test_a_wrong_order_never_loses_its_gradient(distance):
    keys = torch.tensor([distance, 0.0], requires_grad=True)
    order_loss(keys, torch.tensor([0, 1])).backward()
    assert keys.grad is not None
    assert keys.grad[0] > 0.5 > -0.5 > keys.grad[1]


@pytest.mark.parametrize(("n", "reach"), [(2, None), (7, None), (20, 1), (20, 2), (8, 4)])
def test_descending_the_gradient_finds_the_order(n, reach):
    keys, target = numbers(n).requires_grad_(), some_order(n, 1)
    optimizer = torch.optim.Adam([keys], lr=0.3)
    for _ in range(150):
        optimizer.zero_grad()
        order_loss(keys, target, reach=reach, ties=False).backward()
        optimizer.step()
    assert torch.equal(keys.argsort(), target.argsort())


@pairs(n=[1, 2, 3, 6], bend=[math.inf, 0.7], reach=[None, 1, 2, 3], ties=[False, True])
def test_gradients_and_theirs(n, bend, reach, ties):
    options: dict[str, Any] = {"bend": bend, "reach": reach, "ties": ties}
    keys = numbers(2, n).requires_grad_()
    some = some_ties if ties else some_order
    target = torch.stack([some(n, 1), some(n, 2)])
    assert gradcheck(lambda t: order_loss(t, target, reduction="none", **options), keys)
    assert gradgradcheck(lambda t: order_loss(t, target, **options), keys)


@pytest.mark.parametrize("ties", [False, True])
def test_torch_transforms_it(ties):
    keys, target = numbers(3, 5), torch.stack([some_ties(5, seed) for seed in range(3)])
    each = vmap(lambda k, t: order_loss(k, t, ties=ties))(keys, target)
    torch.testing.assert_close(each, order_loss(keys, target, ties=ties, reduction="none"))
    leaf = keys.clone().requires_grad_()
    (want,) = torch.autograd.grad(order_loss(leaf, target, ties=ties, reduction="sum"), leaf)
    got = vmap(grad(lambda k, t: order_loss(k, t, ties=ties)))(keys, target)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("size", [1e-30, 1e3, 1e30])
@pytest.mark.parametrize("ties", [False, True])
def test_gradients_are_finite_at_any_scale(size, ties):
    keys = (numbers(2, 7).float() * size).requires_grad_()
    loss = order_loss(keys, torch.tensor([3, 1, 1, 0, 3, 2, 1]).expand(2, 7), ties=ties)
    loss.backward()
    assert loss.isfinite()
    assert keys.grad is not None
    assert keys.grad.isfinite().all()


# Shapes and dtypes.


def test_losses_are_reduced_as_asked():
    keys, target = numbers(2, 3, 5), torch.randint(4, (2, 3, 5))
    losses = order_loss(keys, target, reduction="none")
    assert losses.shape == (2, 3)
    for i, j in itertools.product(range(2), range(3)):
        torch.testing.assert_close(losses[i, j], order_loss(keys[i, j], target[i, j]))
    torch.testing.assert_close(order_loss(keys, target), losses.mean())
    torch.testing.assert_close(order_loss(keys, target, reduction="sum"), losses.sum())


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 0), (3, 1)])
def test_nothing_to_sort_costs_nothing(shape):
    keys = torch.zeros(shape, requires_grad=True)
    losses = order_loss(keys, torch.zeros(shape), reduction="none")
    assert torch.equal(losses, torch.zeros(shape[:-1]))
    losses.sum().backward()
    assert keys.grad is not None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_losses_keep_the_dtype_and_half_precision_is_computed_in_float32(dtype):
    keys, target = (20 * numbers(2, 9)).to(dtype), torch.randint(5, (2, 9))
    got = order_loss(keys, target, reduction="none")
    assert got.dtype == dtype
    wide = keys.to(torch.promote_types(dtype, torch.float32))
    assert torch.equal(got, order_loss(wide, target, reduction="none").to(dtype))
    torch.testing.assert_close(
        got, order_loss(keys.double(), target, reduction="none").to(dtype), rtol=1e-2, atol=1e-3
    )


# Errors.

KEYS = torch.zeros(2, 4)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: order_loss(KEYS, torch.zeros(4)),
            r"ValueError: target must have the shape of keys, \(2, 4\); got \(4,\)",
        ),
        (
            lambda: order_loss(KEYS, cast(Any, [1, 2])),
            r"ValueError: target must have the shape of keys, \(2, 4\); got list",
        ),
        (
            lambda: order_loss(torch.tensor(1.0), torch.tensor(1.0)),
            r"ValueError: keys must have at least one dimension, that of the list; got \(\)",
        ),
        (lambda: order_loss(KEYS.long(), KEYS), "TypeError: keys must have a floating-point dtype"),
        (
            lambda: order_loss(KEYS, KEYS.to("meta")),
            "ValueError: keys, target must be on one device; got keys on cpu, target on meta",
        ),
        (
            lambda: order_loss(KEYS, KEYS, reduction=cast(Any, "max")),
            "ValueError: reduction must be one of 'mean', 'sum', 'none'; got 'max'",
        ),
        (
            lambda: order_loss(KEYS, KEYS, temperature=0.0),
            r"ValueError: temperature must be between 1e-30 and 1e\+30; got 0.0",
        ),
        (lambda: order_loss(KEYS, KEYS, reach=0), "ValueError: reach must be at least 1; got 0"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises((ValueError, TypeError, IndexError)) as info:
        call()
    assert re.match(message, f"{info.typename}: {info.value}")
