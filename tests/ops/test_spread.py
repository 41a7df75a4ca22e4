import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.helpers import (
    LargestStorage,
    assert_same,
    by_engine,
    output_and_gradients,
    random_indices,
    seeded,
    seeds,
    sizes_kept,
)
from torch import Tensor

from sparsewire.ops import mark_repeats, proportions, sample, spread, spread_reference
from sparsewire.ops.density import DEGREES, DENSITIES
from sparsewire.ops.spread import _chunked, _grid

# Pairs in a chunk: one row of the table; part of a context; a few contexts together; everything.
CHUNKS = {"row by row": 1, "part of one": 150, "a few together": 5_000, "all at once": 2**40}

Engine = Callable[..., Tensor]

densities = pytest.mark.parametrize("density", DENSITIES)


@pytest.fixture(params=["reference", "grid", "as it comes", *CHUNKS])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The reference, the grid, what `spread` chooses, and chunks of every layout."""
    if request.param == "grid":
        return by_engine("grid", spread)
    if request.param not in CHUNKS:
        return spread_reference if request.param == "reference" else spread
    monkeypatch.setitem(_chunked._CHUNK_PAIRS, "cpu", CHUNKS[request.param])
    return by_engine("chunked", spread)


def tuples(*shape: int, seed: int = 0) -> dict[str, Any]:
    """Random continuous tuples in float64; `means` have this shape (*prefix, k, r)."""
    generator = seeded(seed)
    means, variances = torch.rand(2, *shape, dtype=torch.float64, generator=generator)
    values = torch.randn(shape[:-1], dtype=torch.float64, generator=generator)
    return {"means": means * 8, "variances": variances * 4 + 0.1, "values": values}


def case(
    prefix: tuple[int, ...], k: int, m: int, r: int, repeats: bool = True, **options: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Continuous tuples, and the fixed arguments: integer tuples on a 9^r grid, their repeats."""
    indices = random_indices(prefix, m, (9,) * r)
    excluded = mark_repeats(indices, (9,) * r) if repeats else None
    return tuples(*prefix, k, r), {"indices": indices, "excluded": excluded, **options}


def cast(tensors: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    return {name: tensor.to(dtype) for name, tensor in tensors.items()}


def run(engine: Engine, leaves: dict[str, Any], fixed: dict[str, Any]) -> dict[str, Tensor]:
    """Output and every gradient, by name."""
    return output_and_gradients(lambda **inputs: engine(**inputs, **fixed), leaves)


def assert_finite(tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        assert tensor.isfinite().all(), name


# The definition.


def densities_by_scipy(
    leaves: dict[str, Any], indices: Tensor, density: str, degrees: Any
) -> Tensor:
    """The table of densities p_ij of one context, pair by pair."""
    rows = []
    for mean, variance in zip(leaves["means"].numpy(), leaves["variances"].numpy(), strict=True):
        if density == "gaussian":
            law = stats.multivariate_normal(mean, variance)
        else:
            law = stats.multivariate_t(mean, variance * torch.eye(len(mean)).numpy(), degrees)
        rows.append([float(law.pdf(point)) for point in indices.double().numpy()])
    return torch.tensor(rows, dtype=torch.float64)


@densities
@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize(("k", "m", "r"), [(1, 1, 1), (4, 9, 1), (5, 13, 2), (3, 20, 4)])
def test_reference_follows_the_definition(density, repeats, k, m, r):
    leaves, fixed = case((), k, m, r, repeats, density=density, degrees=2.5)
    table = densities_by_scipy(leaves, fixed["indices"], density, 2.5)
    if repeats:
        table[:, fixed["excluded"]] = 0
    table /= table.sum(-1, keepdim=True)
    torch.testing.assert_close(spread_reference(**leaves, **fixed), leaves["values"] @ table)
    del leaves["values"]
    torch.testing.assert_close(proportions(**leaves, **fixed), table)


# Limits.


def test_vanishing_variance_gives_everything_to_the_nearest(engine):
    leaves = tuples(20, 2)
    leaves["variances"].fill_(1e-30)
    grid = torch.cartesian_prod(torch.arange(9), torch.arange(9))
    expected = torch.zeros(9, 9, dtype=torch.float64)
    columns = leaves["means"].round().long().unbind(-1)
    expected.index_put_(columns, leaves["values"], accumulate=True)
    torch.testing.assert_close(engine(**leaves, indices=grid), expected.flatten())


def test_vanishing_variance_leaves_student_a_power_law(engine):
    """Heavy tails have no scale: shares become distance^−(ν + r), and nothing is rounded."""
    leaves, fixed = case((), 5, 30, 2, density="student", degrees=3.0)
    leaves["variances"].fill_(1e-30)
    table = torch.cdist(leaves["means"], fixed["indices"].double()).pow(-5) * ~fixed["excluded"]
    expected = leaves["values"] @ (table / table.sum(-1, keepdim=True))
    torch.testing.assert_close(engine(**leaves, **fixed), expected)


@densities
def test_wide_variance_gives_everyone_the_same(engine, density):
    leaves, fixed = case((), 5, 30, 2, density=density)
    leaves["variances"].fill_(1e30)
    kept = ~fixed["excluded"]
    share = leaves["values"].sum() / kept.sum()
    torch.testing.assert_close(engine(**leaves, **fixed), share * kept)


def test_many_degrees_of_freedom_make_a_gaussian(engine):
    leaves, fixed = case((2,), 5, 30, 2)
    student = engine(**leaves, **fixed, density="student", degrees=DEGREES[1])
    torch.testing.assert_close(student, engine(**leaves, **fixed), rtol=1e-4, atol=1e-4)


# However far.

magnitudes = st.sampled_from([1e-30, 1e-10, 1.0, 1e3, 1e10, 1e30])
signs = st.sampled_from([-1.0, 0.0, 1.0])
signed = st.tuples(signs, magnitudes).map(math.prod)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@densities
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    means=st.lists(signed, min_size=6, max_size=6),
    variances=st.lists(magnitudes, min_size=6, max_size=6),
    excluded=st.lists(st.booleans(), min_size=4, max_size=4),
    seed=seeds,
)
def test_finite_for_every_finite_input(engine, dtype, density, means, variances, excluded, seed):
    leaves = cast(tuples(3, 2, seed=seed), dtype)
    leaves["means"] = torch.tensor(means, dtype=dtype).view(3, 2)
    leaves["variances"] = torch.tensor(variances, dtype=dtype).view(3, 2)
    indices, hidden = random_indices((), 4, (2**24, 9), seed), torch.tensor(excluded)
    result = run(engine, leaves, {"indices": indices, "excluded": hidden, "density": density})
    assert_finite(result)
    expected = leaves["values"].sum() * ~hidden.all()
    torch.testing.assert_close(result["output"].sum(), expected)


@densities
@pytest.mark.parametrize("variance", [1e20, 1e30, 3e38])
def test_gradients_of_far_means_with_wide_variances_are_finite(engine, variance, density):
    """With grad_output so large that a gradient of the precision, ~1e36, would overflow."""
    generator = seeded(0)
    means, variances = torch.rand(2, 4, 2, generator=generator)
    leaves = means * 1e18, variances * variance, torch.randn(4, generator=generator)
    inputs = [tensor.requires_grad_() for tensor in leaves]
    weights = torch.randn(9, generator=generator) * 1e6
    indices = random_indices((), 9, (2**24, 2**24))
    for degrees in (1.0, DEGREES[1]):
        output = engine(*inputs, indices, density=density, degrees=degrees)
        first = torch.autograd.grad((output * weights).sum(), inputs, create_graph=True)
        total = torch.stack([gradient.sum() for gradient in first]).sum()
        second = torch.autograd.grad(total, inputs)
        assert_finite({str(i): tensor for i, tensor in enumerate((output, *first, *second))})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("degrees", [DEGREES[0], 1e-3, 1e3, DEGREES[1]])
def test_finite_for_every_degree_of_freedom(engine, dtype, degrees):
    leaves, fixed = case((), 3, 9, 2, density="student", degrees=degrees)
    leaves = cast(leaves, dtype)
    leaves["means"][0] = 1e30
    leaves["variances"][0] = 1e-30
    leaves["means"][1] = fixed["indices"][0]
    result = run(engine, leaves, fixed)
    assert_finite(result)
    torch.testing.assert_close(result["output"].sum(), leaves["values"].sum())


# Derivatives.


@densities
def test_first_and_second_derivatives(density):
    """Of the reference, with which all derivatives of the engines are compared."""
    leaves, fixed = case((2,), 2, 4, 2, density=density)
    fixed["excluded"][0] = True
    inputs = [tensor.requires_grad_() for tensor in leaves.values()]

    def function(means: Tensor, variances: Tensor, values: Tensor) -> Tensor:
        return spread_reference(means, variances, values, **fixed)

    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


# The grid.


@pytest.mark.parametrize("shape", [(300,), (28, 28), (7, 1, 12, 9)], ids=str)
@pytest.mark.parametrize("width", [0.2, 1e-4], ids=["initial", "sharp"])
def test_the_grid_in_float32_equals_the_reference_in_float64(monkeypatch, shape, width):
    """For wide and for sharp densities, of which most vanish in float32; in parts and at once."""
    c, k = 3, 40
    sizes = torch.tensor(shape)
    leaves = tuples(c, k, len(shape))
    leaves["means"] = leaves["means"] / 8 * (sizes - 1)
    leaves["variances"] = (sizes * width + 0.1).expand(c, k, -1)
    leaves = cast(cast(leaves, torch.float32), torch.float64)
    indices = sample(leaves["means"], shape, [1] * len(shape), 2, 8, seeded(4))
    fixed = {"indices": indices, "excluded": mark_repeats(indices, shape)}
    want = cast(run(spread_reference, leaves, fixed), torch.float32)
    spied = []
    monkeypatch.setattr(_chunked.ChunkedSpread, "forward", staticmethod(spied.append))
    for size in (2**30, 1000):
        monkeypatch.setattr(_grid, "_CHUNK_ELEMENTS", size)
        got = run(by_engine("grid", spread), cast(leaves, torch.float32), fixed)
        assert_same(got, want, rtol=2e-4, atol=2e-5)
    assert not spied


def test_a_tuple_with_nothing_near_is_computed_without_the_grid():
    leaves, fixed = case((2,), 12, 40, 2)
    leaves["variances"][1, 3] = 1e-3
    near = (fixed["indices"][1] - leaves["means"][1, 3]).abs().amax(-1) < 1.5
    fixed["excluded"][1] |= near
    want = run(spread_reference, leaves, fixed)
    assert_same(run(by_engine("grid", spread), leaves, fixed), want)


# Memory: not even a table of single bytes.

without_tables = pytest.mark.parametrize(
    ("density", "name"), [("gaussian", "auto"), *((density, "chunked") for density in DENSITIES)]
)


@without_tables
def test_no_table_is_made_or_kept(density, name):
    k, m, r = 512, 4096, 2
    leaves, fixed = case((), k, m, r, density=density)
    inputs = [tensor.float().requires_grad_() for tensor in leaves.values()]
    with LargestStorage() as largest, sizes_kept() as kept:
        by_engine(name, spread)(*inputs, **fixed).square().sum().backward()
    assert all(tensor.grad is not None for tensor in inputs)
    assert largest.bytes < k * m
    assert max(kept) <= m * r
    assert sum(kept) <= 5 * (m + k) * r


@without_tables
def test_the_second_derivative_makes_no_table(density, name):
    k, m, r = 512, 4096, 2
    leaves, fixed = case((), k, m, r, density=density)
    inputs = [tensor.float().requires_grad_() for tensor in leaves.values()]
    with LargestStorage() as largest:
        total = by_engine(name, spread)(*inputs, **fixed).square().sum()
        first = torch.autograd.grad(total, inputs, create_graph=True)
        torch.cat([gradient.flatten() for gradient in first]).square().sum().backward()
    assert all(tensor.grad is not None for tensor in inputs)
    assert largest.bytes < k * m


# Precision.


def test_autocast_changes_nothing(engine):
    leaves, fixed = case((2,), 7, 30, 2)
    leaves = cast(leaves, torch.float32)
    want = run(engine, leaves, fixed)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = run(engine, leaves, fixed)
    assert_same(got, want, rtol=0, atol=0)
