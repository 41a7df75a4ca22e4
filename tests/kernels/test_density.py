"""Densities inside kernels, against those of plain PyTorch."""

import math
from typing import Any

import pytest
import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from tests.kernels.compare import dtypes
from torch import Tensor

from sparsewire.ops._triton_density import Scaled, log_density, slope
from sparsewire.ops.density import DEGREES, Kind

KINDS = [
    Kind("gaussian", 1.0, 3),
    *(Kind("student", nu, r) for nu in (DEGREES[0], 1.0, 7.5, DEGREES[1]) for r in (1, 6)),
]

kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda k: f"{k.name} {k.degrees:g} {k.rank}")
in_each_dtype = pytest.mark.parametrize("dtype", dtypes, ids=str)


@triton.jit
def _densities(
    distances, logs, slopes, count,
    LIMIT: tl.constexpr, STUDENT: tl.constexpr, POWER: tl.constexpr, SCALE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    place = tl.arange(0, BLOCK)
    distance = tl.load(distances + place, mask=place < count, other=0)
    tl.store(logs + place, log_density(distance, LIMIT, STUDENT, POWER), mask=place < count)
    # Zeros are added, for the slope of a Gaussian is one number.
    found = slope(distance, SCALE, STUDENT, POWER) + tl.zeros_like(distance)
    tl.store(slopes + place, found, mask=place < count)


def in_kernel(kind: Kind, distance: Tensor, device: str) -> tuple[Tensor, Tensor]:
    """Natural logarithms of densities, and slopes, at squared distances in units of variance."""
    form = Scaled.of(kind, distance.dtype)
    scaled = (distance * form.scale).to(device)
    logs, slopes = torch.empty_like(scaled), torch.empty_like(scaled)
    kernel: Any = _densities
    kernel[(1,)](
        scaled, logs, slopes, len(scaled),
        LIMIT=form.limit, STUDENT=form.student, POWER=form.power, SCALE=form.scale,
        BLOCK=triton.next_power_of_2(len(scaled)),
    )  # fmt: skip
    return logs.cpu().double() * math.log(2), slopes.cpu().double()


@in_each_dtype
@kinds
def test_density_and_slope_at_every_distance(kind, dtype, device):
    """From much less than rounding takes from one, where log1p is needed, to the farthest."""
    distance = torch.logspace(-30, 17, 95, dtype=torch.float64).to(dtype)
    distance = torch.cat([distance.new_zeros(1), distance])
    logs, slopes = in_kernel(kind, distance, device)
    exact = distance.double().requires_grad_()
    wanted = kind.log_density(exact)
    (derivative,) = torch.autograd.grad(wanted.sum(), exact)
    # An absolute error of a logarithm is a relative one of the density.
    rounding = 1e-6 if dtype == torch.float32 else 1e-14
    torch.testing.assert_close(logs, wanted.detach(), rtol=rounding, atol=rounding)
    torch.testing.assert_close(slopes, -2 * derivative, rtol=rounding, atol=0)


@in_each_dtype
@kinds
def test_distances_end_where_those_of_the_reference_end(kind, dtype, device):
    numbers = [1e30 if dtype == torch.float32 else 1e200, math.inf, math.nan]
    distance = torch.tensor(numbers, dtype=dtype)
    logs, _ = in_kernel(kind, distance, device)
    rtol = 1e-6 if dtype == torch.float32 else 1e-14
    want = kind.log_density(distance).double()
    torch.testing.assert_close(logs, want, rtol=rtol, atol=0, equal_nan=True)


@in_each_dtype
def test_hidden_tuples_are_too_far_for_every_gaussian(dtype, device):
    """Their density vanishes even for the mean that is nearest and the widest variance."""
    kind = Kind("gaussian", 1.0, 1)
    form = Scaled.of(kind, dtype)
    step = torch.tensor([form.hidden - form.farthest], dtype=torch.float64)
    logs, _ = in_kernel(kind, (step.square() / form.widest).to(dtype), device)
    assert logs.to(dtype).exp().item() == 0
