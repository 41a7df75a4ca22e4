"""The kernels of `spread` against the reference in float64: output and every gradient, by name."""

import math
from typing import Any

import pytest
import torch
from tests.helpers import output_and_gradients, pairs, seeded, sizes_kept
from tests.kernels.compare import (
    assert_near,
    assert_within,
    by_kernels,
    cast,
    dtypes,
    exactly,
    random_tuples,
)
from torch import Tensor

import sparsewire as sw
from sparsewire.ops import mark_repeats, proportions, spread, spread_reference
from sparsewire.ops.density import DEGREES, DENSITIES, Kind, tame
from sparsewire.ops.spread._triton import launch as kernels

densities = pytest.mark.parametrize("density", DENSITIES)
in_each_dtype = pytest.mark.parametrize("dtype", dtypes, ids=str)

Leaves = dict[str, Any]
Case = tuple[Leaves, dict[str, Any]]


def case(prefix: tuple[int, ...], k: int, m: int, r: int, **options: Any) -> Case:
    """Continuous tuples in float64, and integer tuples on a 9^r grid with their repeats marked."""
    generator = seeded(k + m)
    means, variances = torch.rand(2, *prefix, k, r, dtype=torch.float64, generator=generator)
    values = torch.randn(*prefix, k, dtype=torch.float64, generator=generator)
    leaves = {"means": means * 8, "variances": variances * 4 + 0.1, "values": values}
    indices = random_tuples(prefix, m, (9,) * r)
    return leaves, {"indices": indices, "excluded": mark_repeats(indices, (9,) * r), **options}


def compare(
    leaves: Leaves,
    fixed: dict[str, Any],
    device: str,
    dtype: torch.dtype = torch.float64,
    tolerance: float | None = None,
) -> dict[str, Tensor]:
    """Hold the kernels against the reference; return what they gave."""
    leaves = cast(leaves, dtype)
    got = by_kernels(spread, leaves, device, **fixed)
    assert_near(got, exactly(spread_reference, leaves, **fixed), tolerance)
    return got


def scales(leaves: Leaves, fixed: dict[str, Any]) -> dict[str, Tensor]:
    """By name, the sum of the sizes of all terms: rounding is relative to this.

    Gradients are differences of such terms, which far away are large and nearly equal.
    """
    means, variances = (t.double() for t in tame(leaves["means"], leaves["variances"]))
    table = proportions(
        leaves["means"], leaves["variances"], **{n: t for n, t in fixed.items() if n != "tolerance"}
    ).double()
    values = leaves["values"].double().abs().unsqueeze(-1)
    weights = torch.randn(fixed["indices"].shape[:-1], dtype=torch.float64, generator=seeded(1))
    step = fixed["indices"].unsqueeze(-3) - means.unsqueeze(-2)
    pull = (step / variances.unsqueeze(-2)).abs()
    kind = Kind(fixed.get("density", "gaussian"), fixed.get("degrees", 1.0), means.shape[-1])
    slope = kind.slope((step * pull).abs().sum(-1))
    received = table * weights.abs().unsqueeze(-2)
    moved = received + table * received.sum(-1, keepdim=True)
    moved = (moved * values * (1 if slope is None else slope)).unsqueeze(-1)
    return {
        "output": (values * table).sum(-2),
        "gradient of means": (moved * pull).sum(-2),
        "gradient of variances": (moved * pull.square()).sum(-2) / 2,
        "gradient of values": received.sum(-1),
    }


def compare_terms(
    leaves: Leaves, fixed: dict[str, Any], device: str, dtype: torch.dtype, share: float
) -> None:
    """Hold the kernels against the reference in the same dtype, relative to the terms they add."""
    leaves = cast(leaves, dtype)
    got = by_kernels(spread, leaves, device, **fixed)
    want = output_and_gradients(lambda **t: spread_reference(**t, **fixed), leaves)
    assert_within(got, want, scales(leaves, fixed), share)


# Excluded tuples.


def test_hidden_tuples_take_no_share_of_heavy_tails(device):
    """However far the only tuple that is left: it gets the whole value."""
    leaves = {"means": [[1000.0]], "variances": [[1e-12]], "values": [1.0]}
    leaves = {name: torch.tensor(numbers) for name, numbers in leaves.items()}
    fixed = {"indices": torch.tensor([[0], [1]]), "excluded": torch.tensor([False, True])}
    got = by_kernels(spread, leaves, device, **fixed, density="student", degrees=DEGREES[0])
    torch.testing.assert_close(got["output"], torch.tensor([1.0, 0.0]))


# What runs how: the points in parts, the rows in parts.


@pytest.mark.parametrize(
    ("programs", "dtype"),
    [(1, torch.float32), (4, torch.float64), (6, torch.float32), (1024, torch.float64)],
)
def test_the_points_in_parts(programs, dtype, device, monkeypatch):
    """Two tiles of rows by five of points: in 1, 2, 3 and 5 parts, not all alike."""
    monkeypatch.setattr(kernels, "_PROGRAMS", programs)
    leaves, fixed = case((), 21, 260, 2)
    compare(leaves, fixed, device, dtype)


@densities
def test_the_rows_in_parts(density, device):
    """Seventeen tiles of rows, dealt out in parts of eight and nine."""
    leaves, fixed = case((), 131, 19, 4, density=density)
    plan = kernels.Plan.of(1, 131, 19, 4, kernels.Kind(density, 1.0, 4), 0.0)
    assert (plan.row_tiles, plan.row_parts) == (17, 2)
    compare(leaves, fixed, device)


# However far.


def rows_at(distances: Tensor, variance: float) -> Case:
    """Rows of the table so far to one side of some points, and beside them in the other column."""
    indices = torch.cartesian_prod(torch.arange(2), torch.arange(11)).repeat(2, 1)
    excluded = torch.arange(len(indices)) >= 19
    beside = torch.rand(len(distances), dtype=torch.float64, generator=seeded(0)) * 10
    means = torch.stack([-distances.double(), beside], -1)
    values = torch.randn(len(means), dtype=torch.float64, generator=seeded(1))
    leaves = {"means": means, "variances": torch.full_like(means, variance), "values": values}
    return leaves, {"indices": indices, "excluded": excluded}


@in_each_dtype
def test_rows_near_and_far_in_one_tile(dtype, device):
    """Far rows need the largest logarithm subtracted, near ones have a sum that does without.

    In steps past 2^−80, where the one becomes the other, and past all that the dtype can hold.
    """
    leaves, fixed = rows_at(torch.arange(0, 66, 2), 1.0)
    assert exactly(spread_reference, leaves, **fixed)["gradient of means"][:, 1].abs().min() > 1e-3
    compare_terms(leaves, fixed, device, dtype, 2e-3 if dtype == torch.float32 else 1e-11)


@in_each_dtype
def test_all_rows_far(dtype, device):
    leaves, fixed = rows_at(torch.linspace(60, 90, 21), 1.0)
    compare_terms(leaves, fixed, device, dtype, 2e-3 if dtype == torch.float32 else 1e-11)


@pairs(
    mean=[1e18, -1e18, 1e25, -3e38],
    variance=[1e-30, 1.0, 1e30],
    dtype=dtypes,
    density=[("gaussian", 1.0), *(("student", degrees) for degrees in (1.0, *DEGREES))],
)
def test_absurd_means_and_variances(variance, mean, dtype, density, device):
    """Beside ordinary ones. Against the reference in the same dtype, which ends them alike."""
    leaves, fixed = case((), 5, 19, 2, density=density[0], degrees=density[1])
    leaves["means"][0] = mean
    leaves["means"][1, 1] = mean
    leaves["variances"][:4] = variance
    leaves["variances"][2, 0] = 1.0
    compare_terms(leaves, fixed, device, dtype, 1e-5 if dtype == torch.float32 else 1e-12)


# What is not a number.


@densities
@pytest.mark.parametrize("bad", ["means", "variances", "values"])
def test_nan_shows_in_its_context_and_nowhere_else(bad, density, device):
    leaves, fixed = case((3,), 18, 30, 2, density=density)
    leaves[bad].view(3, 18, -1)[1, 4, 0] = math.nan
    got = by_kernels(spread, leaves, device, **fixed)
    want = exactly(spread_reference, leaves, **fixed)
    assert got["output"][1, ~fixed["excluded"][1]].isnan().all()
    assert got["output"][::2].isfinite().all()
    others = torch.ones(3, 18, dtype=torch.bool)
    others[1, 4] = False
    for name in list(got)[1:]:
        torch.testing.assert_close(got[name][others], want[name][others], msg=name)


def test_no_table_is_saved(device):
    k, m, r = 128, 256, 2
    leaves, fixed = case((), k, m, r)
    with sizes_kept() as kept:
        by_kernels(spread, leaves, device, **fixed)
    assert kept
    assert max(kept) <= max(m * r, k * (2 * r + 3))


# Near mode: what is too far away to matter is skipped.


@pytest.fixture
def near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Order tuples in space however few there are."""
    monkeypatch.setattr(kernels, "NEAR_PAIRS", 1)


in_near_mode = pytest.mark.usefixtures("near")


def scattered(prefix: tuple[int, ...], k: int, m: int, r: int, size: int = 100) -> Case:
    """Sharp tuples in a large space, with two integer tuples beside each and others anywhere."""
    leaves, _ = case(prefix, k, m, r)
    leaves["means"] *= size / 8
    leaves["variances"] *= 0.5
    indices = random_tuples(prefix, m, (size,) * r)
    indices[..., : 2 * k, :] = leaves["means"].repeat_interleave(2, -2).long()[..., :m, :]
    indices[..., 1 : 2 * k : 2, 0] += 1
    return leaves, {"indices": indices, "excluded": mark_repeats(indices, (size + 1,) * r)}


@in_near_mode
@pairs(r=range(1, 7), dtype=dtypes)
def test_near_mode_agrees_where_nothing_may_be_lost(r, dtype, device):
    leaves, fixed = scattered((2,), 21, 139, r)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-11
    compare(leaves, {**fixed, "tolerance": 1e-14}, device, dtype, tolerance)


@in_near_mode
@pytest.mark.parametrize("tolerance", [1e-7, 1e-3, 0.1, 0.5])
def test_no_tuple_loses_more_than_the_tolerance(tolerance, device):
    """One tuple deals out over many tiles, whose shares fall from large to negligible."""
    indices = torch.arange(640).unsqueeze(-1)
    for variance in (300.0, 3000.0, 30000.0):
        numbers = {"means": [[100.3]], "variances": [[variance]], "values": [1.0]}
        leaves: Leaves = {name: torch.tensor(t, dtype=torch.float64) for name, t in numbers.items()}
        exact = spread_reference(**leaves, indices=indices)
        got = by_kernels(spread, leaves, device, indices=indices, tolerance=tolerance)["output"]
        assert 1 - tolerance <= got.sum() <= 1 / (1 - tolerance) + 1e-12
        assert (got - exact).abs().sum() <= 2 * tolerance / (1 - tolerance)
        # A whole tile is left out or none of it: the tolerance is made use of.
        skipped = got.view(10, 64) == 0
        assert torch.equal(skipped.all(1), skipped.any(1))
        assert skipped.any() or variance == 30000.0


@in_near_mode
@pytest.mark.parametrize("tolerance", [1e-3, 0.3])
def test_nor_do_many_tuples_of_all_kinds(tolerance, device):
    """What is skipped for a tile of rows must be far from the widest and the farthest of them."""
    indices = torch.arange(384).unsqueeze(-1)
    generator = seeded(0)
    fractions, means = torch.rand(2, 48, 1, dtype=torch.float64, generator=generator)
    means = means * 8 + torch.tensor([50.0, 170.0, 300.0]).repeat_interleave(16).unsqueeze(-1)
    leaves: Leaves = {"means": means, "variances": 10 ** (2 * fractions)}
    leaves["values"] = torch.rand(48, dtype=torch.float64, generator=generator)
    exact = spread_reference(**leaves, indices=indices)
    got = by_kernels(spread, leaves, device, indices=indices, tolerance=tolerance)["output"]
    total = leaves["values"].sum()
    assert (1 - tolerance) * total <= got.sum() <= total / (1 - tolerance)
    assert 1e-9 < (got - exact).abs().sum() <= 2 * tolerance / (1 - tolerance) * total


@in_near_mode
def test_the_row_with_the_smallest_normaliser_decides_for_its_tile(device):
    """One row has all its points beside it. The other, in the same tile, has them on two sides."""
    indices = torch.tensor([[0], [20]]).repeat_interleave(64, 0)
    numbers = {"means": [[0.0], [10.0]], "variances": [[1.0], [25.0]], "values": [1.0, 10.0]}
    leaves = {name: torch.tensor(t, dtype=torch.float64) for name, t in numbers.items()}
    got = by_kernels(spread, leaves, device, indices=indices, tolerance=0.5)["output"]
    want = torch.tensor([(1 + 5) / 64, 5 / 64], dtype=torch.float64).repeat_interleave(64)
    torch.testing.assert_close(got, want)


@in_near_mode
@pytest.mark.parametrize(
    ("tolerance", "at_mean", "far_away"),
    [
        (0.5, 1 / 64, 0.0),  # skipped when the normaliser is added up, and again when dealt out
        (0.05, 500 / 501 / 64, 0.0),  # counted, but not dealt out to
        (1e-4, 500 / 501 / 64, 1 / 501 / 64),
        (0.0, 500 / 501 / 64, 1 / 501 / 64),
    ],
)
def test_what_the_tolerance_skips_by_hand(tolerance, at_mean, far_away, device):
    """One tile of points at the mean, and one where each gets 1/500 of what those get."""
    indices = torch.tensor([[0], [9]]).repeat_interleave(64, 0)
    numbers = {"means": [[0.0]], "variances": [[81 / (2 * math.log(500))]], "values": [1.0]}
    leaves = {name: torch.tensor(t, dtype=torch.float64) for name, t in numbers.items()}
    got = by_kernels(spread, leaves, device, indices=indices, tolerance=tolerance)["output"]
    want = torch.tensor([at_mean, far_away], dtype=torch.float64).repeat_interleave(64)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=0)


@pytest.mark.parametrize("mode", ["near", "exact"])
def test_tiles_far_apart_are_never_looked_at(mode, device, monkeypatch):
    """A NaN in them would show: as the value of a far row, or as the gradient of a far point."""
    monkeypatch.setattr(kernels, "NEAR_PAIRS", 1 if mode == "near" else 2**60)
    where = torch.tensor([0.0, 1000.0]).double()
    leaves = {"means": where.repeat_interleave(16).unsqueeze(-1) + 5}
    leaves["variances"] = torch.ones_like(leaves["means"])
    leaves["values"] = torch.ones(32, dtype=torch.float64)
    points = torch.arange(64) % 11
    indices = torch.cat([points, points + 1000]).unsqueeze(-1).to(device)
    means, variances, values = (t.to(device).requires_grad_() for t in leaves.values())
    with sw.engine("triton"):
        one_is_nan = torch.where(torch.arange(32, device=device) == 20, math.nan, values)
        first, second = spread(means, variances, one_is_nan, indices).detach().split(64)
        total = spread(means, variances, values, indices)
        weights = torch.where(torch.arange(128, device=device) == 70, math.nan, 1.0)
        grads = torch.autograd.grad(total, (means, variances, values), weights.to(total))
    assert second.isnan().all()
    assert first.isfinite().all() == (mode == "near")
    for gradient in grads:
        assert gradient[16:].isnan().all()
        assert gradient[:16].isfinite().all() == (mode == "near")


@in_near_mode
@pytest.mark.parametrize("programs", [1, 20, 1024])
def test_groups_of_groups(programs, device, monkeypatch):
    """Nine tiles make five groups of two, and these make three: in one part, in two and in five."""
    monkeypatch.setattr(kernels, "GROUP", 2)
    monkeypatch.setattr(kernels, "_PROGRAMS", programs)
    leaves, fixed = scattered((), 70, 530, 4, size=30)
    plan = kernels.Plan.of(1, 70, 530, 4, Kind("gaussian", 1.0, 4), 1e-12)
    assert (plan.row_tiles, plan.point_tiles, kernels.boxes(9)) == (9, 9, 9 + 5 + 3)
    assert plan.parts == {1: 1, 20: 2, 1024: 5}[programs]
    compare(leaves, {**fixed, "tolerance": 1e-14}, device, tolerance=1e-11)


@in_near_mode
def test_groups_that_lie_far_apart(device, monkeypatch):
    """Only two points are near each row, and they are found in any of the groups."""
    monkeypatch.setattr(kernels, "GROUP", 2)
    indices = torch.stack([torch.arange(288) * 10, torch.arange(288) * 10 + 1]).flatten()
    indices = indices[torch.randperm(576, generator=seeded(0))].unsqueeze(-1)
    means = (indices[::37] // 10 * 10).double() + 0.3
    leaves = {"means": means, "variances": torch.full_like(means, 0.3)}
    leaves["values"] = torch.arange(1.0, len(means) + 1, dtype=torch.float64)
    compare(leaves, {"indices": indices, "tolerance": 1e-14}, device, tolerance=1e-11)


@in_near_mode
@in_each_dtype
def test_far_rows_in_near_mode(dtype, device):
    leaves, fixed = rows_at(torch.arange(0, 66, 2), 1.0)
    share = 2e-3 if dtype == torch.float32 else 1e-11
    compare_terms(leaves, {**fixed, "tolerance": 1e-14}, device, dtype, share)


@in_near_mode
def test_excluded_contexts_in_near_mode(device):
    leaves, fixed = scattered((3,), 21, 139, 2)
    fixed["excluded"][1] = True
    fixed["excluded"][2] = torch.arange(139) != 77
    got = compare(leaves, {**fixed, "tolerance": 1e-14}, device, tolerance=1e-9)
    for name, tensor in got.items():
        assert (tensor[1] == 0).all(), name


@in_near_mode
@in_each_dtype
def test_absurd_numbers_in_near_mode(dtype, device):
    leaves, fixed = scattered((), 21, 139, 2)
    leaves["means"][0] = 1e30
    leaves["means"][1] = -1e30
    leaves["means"][2] = -3.0
    leaves["variances"][3] = 1e30
    leaves["variances"][4] = 1e-30
    leaves = cast(leaves, dtype)
    got = by_kernels(spread, leaves, device, **fixed, tolerance=1e-9)
    want = output_and_gradients(lambda **t: spread_reference(**t, **fixed), leaves)
    for name, tensor in got.items():
        assert tensor.isfinite().all(), name
    tolerance = 1e-5 if dtype == torch.float32 else 1e-8
    assert_near({"output": got["output"]}, {"output": want["output"]}, tolerance)


@in_near_mode
@pytest.mark.parametrize("k", [21, 1])
@pytest.mark.parametrize("bad", ["means", "variances", "values"])
def test_nan_shows_in_near_mode(bad, k, device):
    """Among other rows, and where the whole tile is not a number."""
    leaves, fixed = scattered((2,), k, 139, 2)
    leaves[bad].view(2, k, -1)[1, k // 5, 0] = math.nan
    got = by_kernels(spread, leaves, device, **fixed)["output"]
    assert got[1].isnan().any()
    assert got[0].isfinite().all()
