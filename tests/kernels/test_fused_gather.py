"""The kernel of `fused_gather` against the stages one by one, from the same sampled tuples."""

import importlib
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.helpers import seeded, seeds, sizes_kept
from tests.kernels.compare import assert_near, by_kernels, cast, dtypes
from torch import Tensor

import sparsewire as sw
from sparsewire.ops import sample
from sparsewire.ops.density import DENSITIES, FARTHEST, SHARPEST
from sparsewire.ops.fused_gather import (
    Addresses,
    box_cells,
    fused_gather,
    gather_reference,
    kernel_gathers,
)

stage = importlib.import_module("sparsewire.ops.fused_gather")

in_each_dtype = pytest.mark.parametrize("dtype", dtypes, ids=str)
densities = pytest.mark.parametrize("density", DENSITIES)

Case = tuple[dict[str, Tensor], dict[str, Any]]


def case(
    sizes: tuple[int, ...], region: tuple[int, ...], w: int = 3, c: int = 5, **options: Any
) -> Case:
    """Continuous tuples inside, at and beyond the bounds, and inputs, in float64.

    The learned columns are the last axes of the input, behind one in which each context has a
    fixed place, and in the opposite order: strides are not those of a row-major layout.
    """
    generator, r = seeded(sum(sizes)), len(sizes)
    fractions, variances = torch.rand(2, w, c, r, dtype=torch.float64, generator=generator)
    means = (fractions * 1.4 - 0.2) * torch.tensor(sizes)
    at_bound = torch.randint(4, means.shape, generator=generator) == 0
    means = torch.where(at_bound, means.clamp(min=0).minimum(torch.tensor(sizes) - 1.0), means)
    rows = 4
    leaves = {
        "means": means,
        "variances": variances * 3 + 0.2,
        "values": torch.randn(w, c, dtype=torch.float64, generator=generator),
        "x": torch.randn(w, rows * math.prod(sizes), dtype=torch.float64, generator=generator),
    }
    strides = tuple(math.prod(sizes[:axis]) for axis in range(r))
    base = torch.randint(rows, (c,), generator=generator) * math.prod(sizes)
    fixed = {
        "addresses": Addresses(sizes, strides, base),
        "region": region,
        "local_samples": 3,
        "global_samples": 4,
        **options,
    }
    return leaves, fixed


def fused(device: str, addresses: Addresses, seed: int = 5, **fixed: Any) -> Callable[..., Tensor]:
    """`fused_gather` with a generator of its own."""
    there = addresses._replace(base=addresses.base.to(device))

    def call(**leaves: Tensor) -> Tensor:
        generator = torch.Generator(device).manual_seed(seed)
        return fused_gather(**leaves, addresses=there, generator=generator, **fixed)

    return call


def staged(
    device: str,
    addresses: Addresses,
    region: tuple[int, ...],
    local_samples: int,
    global_samples: int,
    seed: int = 5,
    **fixed: Any,
) -> Callable[..., Tensor]:
    """`gather_reference` of the tuples that the kernel samples from the same state."""

    def call(means: Tensor, variances: Tensor, values: Tensor, x: Tensor) -> Tensor:
        w, c, r = means.shape
        generator = torch.Generator(device).manual_seed(seed)
        with sw.engine("triton"):
            counts = local_samples, global_samples
            sampled = sample(means.to(device), addresses.sizes, region, *counts, generator)
        sampled = sampled.cpu().view(w, c, -1, r)
        with sw.engine("chunked"):
            means, variances, values, x = (t.double() for t in (means, variances, values, x))
            return gather_reference(means, variances, values, x, sampled, addresses, **fixed)

    return call


def compare(
    leaves: dict[str, Tensor],
    fixed: dict[str, Any],
    device: str,
    dtype: torch.dtype = torch.float64,
    tolerance: float | None = None,
) -> dict[str, Tensor]:
    """Compare the kernel with the stages: output and every gradient."""
    leaves = cast(leaves, dtype)
    got = by_kernels(fused(device, **fixed), leaves, device)
    # Tuples are sampled for the means as they are; the rest is computed in float64.
    want = by_kernels(staged(device, **fixed), leaves, "cpu")
    assert_near(got, want, tolerance)
    return got


@in_each_dtype
@densities
@pytest.mark.parametrize(
    ("sizes", "region"),
    [
        ((30,), (3,)),
        ((11, 7), (3, 2)),
        ((5, 4, 6), (2, 3, 1)),
        ((3, 4, 5, 6), (2, 1, 2, 2)),
    ],
    ids=str,
)
def test_every_rank(sizes, region, density, dtype, device):
    compare(*case(sizes, region, density=density, degrees=1.5), device, dtype)


@pytest.mark.parametrize(
    ("sizes", "region"),
    [
        ((20,), (1,)),
        ((20,), (2,)),
        ((20,), (20,)),
        ((9, 8), (9, 8)),
        ((9, 8), (1, 8)),
        ((1,), (1,)),
        ((2,), (1,)),
        ((2,), (2,)),
        ((3,), (1,)),
        ((1, 2), (1, 2)),
        ((2, 1, 3), (1, 1, 3)),
        ((1, 1, 1), (1, 1, 1)),
    ],
    ids=str,
)
def test_every_region(sizes, region, device):
    compare(*case(sizes, region, c=9, local_samples=6), device)


@pytest.mark.parametrize(("around", "anywhere"), [(0, 0), (0, 5), (5, 0), (40, 0), (2, 64)])
def test_any_number_of_samples(around, anywhere, device):
    """Many of them repeat, inside of the box around the mean and outside."""
    options = {"local_samples": around, "global_samples": anywhere}
    compare(*case((13, 5), (3, 2), **options), device)


def test_the_largest_box(device):
    """Cells of the box are bits of several words, the last of them in part."""
    sizes, region = (30, 30), (20, 20)
    assert box_cells(sizes, region) == 22 * 22
    compare(*case(sizes, region, w=1, local_samples=60, global_samples=20), device)


def test_more_contexts_than_a_program_takes(device):
    compare(*case((7, 5), (2, 2), w=3, c=67, local_samples=1, global_samples=1), device)


@pytest.mark.parametrize(("w", "c"), [(0, 5), (1, 1)])
def test_few_contexts_or_none(w, c, device):
    leaves, fixed = case((7, 5), (2, 2), w, c)
    if w:
        compare(leaves, fixed, device)
    else:
        assert by_kernels(fused(device, **fixed), leaves, device)["output"].shape == (0, 5)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cut=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=3),
    counts=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    seed=seeds,
)
def test_any_shape(cut, counts, seed, device):
    sizes, region = tuple(max(pair) for pair in cut), tuple(min(pair) for pair in cut)
    options = {"local_samples": counts[0], "global_samples": counts[1], "seed": seed}
    compare(*case(sizes, region, w=2, **options), device, tolerance=1e-10)


# Means and variances far from ordinary.


@pytest.mark.parametrize("density", DENSITIES)
def test_sharp_and_wide_variances(density, device):
    leaves, fixed = case((9, 8), (3, 3), density=density)
    leaves["variances"][:, 0] = 1e-3
    leaves["variances"][:, 1] = 1e6
    compare(leaves, fixed, device, tolerance=1e-9)


@in_each_dtype
def test_absurd_numbers(dtype, device):
    leaves, fixed = case((9, 8), (3, 3), w=1)
    leaves["means"][0, 0] = 10 * FARTHEST[dtype]
    leaves["means"][0, 1, 1] = -10 * FARTHEST[dtype]
    leaves["variances"][0, 2] = 0.1 * SHARPEST[dtype]
    leaves["variances"][0, 3] = 1e30
    leaves = cast(leaves, dtype)
    got = by_kernels(fused(device, **fixed), leaves, device)
    for name, tensor in got.items():
        assert tensor.isfinite().all(), name
    want = by_kernels(staged(device, **fixed), leaves, "cpu")["output"]
    torch.testing.assert_close(got["output"].double(), want, rtol=1e-5, atol=1e-5)
    # Numbers that were brought into range have no gradient.
    assert (got["gradient of means"][0, 0] == 0).all()
    assert (got["gradient of variances"][0, 2] == 0).all()


@pytest.mark.parametrize("bad", ["means", "variances", "values"])
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_bad_numbers_stay_in_their_context(bad, number, device):
    leaves, fixed = case((9, 8), (3, 3))
    good = by_kernels(fused(device, **fixed), leaves, device)
    leaves[bad].view(3, 5, -1)[1, 2, 0] = number
    got = by_kernels(fused(device, **fixed), leaves, device)
    others = torch.ones(3, 5, dtype=torch.bool)
    others[1, 2] = False
    assert torch.equal(got["output"][others], good["output"][others])
    if math.isnan(number):
        assert got["output"][1, 2].isnan()
    for name in ("means", "variances", "values"):
        name = f"gradient of {name}"
        assert torch.equal(got[name][others], good[name][others]), name


# Gradients.


@densities
def test_first_and_second_derivatives(density, device):
    leaves, fixed = case((3,), (2,), 1, 1, density=density, local_samples=1, global_samples=1)
    leaves["means"].fill_(0.8)
    leaves["x"] = leaves["x"][:, :4]
    fixed["addresses"] = fixed["addresses"]._replace(base=torch.tensor([1]))
    inputs = [tensor.to(device).requires_grad_() for tensor in leaves.values()]
    call = fused(device, **fixed)

    def function(*tensors: Tensor) -> Tensor:
        with sw.engine("triton"):
            return call(**dict(zip(leaves, tensors, strict=True)))

    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def test_second_derivatives_that_will_be_differentiated_again(device):
    """Of a nonlinear loss: the gradient that comes in depends on the inputs too."""

    def derivatives(call: Callable[..., Tensor], device: str) -> dict[str, Tensor]:
        inputs = {name: t.to(device).requires_grad_() for name, t in leaves.items()}
        first = torch.autograd.grad(
            call(**inputs).square().sum(), list(inputs.values()), create_graph=True
        )
        total = torch.stack([g.square().sum() for g in first]).sum()
        second = torch.autograd.grad(total, list(inputs.values()), create_graph=True)
        return {name: g.detach().cpu() for name, g in zip(inputs, second, strict=True)}

    leaves, fixed = case((9, 8), (3, 3), 1, 2)
    with sw.engine("triton"):
        got = derivatives(fused(device, **fixed), device)
    assert_near(got, derivatives(staged(device, **fixed), "cpu"), 1e-10)


def test_an_input_without_gradient(device):
    """None is computed for it, and the others are the same."""
    leaves, fixed = case((9, 8), (3, 3))
    everything = by_kernels(fused(device, **fixed), leaves, device)
    x = leaves.pop("x").to(device)
    call = fused(device, **fixed)
    got = by_kernels(lambda **inputs: call(**inputs, x=x), leaves, device)
    assert_near(got, {name: everything[name] for name in got})


def test_only_the_input_has_a_gradient(device):
    leaves, fixed = case((9, 8), (3, 3))
    everything = by_kernels(fused(device, **fixed), leaves, device)
    x, call = leaves.pop("x"), fused(device, **fixed)
    others = {name: tensor.to(device) for name, tensor in leaves.items()}
    got = by_kernels(lambda x: call(**others, x=x), {"x": x}, device)
    assert_near(got, {name: everything[name] for name in got})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_inputs(dtype, device):
    leaves, fixed = case((9, 8), (3, 3))
    leaves = cast(leaves, torch.float32)
    leaves["x"] = leaves["x"].to(dtype)
    got = by_kernels(fused(device, **fixed), leaves, device)
    assert got["output"].dtype == got["gradient of x"].dtype == dtype
    want = by_kernels(staged(device, **fixed), leaves, "cpu")
    assert_near(got, want, torch.finfo(dtype).eps)


def test_nothing_of_the_samples_is_saved(device):
    w, c, r, n = 3, 40, 2, 4 * 9 * 8
    leaves, fixed = case((9, 8), (3, 3), w, c, local_samples=20, global_samples=20)
    with sizes_kept() as kept:
        by_kernels(fused(device, **fixed), leaves, device)
    assert kept
    assert max(kept) <= max(w * c * r, w * n)
    assert sum(size for size in kept if size != w * n) <= 10 * w * c * r


# When it is used.


def test_what_the_kernel_takes(device, monkeypatch):
    there = torch.device(device)
    with sw.engine("triton"):
        assert kernel_gathers(there, 10**4, (100, 100), (20, 20), 64)
        assert not kernel_gathers(there, 10**4, (100, 100), (22, 20), 64)  # 24 · 22 cells
        assert kernel_gathers(there, 10**4, (1000, 3), (168, 1), 0)  # 170 · 3 cells
        assert not kernel_gathers(there, 10**4, (1000, 3), (169, 1), 0)
        assert not kernel_gathers(there, 10**4, (100, 100), (20, 20), 65)
        assert not kernel_gathers(there, 10**4, (2**16, 2**15), (3, 3), 1)
        assert not kernel_gathers(there, 2**31, (100, 100), (20, 20), 64)
        monkeypatch.setattr(stage, "deterministic", lambda _: True)
        assert not kernel_gathers(there, 10**4, (100, 100), (20, 20), 64)
    with sw.engine("chunked"):
        assert not kernel_gathers(there, 10**4, (10,), (3,), 4)
