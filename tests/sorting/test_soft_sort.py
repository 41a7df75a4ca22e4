"""Soft sorting against a slow reference: half-permutations of whole levels, vector by vector."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import LargestStorage, pairwise, seeded, seeds, sizes_kept
from tests.sorting.loops import half_by_loop
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from sparsewire.sorting import (
    soft_median,
    soft_permutation,
    soft_quantile,
    soft_rank,
    soft_sort,
    soft_topk,
    sort_by,
)
from sparsewire.sorting.halves import DISTRIBUTIONS

INF = math.inf
SIZES = [*range(1, 10), 13, 16, 17, 33]
# One result of each function, for what is true of all of them.
FUNCTIONS: dict[str, Any] = {
    "sort": soft_sort,
    "rank": soft_rank,
    "permutation": soft_permutation,
    "sort_by": lambda x, **options: sort_by(x, payload_of(x), **options),
    "topk": lambda x, **options: soft_topk(x, x.shape[-1] // 2 + 1, **options).values,
    "quantile": lambda x, **options: soft_quantile(x, 0.3, **options),
    "median": soft_median,
}

sizes, sampled_distributions = st.sampled_from(SIZES), st.sampled_from(DISTRIBUTIONS)
functions = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
distributions = pytest.mark.parametrize("distribution", DISTRIBUTIONS)


def payload_of(x: Tensor) -> Tensor:
    """Two numbers for each element that do not hang on it."""
    return torch.arange(2 * x.numel()).view(*x.shape, 2).to(x).sin()


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=seeded(seed))


# The reference.


def permutation_by_loop(
    x: Tensor, temperature: float, distribution: str = "student", reach: int = 1000
) -> Tensor:
    """The product of all levels of buckets of sorted keys, which infinite ones fill up."""
    n = len(x)
    full = 1
    while full < n:
        full *= 2
    order = sorted(range(n), key=x.tolist().__getitem__)
    keys = [x[i].item() for i in order] + [INF] * (full - n)
    total = torch.eye(full, dtype=torch.float64)
    size = full
    while size > 1:
        level = torch.eye(full, dtype=torch.float64)
        for start in range(0, full, size):
            middle, half = start + size // 2, min(reach, size // 2)
            window = slice(middle - half, middle + half)
            level[window, window] = half_by_loop(keys[window], temperature, distribution)
        total = level @ total
        size //= 2
    return total[:n, :n] @ torch.eye(n, dtype=torch.float64)[order]


@distributions
@pytest.mark.parametrize("n", range(1, 9))
@pytest.mark.parametrize("reach", [1, 2, 3, 4, 100])
def test_the_permutation_is_the_product_of_all_levels(n, distribution, reach):
    x = numbers(n, seed=n)
    got = soft_permutation(x, temperature=0.4, distribution=distribution, reach=reach)
    torch.testing.assert_close(got, permutation_by_loop(x, 0.4, distribution, reach))


@pytest.mark.parametrize(("n", "reach"), [(13, 100), (16, 8), (21, 3), (32, 2), (33, 5)])
def test_more_elements_have_more_levels(n, reach):
    x = numbers(n)
    got = soft_permutation(x, temperature=0.2, reach=reach)
    torch.testing.assert_close(got, permutation_by_loop(x, 0.2, reach=reach))


@pytest.mark.parametrize("values", [[2.0, 2.0], [1.0, 1.0, 1.0], [3.0, 1.0, 3.0, 1.0, 1.0, 2.0]])
@pytest.mark.parametrize("reach", [1, 2, 3])
def test_ties_are_shared(values, reach):
    x = torch.tensor(values, dtype=torch.float64)
    got = soft_permutation(x, temperature=0.5, reach=reach)
    torch.testing.assert_close(got, permutation_by_loop(x, 0.5, reach=reach))
    torch.testing.assert_close(soft_sort(x, temperature=1e-9), x.sort().values)


# How the functions belong together.


@given(
    distribution=sampled_distributions,
    n=sizes,
    seed=seeds,
    reach=st.integers(1, 9),
    descending=st.booleans(),
)
def test_all_functions_tell_of_one_permutation(distribution, n, seed, reach, descending):
    x = numbers(2, n, seed=seed)
    options: dict[str, Any] = {"distribution": distribution, "reach": reach}
    p = soft_permutation(x, descending=descending, **options)
    ordered = soft_sort(x, descending=descending, **options)
    torch.testing.assert_close((p @ x.unsqueeze(-1)).squeeze(-1), ordered)
    places = torch.arange(n, dtype=torch.float64)
    rank = soft_rank(x, descending=descending, **options)
    torch.testing.assert_close((p.mT @ places.unsqueeze(-1)).squeeze(-1), rank)
    payload = numbers(2, n, 3, seed=seed + 1)
    torch.testing.assert_close(sort_by(x, payload, descending, **options), p @ payload)
    top = soft_topk(x, n // 2, largest=descending, **options)
    torch.testing.assert_close(top.values, ordered[:, : n // 2])


@given(distribution=sampled_distributions, n=sizes, seed=seeds, reach=st.integers(1, 9))
def test_permutations_are_doubly_stochastic(distribution, n, seed, reach):
    x = numbers(n, seed=seed) ** 3
    p = soft_permutation(x, distribution=distribution, reach=reach)
    assert (p >= 0).all()
    ones = torch.ones(n, dtype=torch.float64)
    torch.testing.assert_close(p.sum(0), ones)
    torch.testing.assert_close(p.sum(1), ones)
    torch.testing.assert_close(soft_sort(x, distribution=distribution, reach=reach).sum(), x.sum())


@given(n=sizes, seed=seeds)
def test_the_order_in_which_elements_come_does_not_matter(n, seed):
    x = numbers(n, seed=seed)
    other = torch.randperm(n, generator=seeded(seed))
    torch.testing.assert_close(soft_sort(x[other]), soft_sort(x))
    torch.testing.assert_close(soft_rank(x[other]), soft_rank(x)[other])
    torch.testing.assert_close(soft_permutation(x[other]), soft_permutation(x)[:, other])


@given(n=sizes, seed=seeds, power=st.integers(-60, 60), shift=st.floats(-5, 5))
def test_neither_scale_nor_shift_of_the_input_matters(n, seed, power, shift):
    x = numbers(n, seed=seed)
    other = (x + shift) * 2.0**power
    torch.testing.assert_close(soft_permutation(other), soft_permutation(x), rtol=1e-6, atol=1e-9)
    ordered = soft_sort(other) / 2.0**power - shift
    torch.testing.assert_close(ordered, soft_sort(x), rtol=1e-6, atol=1e-9)


@given(n=sizes, seed=seeds, power=st.integers(-30, 30))
def test_a_temperature_is_a_distance(n, seed, power):
    x = numbers(n, seed=seed)
    got = soft_rank(x * 2.0**power, temperature=0.3 * 2.0**power)
    torch.testing.assert_close(got, soft_rank(x, temperature=0.3))


def test_the_default_temperature_is_the_distance_of_even_neighbours():
    """Where keys are evenly spread: nearly, for many of them."""
    x = torch.arange(1000, dtype=torch.float64)[torch.randperm(1000)] * 7
    torch.testing.assert_close(soft_rank(x), soft_rank(x, temperature=7.0), rtol=1e-4, atol=1e-3)


@given(n=sizes, seed=seeds)
def test_descending_is_ascending_of_the_negative(n, seed):
    x = numbers(n, seed=seed)
    torch.testing.assert_close(soft_sort(x, descending=True), -soft_sort(-x))
    torch.testing.assert_close(soft_rank(x, descending=True), soft_rank(-x))
    p = soft_permutation(x, descending=True)
    torch.testing.assert_close(p, soft_permutation(-x))
    torch.testing.assert_close(sort_by(x, x, True), p @ x)


@given(n=sizes, seed=seeds)
def test_mixing_neighbours_keeps_the_order(n, seed):
    """Of one element on each side of a cut; with more of them it need not."""
    x = numbers(n, seed=seed) ** 3
    assert (soft_sort(x, reach=1).diff() >= -1e-12).all()
    assert (soft_sort(x, descending=True, reach=1).diff() <= 1e-12).all()


@distributions
def test_heat_brings_all_elements_together(distribution):
    x = torch.tensor([3.0, 1.0, 2.0, 7.0])
    p = soft_permutation(x, temperature=1e6, distribution=distribution)
    cold = soft_permutation(x, temperature=0.5, distribution=distribution)
    assert (p.amax(-1) < cold.amax(-1)).all()
    torch.testing.assert_close(p, soft_permutation(torch.zeros(4))[:, [2, 0, 1, 3]])


@pytest.mark.parametrize("function", [soft_sort, soft_rank, soft_permutation])
@pytest.mark.parametrize("n", [4, 7])
def test_endless_heat_still_sums_to_one(function, n):
    """What is filled up to a power of two must stay away."""
    x = numbers(2, n)
    torch.testing.assert_close(function(x, temperature=INF), function(x, temperature=1e12))


# Without doubt.


@given(name=st.sampled_from(list(FUNCTIONS)), n=sizes, seed=seeds, ties=st.booleans())
def test_cold_is_exact(name, n, seed, ties):
    """From some distance on the soft functions are the hard ones, and at zero they are."""
    function = FUNCTIONS[name]
    x = numbers(2, n, seed=seed)
    x = (4 * x).round() if ties else x
    hard = function(x, temperature=0.0)
    if not ties:
        torch.testing.assert_close(function(x, temperature=1e-14), hard, atol=1e-9, rtol=0)
    assert torch.equal(function(x, hard=True), hard)


@given(n=sizes, seed=seeds, descending=st.booleans(), ties=st.booleans())
def test_zero_temperature_is_torch(n, seed, descending, ties):
    x = numbers(3, n, seed=seed).float()
    x = x.round() if ties else x
    values, order = x.sort(dim=-1, descending=descending, stable=True)
    k = (n + 1) // 2
    for options in ({"temperature": 0.0}, {"hard": True}):
        options: dict[str, Any]
        assert torch.equal(soft_sort(x, descending=descending, **options), values)
        rank = soft_rank(x, descending=descending, **options)
        assert torch.equal(rank, order.argsort(-1).float())
        p = soft_permutation(x, descending=descending, **options)
        assert torch.equal(p, torch.eye(n)[order])
        top = soft_topk(x, k, largest=descending, **options)
        assert torch.equal(top.values, x.topk(k, largest=descending).values)
        assert torch.equal(x.gather(-1, top.indices), top.values)
        payload = torch.randn(3, n, 2)
        taken = payload.gather(-2, order.unsqueeze(-1).expand(3, n, 2))
        assert torch.equal(sort_by(x, payload, descending, **options), taken)
        for q in (0.0, 0.21, 0.5, 1.0):
            got = soft_quantile(x, q, **options)
            torch.testing.assert_close(got, x.quantile(q, dim=-1))
        torch.testing.assert_close(soft_median(x, **options), x.quantile(0.5, dim=-1))


@functions
def test_hard_results_have_the_gradient_of_soft_ones(function):
    x = numbers(2, 7)

    def gradient(hard: bool) -> Tensor:
        leaf = x.clone().requires_grad_()
        result = function(leaf, hard=hard)
        weights = numbers(*result.shape, seed=1)
        return torch.autograd.grad(result, leaf, weights)[0]

    torch.testing.assert_close(gradient(True), gradient(False))
    assert gradient(True).any()


def test_topk_says_where_the_hard_ones_are():
    x = torch.tensor([[1.0, 4.0, 2.0, 4.0], [9.0, 3.0, 8.0, 0.0]])
    assert soft_topk(x, 3).indices.tolist() == [[1, 3, 2], [0, 2, 1]]
    assert soft_topk(x, 2, largest=False).indices.tolist() == [[0, 2], [3, 1]]
    assert soft_topk(x, 1, dim=0).indices.tolist() == [[1, 0, 1, 0]]


# Gradients.


@pytest.mark.parametrize(
    "row", pairwise(n=[1, 3, 6], function=list(FUNCTIONS), temperature=[0.0, 0.7]), ids=str
)
def test_gradients_and_theirs(row):
    """Also of ranks without doubt, which do not depend on the keys: their gradient is zero."""
    function, n, temperature = FUNCTIONS[row["function"]], row["n"], row["temperature"]
    x = numbers(2, n, seed=n).requires_grad_()
    assert gradcheck(lambda t: function(t, temperature=temperature), x)
    assert gradgradcheck(lambda t: function(t, temperature=temperature), x)


@distributions
@pytest.mark.parametrize(("n", "reach"), [(9, 1), (11, 2), (12, 16)])
def test_gradients_of_every_distribution_and_reach(n, distribution, reach):
    x = numbers(n).requires_grad_()
    options: dict[str, Any] = {"temperature": 0.5, "distribution": distribution, "reach": reach}
    assert gradcheck(lambda t: soft_sort(t, **options), x)
    assert gradcheck(lambda t: soft_rank(t, **options), x)


@pytest.mark.parametrize("n", [4, 5])
def test_gradients_of_a_payload_and_of_a_temperature(n):
    keys, payload = numbers(2, n).requires_grad_(), numbers(2, n, 3).requires_grad_()
    heat = torch.tensor([0.4, 0.9], dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda k, p, t: sort_by(k, p, temperature=t), (keys, payload, heat))


@pytest.mark.parametrize("keys", [[2.0, 2.0, 2.0], [1.0, 3.0, 1.0, 3.0, 3.0], [0.0] * 9])
def test_ties_have_gradients(keys):
    x = torch.tensor(keys, requires_grad=True)
    weights = torch.arange(len(keys)).float().square()
    (gradient,) = torch.autograd.grad(sort_by(x, weights.flip(0)), x, weights)
    assert gradient.isfinite().all()
    assert (gradient != 0).all()


@given(st.sampled_from([2, 3, 5, 8, 13, 40]), st.sampled_from([1e-6, 1.0, 1e6]), seeds)
def test_no_key_of_a_wrong_order_is_without_gradient(n, scale, seed):
    """Things come in the order of other keys than they should."""
    keys = (numbers(n, seed=seed).float() * scale).requires_grad_()
    payload = numbers(n, seed=seed + 1).float()
    loss = (sort_by(keys, payload) - payload.sort().values).square().sum()
    (gradient,) = torch.autograd.grad(loss, keys)
    assert gradient.isfinite().all()
    assert (gradient != 0).all()


@pytest.mark.parametrize("distribution", ["student", "cauchy"])
@pytest.mark.parametrize("distance", [1.0, 1e2, 1e4, 1e6, 1e8])
def test_pairs_far_apart_in_the_wrong_order_are_drawn_together(distribution, distance):
    keys = torch.tensor([distance, 0.0], requires_grad=True)
    wanted = torch.tensor([0.0, 1.0])
    loss = (soft_rank(keys, temperature=1.0, distribution=distribution) - wanted).square().sum()
    (gradient,) = torch.autograd.grad(loss, keys)
    assert gradient[0] > 0 > gradient[1]


@functions
@pytest.mark.parametrize("temperature", [1e-30, 1e-3, 1e3, None])
def test_gradients_are_finite_whatever_comes(function, temperature):
    x = torch.tensor(
        [
            [3.0, 1.0, 2.0, 2.0, -4.0],
            [1e30, -1e30, 1e-30, 0.0, 0.0],
            [INF, 1.0, -INF, 2.0, INF],
            [5.0, 5.0, 5.0, 5.0, 5.0],
            [INF, INF, INF, -INF, -INF],
        ],
        requires_grad=True,
    )
    result = function(x, temperature=temperature)
    result.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


# Memory.


def test_many_elements_need_no_square_of_memory():
    n = 4096
    x = torch.randn(n, requires_grad=True)
    with LargestStorage() as largest, sizes_kept() as kept:
        (soft_sort(x) * soft_rank(x)).sum().backward()
    assert largest.bytes <= 400 * n  # 4 bytes a number; a square would have 16384 n
    assert max(kept) <= 40 * n
    assert x.grad is not None


def test_memory_grows_with_the_number_of_elements():
    def kept_by(n: int) -> int:
        with sizes_kept() as kept:
            soft_sort(torch.randn(n, requires_grad=True))
        return sum(kept)

    assert kept_by(4096) <= 4.2 * kept_by(1024)
