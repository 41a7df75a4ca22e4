"""Soft sorting of every shape and dtype, of what is infinite, and under torch's transforms."""

import itertools
import math
import re
import subprocess
import sys
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import DTYPES, prefixes, seeded, seeds
from torch import Tensor
from torch.func import grad, jacrev, vmap

from sparsewire.sorting import (
    soft_median,
    soft_permutation,
    soft_quantile,
    soft_rank,
    soft_sort,
    soft_topk,
    sort_by,
)

INF = math.inf
SHAPES = [(5,), (3, 4), (2, 3, 5), (1, 1), (4, 0), (0, 4), (0,), ()]
# Like torch's own, along a dimension.
ALONG: dict[str, Any] = {
    "sort": soft_sort,
    "rank": soft_rank,
    "topk": lambda x, dim=-1, **options: soft_topk(x, min(2, x.shape[dim]), dim, **options).values,
    "quantile": lambda x, dim=-1, **options: soft_quantile(x, 0.3, dim, True, **options),
    "median": lambda x, dim=-1, **options: soft_median(x, dim, True, **options),
}
EVERY: dict[str, Any] = {
    **ALONG,
    "permutation": soft_permutation,
    "sort_by": lambda x, **options: sort_by(x, x.detach().cos().unsqueeze(-1), **options),
}

along = pytest.mark.parametrize("function", ALONG.values(), ids=ALONG.keys())
every = pytest.mark.parametrize("function", EVERY.values(), ids=EVERY.keys())


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=seeded(seed))


# Shapes.


@along
@pytest.mark.parametrize("dim", range(-3, 3))
def test_any_dimension_is_sorted(function, dim):
    x = numbers(2, 5, 3)
    want = function(x.movedim(dim, -1)).movedim(-1, dim)
    torch.testing.assert_close(function(x, dim=dim), want)


@pytest.mark.parametrize("dim", [-2, -1, 0, 1])
def test_the_places_and_elements_of_a_permutation_come_last(dim):
    x = numbers(3, 4)
    want = soft_permutation(x.movedim(dim, -1))
    torch.testing.assert_close(soft_permutation(x, dim), want)


@every
def test_every_row_is_sorted_for_itself(function):
    x = numbers(2, 3, 7)
    got = function(x)
    for i, j in itertools.product(range(2), range(3)):
        row = x[i : i + 1, j : j + 1]
        torch.testing.assert_close(got[i : i + 1, j : j + 1], function(row))


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes_are_those_of_torch(shape):
    x = torch.randn(shape)
    n = shape[-1] if shape else 1
    assert soft_sort(x).shape == soft_rank(x).shape == x.sort().values.shape
    assert soft_permutation(x).shape == (*shape[:-1], n, n)
    k = min(n, 2)
    for ours, theirs in zip(soft_topk(x, k), x.topk(k), strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
    if x.numel():
        for keepdim in (False, True):
            for q in (0.3, [0.1, 0.5, 0.9]):
                got = soft_quantile(x, q, keepdim=keepdim)
                want = x.quantile(torch.tensor(q), dim=-1, keepdim=keepdim)
                assert got.shape == want.shape
            assert soft_median(x, keepdim=keepdim).shape == x.median(-1, keepdim).values.shape


@every
@pytest.mark.parametrize("temperature", [None, 0.0, 3.0])
def test_one_element_stays_itself(function, temperature):
    x = torch.tensor([[3.0], [-2.0]], requires_grad=True)
    got = function(x, temperature=temperature)
    assert torch.equal(got, function(x, temperature=0.0))
    got.sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("hard", [False, True])
def test_nothing_at_all_can_be_sorted(hard):
    x = torch.zeros(3, 0, requires_grad=True)
    for result in (soft_sort(x, hard=hard), soft_rank(x, hard=hard)):
        assert result.shape == (3, 0)
    assert soft_permutation(x, hard=hard).shape == (3, 0, 0)
    assert sort_by(x, torch.zeros(3, 0, 2), hard=hard).shape == (3, 0, 2)
    assert soft_topk(x, 0, hard=hard).values.shape == (3, 0)
    soft_sort(x, hard=hard).sum().backward()
    assert x.grad is not None


@given(prefixes, st.integers(0, 9), st.lists(st.integers(0, 3), max_size=3).map(tuple), seeds)
def test_a_payload_may_have_any_further_dimensions(prefix, n, features, seed):
    keys, payload = numbers(*prefix, n, seed=seed), numbers(*prefix, n, *features, seed=seed)
    got = sort_by(keys, payload)
    assert got.shape == payload.shape
    flat = payload.reshape(*prefix, n, math.prod(features))
    want = (soft_permutation(keys) @ flat).reshape(payload.shape)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("kind", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_payloads_keep_their_dtype_whatever_that_of_the_keys_is(dtype, kind):
    keys, payload = numbers(6).to(dtype), numbers(6, 2, seed=1).to(kind)
    for hard in (False, True):
        got = sort_by(keys, payload, hard=hard)
        assert got.dtype == kind
        want = sort_by(keys.double(), payload.double(), hard=hard)
        torch.testing.assert_close(got.double(), want, atol=2e-2, rtol=0)


def test_things_that_are_views_are_sorted():
    x = numbers(5, 8).T[::2]
    torch.testing.assert_close(soft_sort(x), soft_sort(x.contiguous()))
    payload = numbers(3, 5, 4).permute(2, 1, 0)
    torch.testing.assert_close(sort_by(x, payload), sort_by(x, payload.contiguous()))


def test_each_row_may_have_its_own_temperature():
    x, heat = numbers(2, 3, 6), torch.rand(2, 3, dtype=torch.float64) + 0.1
    got = soft_permutation(x, temperature=heat)
    for i, j in itertools.product(range(2), range(3)):
        want = soft_permutation(x[i, j], temperature=heat[i, j].item())
        torch.testing.assert_close(got[i, j], want)
    torch.testing.assert_close(
        soft_sort(x, temperature=heat[0, 0]), soft_sort(x, temperature=heat[0, 0].item())
    )


# Quantiles.


@pytest.mark.parametrize("q", [0.0, 1 / 3, 0.5, 0.77, 1.0])
@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_quantiles_lie_between_neighbours_in_the_soft_order(n, q):
    x = numbers(3, n)
    ordered = soft_sort(x)
    low, part = int(q * (n - 1)), q * (n - 1) % 1
    want = ordered[:, low] * (1 - part) + ordered[:, min(low + 1, n - 1)] * part
    torch.testing.assert_close(soft_quantile(x, q), want)


def test_the_median_is_the_middle():
    x = torch.tensor([5.0, 1.0, 4.0, 2.0, 9.0])
    ordered = soft_sort(x)
    torch.testing.assert_close(soft_median(x), ordered[2])
    torch.testing.assert_close(soft_median(x[:4]), soft_sort(x[:4])[1:3].mean())


@pytest.mark.parametrize("temperature", [0.0, None])
def test_quantiles_beside_infinity_are_numbers(temperature):
    """Where they are elements, and not between two of them, as torch has it."""
    x = torch.tensor([1.0, 2.0, INF])
    ordered = soft_sort(x, temperature=temperature)
    for q in (0.0, 0.5):
        got = soft_quantile(x, q, temperature=temperature)
        assert torch.equal(got, ordered[int(2 * q)])
    torch.testing.assert_close(soft_median(-x, temperature=temperature), -ordered[1])


# Dtypes.


@every
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_computed_in_float32(function, dtype):
    """Values and gradients; quantiles are a mean of two results."""
    x = numbers(2, 9).to(dtype)
    weights = numbers(*function(x).shape, seed=1).to(dtype)
    results = []
    for kind in (dtype, torch.float32):
        leaf = x.to(kind).requires_grad_()
        result = function(leaf)
        assert result.dtype == kind
        results.append((result, torch.autograd.grad(result, leaf, weights.to(kind))[0]))
    (value, slope), (want, steep) = results
    torch.testing.assert_close(value, want.to(dtype), rtol=2 * torch.finfo(dtype).eps, atol=0)
    largest = float(steep.abs().max())
    torch.testing.assert_close(
        slope, steep.to(dtype), rtol=0, atol=2 * torch.finfo(dtype).eps * largest
    )


@every
def test_float64_is_computed_in_float64(function):
    x = numbers(2, 9)
    got, rough = function(x), function(x.float())
    assert got.dtype == torch.float64
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough.double(), got, atol=1e-4, rtol=1e-4)
    assert not torch.equal(rough.double(), got)


@every
def test_autocast_changes_nothing(function):
    x = numbers(2, 9).float()
    want = function(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = function(x)
    assert torch.equal(got, want)


@pytest.mark.parametrize("n", [4, 5, 100])
@pytest.mark.parametrize("scale", [1e-30, 1e20, 1e30])
def test_the_range_of_float32_is_sorted(n, scale):
    x = numbers(n).float()
    torch.testing.assert_close(soft_rank(x * scale), soft_rank(x), atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(soft_sort(x * scale) / scale, soft_sort(x), atol=1e-3, rtol=1e-4)


# What is infinite.


@given(
    st.lists(st.sampled_from([-INF, INF, 0.0, 1.0, -2.5]) | st.floats(-3, 3), max_size=12),
    st.booleans(),
    st.sampled_from([1.0, None, 0.0]),
)
def test_infinite_elements_lie_at_the_ends(values, descending, temperature):
    """The others are sorted as if they were not there, as far as they are whole buckets."""
    x = torch.tensor(values, dtype=torch.float64)
    got = soft_sort(x, descending=descending, temperature=temperature)
    want = x.sort(descending=descending).values
    assert torch.equal(got.isinf(), want.isinf())
    assert torch.equal(got[got.isinf()], want[want.isinf()])
    torch.testing.assert_close(got[got.isfinite()].sum(), x[x.isfinite()].sum())
    p = soft_permutation(x, descending=descending, temperature=temperature)
    torch.testing.assert_close(p.sum(0), torch.ones_like(x))
    torch.testing.assert_close(p.sum(1), torch.ones_like(x))
    places = p[want.isfinite()]
    assert (places[:, x.isinf()] == 0).all()


@pytest.mark.parametrize("temperature", [None, 1e-30, 1e-6, 1.0])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e10, 1e30])
def test_infinity_is_far_from_every_number(scale, temperature):
    x = torch.tensor([scale, INF, -INF])
    got = soft_sort(x, temperature=temperature)
    assert torch.equal(got, torch.tensor([-INF, scale, INF]))
    assert torch.equal(soft_rank(x, temperature=temperature), torch.tensor([1.0, 2.0, 0.0]))


def test_infinite_elements_have_no_part_in_the_temperature():
    x = torch.tensor([4.0, 1.0, 3.0, 2.0])
    with_ends = torch.cat([x, torch.tensor([INF, INF, INF, INF])])
    got = soft_permutation(with_ends, temperature=0.5)
    torch.testing.assert_close(got[:4, :4], soft_permutation(x, temperature=0.5))
    assert soft_sort(with_ends)[:4].isfinite().all()


# Transforms.


@every
@pytest.mark.parametrize("n", [5, 8])
def test_transforms_agree_with_batches_and_autograd(function, n):
    x = numbers(3, n)
    torch.testing.assert_close(vmap(function)(x), function(x))
    leaf = x.clone().requires_grad_()
    (want,) = torch.autograd.grad(function(leaf).square().sum(), leaf)
    torch.testing.assert_close(vmap(grad(lambda t: function(t).square().sum()))(x), want)
    want = torch.autograd.functional.jacobian(lambda t: function(t, temperature=0.5), x[0])
    torch.testing.assert_close(jacrev(lambda t: function(t, temperature=0.5))(x[0]), want)


def test_second_derivatives_by_transforms():
    x = numbers(5)

    def total(t: Tensor) -> Tensor:
        return (soft_sort(t, temperature=0.5) * soft_rank(t, temperature=0.5)).sum()

    want = torch.autograd.functional.hessian(total, x)
    torch.testing.assert_close(jacrev(grad(total))(x), want)


# In a process of its own: the checks of annotations that tests run with cannot be compiled.
COMPILED = """
import torch
import sparsewire as sw

torch.manual_seed(0)
x = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
by = lambda x: sw.sort_by(x, x.detach().cos().unsqueeze(-1))
for backend, function in (
    ("eager", sw.soft_sort),
    ("eager", sw.soft_rank),
    ("eager", sw.soft_permutation),
    ("aot_eager", by),
    ("eager", lambda x: sw.soft_topk(x, 2, hard=True).values),
    ("eager", lambda x: sw.soft_quantile(x, [0.2, 0.7], dim=0)),
    ("aot_eager", lambda x: sw.order_loss(x, x.detach().cos().round())),
):
    results = []
    for each in (torch.compile(function, backend=backend, fullgraph=True), function):
        y = each(x)
        weights = torch.arange(y.numel()).view(y.shape).double().cos()
        results.append((y, torch.autograd.grad(y, x, weights)[0]))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)
"""


def test_compiled_functions_do_the_same_without_a_warning():
    """But for what torch warns of itself."""
    ours = ["-W", "error::UserWarning"]
    result = subprocess.run(
        [sys.executable, *ours, "-c", COMPILED], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]


def test_shapes_are_known_without_numbers():
    x = torch.empty(2, 7, device="meta")
    shapes = [soft_sort(x).shape, soft_rank(x).shape, soft_permutation(x).shape]
    assert shapes == [(2, 7), (2, 7), (2, 7, 7)]


# Errors.

X = torch.zeros(2, 4)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: soft_sort(X.long()), "TypeError: x must have a floating-point dtype; got torch"),
        (lambda: soft_rank(X.int()), "TypeError: x must have a floating-point dtype; got torch"),
        (lambda: soft_permutation(X.bool()), "TypeError: x must have a floating-point dtype"),
        (lambda: soft_topk(X.long(), 2), "TypeError: x must have a floating-point dtype"),
        (lambda: soft_median(X.long()), "TypeError: x must have a floating-point dtype"),
        (lambda: sort_by(X.long(), X), "TypeError: keys must have a floating-point dtype"),
        (lambda: sort_by(X, X.long()), "TypeError: payload must have a floating-point dtype"),
        (lambda: soft_sort([1.0]), "TypeError: x must be a tensor; got list"),  # pyright: ignore
        (lambda: soft_sort(X, 2), r"IndexError: dim must be a dimension of x, \(2, 4\); got 2"),
        (lambda: soft_rank(X, -3), r"IndexError: dim must be a dimension of x, \(2, 4\); got -3"),
        (lambda: soft_sort(torch.tensor(1.0), 1), r"IndexError: dim must be a dimension of x"),
        (
            lambda: sort_by(X, torch.zeros(2, 3)),
            r"ValueError: payload must begin with the shape of keys, \(2, 4\); got \(2, 3\)",
        ),
        (lambda: sort_by(X, X[0]), r"ValueError: payload must begin with the shape of keys"),
        (
            lambda: sort_by(X, X.to("meta")),
            "ValueError: keys, payload must be on one device; got keys on cpu, payload on meta",
        ),
        (lambda: soft_topk(X, 5), "ValueError: k must be 0 to 4, the elements of the dimension"),
        (lambda: soft_topk(X, -1), "ValueError: k must be at least 0; got -1"),
        (lambda: soft_quantile(X, 1.5), "ValueError: q must be between 0 and 1; got 1.5"),
        (lambda: soft_quantile(X, [0.5, -1.0]), "ValueError: q must be between 0 and 1; got -1.0"),
        (lambda: soft_median(X[:, :0]), "ValueError: x must have an element in the dimension"),
        (lambda: soft_sort(X, reach=0), "ValueError: reach must be at least 1; got 0"),
        (
            lambda: soft_sort(X, temperature=-1.0),
            "ValueError: temperature must be between 0 and inf; got -1.0",
        ),
        (lambda: soft_sort(X, temperature=math.nan), "ValueError: temperature must be between"),
        (
            lambda: soft_sort(X, temperature=torch.ones((), dtype=torch.int64)),
            "TypeError: temperature must have a floating-point dtype",
        ),
        (
            lambda: soft_sort(X, distribution=cast(Any, "gauss")),
            "ValueError: distribution must be one of 'student', 'logistic', 'cauchy'; got 'gauss'",
        ),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises((ValueError, TypeError, IndexError)) as info:
        call()
    assert re.match(message, f"{info.typename}: {info.value}")
