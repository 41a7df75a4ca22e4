"""Half-permutations against a loop over all valid vectors, and their odds against scipy."""

import itertools
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tests.helpers import DTYPES, seeded, seeds
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck

from sparsewire.sorting.halves import (
    CERTAIN_DISTANCE,
    DISTRIBUTIONS,
    enumerated_half,
    exact_half,
    half,
    half_rows,
    log_odds,
    log_symmetric,
    sampled_half,
)

Vector = tuple[int, ...]

WAYS = (half, enumerated_half, exact_half)
SIZES = [(m, lower) for m in range(8) for lower in range(m + 1)]
# Student's t with two degrees of freedom, scaled: F(t) = (1 + t / √(1 + t²)) / 2.
LAWS = {
    "student": stats.t(2, scale=0.5**0.5),
    "logistic": stats.logistic(),
    "cauchy": stats.cauchy(),
}

ways = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
exact_ways = pytest.mark.parametrize(
    "way", [enumerated_half, exact_half], ids=lambda way: way.__name__
)


def random_odds(*shape: int, seed: int = 0) -> Tensor:
    return 2 * torch.randn(shape, dtype=torch.float64, generator=seeded(seed))


def vectors(m: int, lower: int) -> Iterator[Vector]:
    """All binary vectors with this many zeros."""
    return (o for o in itertools.product((0, 1), repeat=m) if o.count(0) == lower)


def rows_of(vector: Vector) -> list[int]:
    """Where each element goes: zeros first, then ones, each in the order they had."""
    zeros = [i for i, one in enumerate(vector) if not one]
    ones = [i for i, one in enumerate(vector) if one]
    order = zeros + ones
    return [order.index(i) for i in range(len(vector))]


def mean_of(odds: list[float], valid: list[Vector]) -> Tensor:
    """The mean of half-permutations, each counted by the product of the odds of its ones."""
    m = len(odds)
    logs = [sum(odd for odd, one in zip(odds, o, strict=True) if one) for o in valid]
    weights = [math.exp(log - max(logs)) for log in logs]
    matrix = torch.zeros(m, m, dtype=torch.float64)
    for weight, vector in zip(weights, valid, strict=True):
        for element, row in enumerate(rows_of(vector)):
            matrix[row, element] += weight / sum(weights)
    return matrix


def half_by_loop(odds: Tensor, lower: int) -> Tensor:
    return mean_of(odds.tolist(), list(vectors(len(odds), lower)))


def assert_doubly_stochastic(matrix: Tensor, **tolerance: Any) -> None:
    assert (matrix >= 0).all()
    for dim in (-1, -2):
        sums = matrix.sum(dim)
        torch.testing.assert_close(sums, torch.ones_like(sums), **tolerance)


# Exact ones.


@ways
@pytest.mark.parametrize(("m", "lower"), SIZES)
def test_halves_equal_a_loop_over_all_valid_vectors(way, m, lower):
    odds = random_odds(3, m, seed=m)
    got = way(odds, lower)
    assert got.shape == (3, m, m)
    for one, its in zip(odds, got, strict=True):
        torch.testing.assert_close(its, half_by_loop(one, lower))
        assert_doubly_stochastic(its)


@ways
@pytest.mark.parametrize("lower", [1, 2, 3])
def test_odds_of_certainty_lead_to_no_nan(way, lower):
    """As certain as odds get, right and wrong, in all combinations."""
    odds = torch.tensor(list(itertools.product((-110.0, 0.0, 110.0), repeat=4)))
    odds.requires_grad_()
    got = way(odds, lower)
    want = torch.stack([half_by_loop(one, lower) for one in odds.detach()]).float()
    torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-5)
    got.square().sum().backward()
    assert odds.grad is not None
    assert odds.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("m", [64, 65, 300, 1000])
def test_halves_of_many_elements_are_doubly_stochastic(m, dtype):
    odds = torch.cat([torch.linspace(-9, 9, m // 2), torch.zeros(m - m // 2)]).to(dtype)
    got = exact_half(odds, m // 3)
    assert got.dtype == dtype
    assert_doubly_stochastic(got, atol=1e-4, rtol=0)


@pytest.mark.parametrize("m", [40, 300])
def test_equal_odds_choose_every_element_alike(m):
    """Then each column is a hypergeometric distribution, twice."""
    lower = m // 4
    got = exact_half(torch.zeros(m, dtype=torch.float64), lower)
    share = torch.full((m,), lower / m, dtype=torch.float64)
    torch.testing.assert_close(got[:lower].sum(0), share)
    for element in (0, 3, m - 1):
        before = stats.hypergeom(m - 1, lower - 1, element)  # zeros before it, if it is one
        chances: Any = before
        want = torch.from_numpy(chances.pmf(range(lower))) * lower / m
        torch.testing.assert_close(got[:lower, element], want)


def test_many_certain_elements_keep_their_order():
    odds = torch.where(torch.arange(300) % 2 == 0, 110.0, -110.0)
    order = [*range(1, 300, 2), *range(0, 300, 2)]
    assert torch.equal(exact_half(odds, 150), torch.eye(300)[order])


@ways
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_halves_keep_the_dtype(way, dtype):
    odds = random_odds(7)
    got = way(odds.to(dtype), 3)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), way(odds, 3), atol=3e-2, rtol=0)


@exact_ways
@pytest.mark.parametrize(("m", "lower"), [(1, 0), (1, 1), (4, 0), (4, 2), (5, 2), (6, 5)])
def test_gradients_of_halves(way, m, lower):
    odds = random_odds(2, m).requires_grad_()
    assert gradcheck(lambda t: way(t, lower), odds)
    assert gradgradcheck(lambda t: way(t, lower), odds)


@pytest.mark.parametrize(("mode", "m"), [(torch.inference_mode, 10), (FakeTensorMode, 11)])
def test_halves_made_in_another_mode_do_not_spoil_later_ones(mode, m):
    """Tables are kept between calls; no other test has so many elements, of which one is low."""
    with mode():
        assert half(torch.zeros(2, m), 1).shape == (2, m, m)
    odds = torch.zeros(m, requires_grad=True)
    matrix = half(odds, 1)
    assert_doubly_stochastic(matrix)
    matrix.square().sum().backward()
    assert odds.grad is not None


# Rows.


@pytest.mark.parametrize(("bucket", "buckets"), [(2, 1), (4, 1), (6, 1), (8, 1), (2, 3), (4, 3)])
def test_rows_equal_a_loop_over_all_valid_vectors(bucket, buckets):
    valid = list(itertools.product(vectors(bucket, bucket // 2), repeat=buckets))
    ones = torch.tensor([sum(parts, ()) for parts in valid]).bool()
    want = [
        [row + bucket * number for number, part in enumerate(parts) for row in rows_of(part)]
        for parts in valid
    ]
    assert half_rows(ones.unsqueeze(0), bucket).tolist() == [want]


# Sampled ones.


@pytest.mark.parametrize(("n", "bucket"), [(2, 2), (4, 4), (6, 6), (4, 2), (6, 2), (8, 4)])
def test_all_samples_together_are_exact(n, bucket):
    """With several buckets too: their products of probabilities fall apart into factors."""
    odds = random_odds(3, n)
    got = sampled_half(odds, bucket, 1500, seeded(0))
    for one, its in zip(odds.unflatten(-1, (-1, bucket)), got, strict=True):
        want = torch.block_diag(*(half_by_loop(part, bucket // 2) for part in one))
        torch.testing.assert_close(its, want)


@pytest.mark.parametrize("samples", [0, 1, 2, 3, 8])
@given(seed=seeds)
def test_samples_are_some_vectors_each_counted_once(samples, seed):
    """And the vector that follows the odds is among them."""
    odds = random_odds(4, seed=seed)
    got = sampled_half(odds, 4, samples, seeded(seed))
    order = odds.argsort().tolist()
    best = tuple(int(i in order[2:]) for i in range(4))
    others = [vector for vector in vectors(4, 2) if vector != best]
    several = [
        mean_of(odds.tolist(), [best, *some])
        for count in range(min(samples, 5) + 1)
        for some in itertools.combinations(others, count)
    ]
    assert any(torch.allclose(got, want) for want in several)


@given(st.sampled_from([(2, 2), (8, 2), (8, 4), (12, 6), (16, 16)]), st.integers(0, 20), seeds)
def test_sampled_halves_are_doubly_stochastic(sizes, samples, seed):
    odds = 10 * random_odds(2, sizes[0], seed=seed)
    assert_doubly_stochastic(sampled_half(odds, sizes[1], samples, seeded(seed)))


def test_samples_differ_between_rows_and_repeat_with_their_generator():
    odds = torch.zeros(2, 16)
    first = sampled_half(odds, 16, 5, seeded(1))
    assert torch.equal(first, sampled_half(odds, 16, 5, seeded(1)))
    assert not torch.equal(first, sampled_half(odds, 16, 5, seeded(2)))
    assert not torch.equal(first[0], first[1])


def test_sampled_halves_of_certain_odds_are_finite():
    odds = torch.tensor([110.0, -110.0, 110.0, 110.0]).requires_grad_()
    got = sampled_half(odds, 4, 50)
    got.square().sum().backward()
    assert_doubly_stochastic(got)
    assert odds.grad is not None
    assert odds.grad.isfinite().all()


def test_gradients_of_sampled_halves():
    odds = random_odds(2, 8).requires_grad_()
    assert gradcheck(lambda t: sampled_half(t, 4, 6, seeded(0)), odds)
    assert gradgradcheck(lambda t: sampled_half(t, 4, 6, seeded(0)), odds)


# Odds.


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_odds_are_those_of_a_distribution(distribution):
    t = torch.cat([torch.linspace(-30, 30, 61), torch.tensor([-700.0, 1e-9, 700.0])]).double()
    law = LAWS[distribution]
    want = torch.from_numpy(law.logcdf(t.numpy()) - law.logsf(t.numpy()))
    torch.testing.assert_close(log_odds(t, distribution), want, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("distribution", ["student", "cauchy"])
def test_heavy_tails_fall_as_a_power_of_the_distance(distribution):
    """In float32 as in float64, and without end: what is far keeps a gradient."""
    t = torch.tensor([1e3, 1e6, 1e12, 1e17], requires_grad=True)
    power, factor = (2, 4.0) if distribution == "student" else (1, math.pi)
    odds = log_odds(t, distribution)
    want = power * t.detach().log() + math.log(factor)
    torch.testing.assert_close(odds.detach(), want, rtol=1e-3, atol=0)
    odds.sum().backward()
    torch.testing.assert_close(t.grad, power / t.detach(), rtol=1e-3, atol=0)
    torch.testing.assert_close(log_odds(-t, distribution), -odds)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_odds_are_always_finite(distribution, dtype):
    """From what is as good as infinite on they are certain, and what is no number is nothing."""
    numbers = [-math.inf, -torch.finfo(dtype).max, -3.0, math.nan, 0.0, 3.0, math.inf]
    t = torch.tensor(numbers, dtype=dtype, requires_grad=True)
    odds = log_odds(t, distribution)
    odds.sum().backward()
    assert odds.dtype == dtype
    assert odds.isfinite().all()
    assert odds[3] == odds[4] == 0
    assert torch.equal(odds[[0, 2]], -odds[[6, 5]])
    assert t.grad is not None
    assert t.grad.isfinite().all()
    assert (t.grad[[2, 4, 5]] > 0).all()


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_what_is_far_is_certain(distribution, dtype):
    odds = log_odds(
        torch.tensor([-math.inf, -CERTAIN_DISTANCE, CERTAIN_DISTANCE, math.inf], dtype=dtype),
        distribution,
    )
    assert torch.equal(half(odds, 2), torch.eye(4, dtype=dtype))
    assert (odds[:2].exp() == 0).all()


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_gradients_of_odds(distribution):
    t = torch.tensor([-40.0, -1.0, 0.0, 0.3, 7.0], dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda t: log_odds(t, distribution), t)
    assert gradgradcheck(lambda t: log_odds(t, distribution), t)


# Symmetric polynomials.


def symmetric_by_loop(
    odds: list[float], count: int, stay: list[bool], take: list[bool]
) -> tuple[float, list[float]]:
    """The sum over all allowed choices, and of each element over those it is a part of."""
    total, parts = 0.0, [0.0] * len(odds)
    for chosen in itertools.combinations(range(len(odds)), count):
        if all(take[i] if i in chosen else stay[i] for i in range(len(odds))):
            product = math.exp(sum(odds[i] for i in chosen))
            total += product
            for i in chosen:
                parts[i] += product
    return total, parts


@pytest.mark.parametrize("masks", ["none", "stay", "take", "both"])
@given(st.integers(0, 6).flatmap(lambda m: st.tuples(st.just(m), st.integers(0, m))), seeds)
def test_polynomials_equal_a_sum_over_all_choices(masks, sizes, seed):
    """Their gradient is the probability of each element to be chosen."""
    m, count = sizes
    odds = random_odds(m, seed=seed).requires_grad_()
    stay, take = torch.rand(2, m, generator=seeded(seed)) < 0.7
    given_stay = stay if masks in ("stay", "both") else None
    given_take = take if masks in ("take", "both") else None
    got = log_symmetric(odds, count, given_stay, given_take)
    every = [True] * m
    total, parts = symmetric_by_loop(
        odds.tolist(),
        count,
        every if given_stay is None else stay.tolist(),
        every if given_take is None else take.tolist(),
    )
    torch.testing.assert_close(got.exp().item(), total)
    (gradient,) = torch.autograd.grad(got + 0 * odds.sum(), odds)
    want = torch.tensor([part / (total or 1) for part in parts], dtype=torch.float64)
    torch.testing.assert_close(gradient, want)


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4, 1e30])
def test_polynomials_neither_overflow_nor_vanish(size):
    odds = size * torch.tensor([3.0, -1.0, 2.0, 0.0, -4.0])
    odds.requires_grad_()
    got = log_symmetric(odds, 3)
    got.backward()
    if size > 100:
        torch.testing.assert_close(got.detach(), odds.detach()[[0, 2, 3]].sum())
    assert odds.grad is not None
    torch.testing.assert_close(odds.grad.sum(), torch.tensor(3.0))


@pytest.mark.parametrize("count", range(5))
def test_gradients_of_polynomials(count):
    odds = random_odds(2, 4).requires_grad_()
    stay = torch.tensor([True, True, False, True])
    for given_stay in (None, stay.expand(2, 4)) if count else (None,):
        call: Callable[[Tensor], Tensor] = lambda t, s=given_stay: log_symmetric(t, count, s)  # noqa: E731
        assert gradcheck(call, odds)
        assert gradgradcheck(call, odds)


# Errors.

ODDS = torch.zeros(2, 4)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: half(ODDS, 5), "ValueError: lower must be 0 to 4, the number of elements; got 5"),
        (lambda: half(ODDS, -1), "ValueError: lower must be at least 0; got -1"),
        (lambda: enumerated_half(ODDS, 5), "ValueError: lower must be 0 to 4"),
        (lambda: exact_half(ODDS, 5), "ValueError: lower must be 0 to 4"),
        (lambda: exact_half(ODDS, cast(Any, 1.5)), "TypeError: lower must be an integer; got 1.5"),
        (lambda: half(ODDS.long(), 2), "TypeError: odds must have a floating-point dtype"),
        (lambda: exact_half(ODDS.long(), 2), "TypeError: odds must have a floating-point dtype"),
        (
            lambda: exact_half(torch.zeros(1001), 2),
            "ValueError: odds must be of at most 1000 elements; got 1001",
        ),
        (
            lambda: sampled_half(ODDS, 3, 2),
            "ValueError: bucket must be even and divide 4, the elements; got 3",
        ),
        (lambda: sampled_half(ODDS, 8, 2), "ValueError: bucket must be even and divide 4"),
        (lambda: sampled_half(ODDS, 0, 2), "ValueError: bucket must be at least 2; got 0"),
        (lambda: sampled_half(ODDS, 4, -1), "ValueError: samples must be at least 0; got -1"),
        (lambda: sampled_half(ODDS.long(), 4, 1), "TypeError: odds must have a floating-point"),
        (lambda: half_rows(ODDS > 0, 3), "ValueError: bucket must be even and divide 4"),
        (
            lambda: log_odds(ODDS, cast(Any, "gauss")),
            "ValueError: distribution must be one of 'student', 'logistic', 'cauchy'; got 'gauss'",
        ),
        (lambda: log_odds(ODDS.long()), "TypeError: distance must have a floating-point dtype"),
        (lambda: log_symmetric(ODDS, 5), "ValueError: count must be 0 to 4, the number of element"),
        (lambda: log_symmetric(ODDS, -1), "ValueError: count must be at least 0; got -1"),
        (lambda: log_symmetric(ODDS.long(), 1), "TypeError: odds must have a floating-point"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises((ValueError, TypeError, IndexError)) as info:
        call()
    assert re.match(message, f"{info.typename}: {info.value}")
