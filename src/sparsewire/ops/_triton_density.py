"""The densities of `sparsewire.ops.density` inside kernels, in powers of two.

Kernels compute with scaled second distances, so that the exponential needs no further factor: the
precision of a tuple is `scale / variance`. A distance then ends at `limit`.
"""

import functools
import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from sparsewire.ops.density import FARTHEST, SHARPEST, Kind

# Variances end here, so that a place for hidden tuples is left far away from all others.
WIDEST = {torch.float32: 1e30, torch.float64: 1e250}


RANGE = "LIMIT", "FARTHEST", "SHARPEST", "WIDEST"


class Scaled(NamedTuple):
    """A density as the kernels know it: numbers that are constants at compile time."""

    student: bool
    power: float  # Student-t: the density is (1 + distance)^−power
    scale: float  # what a precision is multiplied by
    limit: float  # where scaled distances end
    farthest: float
    sharpest: float
    widest: float
    hidden: float  # coordinate of tuples that get nothing: far from every mean

    @classmethod
    def of(cls, kind: Kind, dtype: torch.dtype) -> "Scaled":
        """Return the numbers of a density for a dtype."""
        student = kind.name == "student"
        power = 0.5 * (kind.degrees + kind.rank)
        scale = 1 / kind.degrees if student else 0.5 / math.log(2)
        farthest = FARTHEST[dtype]
        sharpest, widest = SHARPEST[dtype], WIDEST[dtype]
        limit = farthest * scale
        return cls(student, power, scale, limit, farthest, sharpest, widest, 4 * farthest)


@functools.cache
def constants(kind: Kind, dtype: torch.dtype, *names: str) -> dict[str, Any]:
    """Return some numbers of `Scaled`, by the names that kernels give them."""
    form = Scaled.of(kind, dtype)
    return {name: getattr(form, name.lower()) for name in names}


@triton.jit
def log_density(distance, LIMIT: tl.constexpr, STUDENT: tl.constexpr, POWER: tl.constexpr):
    """Return log₂ of the density, up to a constant, for scaled second distances."""
    distance = tl.minimum(distance, LIMIT, propagate_nan=tl.PropagateNan.ALL)
    if STUDENT:
        # log(1 + d), exact for small d too: what rounding took from 1 + d is put back as a factor.
        whole = distance + 1
        rest = whole - 1
        lost = rest == 0
        logarithm = distance * (tl.log2(whole) / tl.where(lost, 1, rest))
        return tl.where(lost, distance * 1.4426950408889634, logarithm) * -POWER
    else:
        return -distance


@triton.jit
def slope(distance, SCALE: tl.constexpr, STUDENT: tl.constexpr, POWER: tl.constexpr):
    """Return −2 · d log p / dδ: a factor of the gradient."""
    if STUDENT:
        return POWER * 2 * SCALE / (distance + 1)
    else:
        return 1.0


@triton.jit
def bounded(number, LOW: tl.constexpr, HIGH: tl.constexpr):
    """Clamp, and let NaN through."""
    number = tl.maximum(number, LOW, propagate_nan=tl.PropagateNan.ALL)
    return tl.minimum(number, HIGH, propagate_nan=tl.PropagateNan.ALL)
