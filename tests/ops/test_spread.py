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
    pairs,
    random_indices,
    seeded,
    seeds,
    sizes_kept,
)
from torch import Tensor

from sparsewire.ops import mark_repeats, proportions, spread, spread_reference
from sparsewire.ops.density import DEGREES, DENSITIES
from sparsewire.ops.spread import _chunked

# Pairs in a chunk: one row of the table; part of a context; a few contexts together; everything.
CHUNKS = {"row by row": 1, "part of one": 150, "a few together": 5_000, "all at once": 2**40}

Engine = Callable[..., Tensor]

densities = pytest.mark.parametrize("density", DENSITIES)


@pytest.fixture(params=["reference", "as it comes", *CHUNKS])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The reference, what `spread` chooses, and chunks of every layout."""
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


def test_by_hand(engine):
    """Distances 0 and 1 with variance 1/2: shares 1 and 1/e. Halfway: equal shares."""
    got = engine(
        means=torch.tensor([[0.0], [0.5]]),
        variances=torch.full((2, 1), 0.5),
        values=torch.tensor([math.e + 1, 10.0]),
        indices=torch.tensor([[0], [1], [0]]),
        excluded=torch.tensor([False, False, True]),
    )
    torch.testing.assert_close(got, torch.tensor([math.e + 5, 1 + 5, 0]))


@pairs(
    shape=[
        ((), 63, 60, 2),
        ((), 1, 1, 1),
        ((), 7, 1, 3),
        ((), 1, 63, 2),
        ((5,), 7, 60, 1),
        ((2, 3), 5, 31, 4),
        ((3, 1), 3, 17, 6),
        ((0,), 3, 7, 2),
        ((2, 0), 3, 7, 2),
    ],
    repeats=[False, True],
    density=DENSITIES,
)
def test_every_engine_equals_the_reference(engine, shape, repeats, density):
    leaves, fixed = case(*shape, repeats=repeats, density=density, degrees=1.5)
    assert_same(run(engine, leaves, fixed), run(spread_reference, leaves, fixed))


@densities
def test_float32_is_close_to_the_exact_reference(engine, density):
    leaves, fixed = case((2,), 63, 600, 2, density=density)
    leaves = cast(leaves, torch.float32)
    exact = run(spread_reference, cast(leaves, torch.float64), fixed)
    got = run(engine, leaves, fixed)
    assert_same(got, cast(exact, torch.float32), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("k", "m"), [(0, 5), (3, 0), (0, 0)])
def test_nothing_to_spread_or_nowhere_to_go(engine, k, m):
    leaves, fixed = case((2,), k, m, 2)
    zeros = {"output": torch.zeros(2, m, dtype=torch.float64)}
    zeros |= {f"gradient of {name}": torch.zeros_like(leaves[name]) for name in leaves}
    assert_same(run(engine, leaves, fixed), zeros)


# Laws.


@densities
@pytest.mark.parametrize("prefix", [(), (3,), (2, 2)], ids=str)
def test_rows_of_proportions_sum_to_one(density, prefix):
    leaves, fixed = case(prefix, 7, 30, 2, density=density)
    del leaves["values"]
    table = proportions(**leaves, **fixed)
    assert (table >= 0).all()
    torch.testing.assert_close(table.sum(-1), torch.ones_like(table[..., 0]))
    assert (table.movedim(-1, -2)[fixed["excluded"]] == 0).all()


@densities
def test_the_sum_of_values_is_kept(engine, density):
    leaves, fixed = case((3,), 7, 30, 2, density=density)
    result = engine(**leaves, **fixed)
    torch.testing.assert_close(result.sum(-1), leaves["values"].sum(-1))
    assert (result[fixed["excluded"]] == 0).all()


@densities
def test_where_all_are_excluded_nothing_arrives_and_nothing_flows_back(engine, density):
    leaves, fixed = case((2,), 3, 5, 2, density=density)
    fixed["excluded"] = torch.tensor([[True] * 5, [False] * 5])
    for name, tensor in run(engine, leaves, fixed).items():
        assert (tensor[0] == 0).all(), name
        assert (tensor[1] != 0).any(), name


@densities
def test_excluded_tuples_are_as_good_as_absent(engine, density):
    leaves, fixed = case((), 7, 40, 1, density=density)
    kept = ~fixed["excluded"]
    without = engine(**leaves, indices=fixed["indices"][kept], density=density)
    torch.testing.assert_close(engine(**leaves, **fixed)[kept], without)


@densities
def test_order_does_not_matter(engine, density):
    leaves, fixed = case((), 7, 30, 2, density=density)
    sources, targets = torch.randperm(7), torch.randperm(30)
    shuffled = engine(
        **{name: tensor[sources] for name, tensor in leaves.items()},
        indices=fixed["indices"][targets],
        excluded=fixed["excluded"][targets],
        density=density,
    )
    torch.testing.assert_close(shuffled, engine(**leaves, **fixed)[targets])


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
@pytest.mark.parametrize("repeats", [False, True])
@pytest.mark.parametrize(("prefix", "k", "m", "r"), [((), 3, 7, 1), ((2,), 2, 4, 2)], ids=str)
def test_first_and_second_derivatives(engine, prefix, k, m, r, repeats, density):
    leaves, fixed = case(prefix, k, m, r, repeats, density=density)
    if repeats and prefix:
        fixed["excluded"][0] = True
    inputs = [tensor.requires_grad_() for tensor in leaves.values()]

    def function(*tensors: Tensor) -> Tensor:
        return engine(*tensors, **fixed)

    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("wanted", ["means", "variances", "values"])
def test_one_gradient_alone(engine, wanted):
    leaves, fixed = case((2,), 3, 7, 2)
    everything = run(engine, leaves, fixed)
    alone = run(engine, {wanted: leaves.pop(wanted)}, {**leaves, **fixed})
    assert_same(alone, {name: everything[name] for name in alone})


# Memory: not even a table of single bytes.


@densities
def test_no_table_is_made_or_kept(density):
    k, m, r = 256, 4096, 2
    leaves, fixed = case((), k, m, r, density=density)
    inputs = [tensor.float().requires_grad_() for tensor in leaves.values()]
    with LargestStorage() as largest, sizes_kept() as kept:
        spread(*inputs, **fixed).square().sum().backward()
    assert all(tensor.grad is not None for tensor in inputs)
    assert largest.bytes < k * m
    assert max(kept) <= m * r
    assert sum(kept) <= 5 * (m + k) * r


@densities
def test_the_second_derivative_makes_no_table(density):
    k, m, r = 256, 4096, 2
    leaves, fixed = case((), k, m, r, density=density)
    inputs = [tensor.float().requires_grad_() for tensor in leaves.values()]
    with LargestStorage() as largest:
        total = spread(*inputs, **fixed).square().sum()
        first = torch.autograd.grad(total, inputs, create_graph=True)
        torch.cat([gradient.flatten() for gradient in first]).square().sum().backward()
    assert all(tensor.grad is not None for tensor in inputs)
    assert largest.bytes < k * m


# Precision.


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_computed_in_float32(engine, dtype):
    leaves, fixed = case((2,), 7, 30, 2)
    halves = cast(leaves, dtype)
    got = run(engine, halves, fixed)
    want = run(engine, cast(halves, torch.float32), fixed)
    assert torch.equal(got.pop("output"), want.pop("output"))
    assert_same(got, cast(want, dtype), rtol=0, atol=0)


@pytest.mark.parametrize("wide", ["means", "values"])
def test_mixed_precision_is_computed_in_the_wider(engine, wide):
    leaves, fixed = case((2,), 7, 30, 2)
    leaves = {name: t if name == wide else t.float() for name, t in leaves.items()}
    got = engine(**leaves, **fixed)
    torch.testing.assert_close(got, spread_reference(**cast(leaves, torch.float64), **fixed))


def test_autocast_changes_nothing(engine):
    leaves, fixed = case((2,), 7, 30, 2)
    leaves = cast(leaves, torch.float32)
    want = run(engine, leaves, fixed)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = run(engine, leaves, fixed)
    assert_same(got, want, rtol=0, atol=0)


@densities
def test_third_derivatives(engine: Engine, density: str) -> None:
    """Each derivative of a nonlinear loss is differentiated again, up to the third."""

    def derivatives(call: Engine) -> dict[str, Tensor]:
        given, fixed = case((2,), 5, 23, 2, density=density)
        inputs = {name: tensor.requires_grad_() for name, tensor in given.items()}
        results, total = {}, call(**inputs, **fixed).square().sum()
        for order in ("first", "second", "third"):
            found = torch.autograd.grad(total, list(inputs.values()), create_graph=True)
            results |= {f"{order}, {n}": g for n, g in zip(inputs, found, strict=True)}
            total = sum((g.square().sum() for g in found), torch.zeros(()))
        return results

    assert_same(derivatives(engine), derivatives(spread_reference))
