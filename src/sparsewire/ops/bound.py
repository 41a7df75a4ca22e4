"""Stage 1, bound: raw parameters on the real line become means and variances in index space."""

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsewire.annotations import Float
from sparsewire.checks import (
    check_choice,
    check_dims,
    check_floating,
    check_range,
    check_rank,
    check_shape,
    constant,
)

# Of the softplus, where its inverse is still a number that can be learned.
_LEAST = 1e-6

Edge = Literal["sigmoid", "clamp", "wrap"]
EDGES: tuple[Edge, ...] = get_args(Edge)


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Index arithmetic needs 24 bits: float64 stays, every smaller float becomes float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def fractions(raw: Float[Tensor, "*b"], edge: Edge = "sigmoid") -> Float[Tensor, "*b"]:
    """Map the real line to [0, 1], the position along an index axis.

    `sigmoid` is 1 / (1 + exp(−raw)): smooth, never quite at the ends. `clamp` is
    min(max(raw, 0), 1): linear, no gradient beyond the ends. `wrap` is raw − ⌊raw⌋: what leaves
    at one end comes back at the other.

    Examples:
        >>> fractions(torch.tensor([-1.25, 0.0, 0.75, 1.5]), edge="wrap")
        tensor([0.7500, 0.0000, 0.7500, 0.5000])
    """
    check_floating("raw", raw)
    check_choice("edge", edge, EDGES)
    raw = raw.to(working_dtype(raw.dtype))
    if edge == "sigmoid":
        return torch.sigmoid(raw)
    if edge == "clamp":
        return raw.clamp(0, 1)
    # A tiny negative number wraps to 1 − ε, which rounds to 1: still a valid position.
    return raw - raw.detach().floor()


def unbound_fractions(position: Float[Tensor, "*b"], edge: Edge = "sigmoid") -> Float[Tensor, "*b"]:
    """Return numbers that `fractions` maps to these positions, which lie inside (0, 1).

    Examples:
        >>> unbound_fractions(torch.tensor([0.25, 0.5]), edge="sigmoid")
        tensor([-1.0986,  0.0000])
    """
    check_floating("position", position)
    check_choice("edge", edge, EDGES)
    return torch.logit(position) if edge == "sigmoid" else position


def bound_means(
    raw: Float[Tensor, "*b r"], shape: Sequence[int], edge: Edge = "sigmoid"
) -> Float[Tensor, "*b r"]:
    """Bound raw index tuples to the box that holds every valid index and nothing else.

    mean[d] = edge(raw[d]) · (shape[d] − 1), so that 0 ≤ mean[d] ≤ shape[d] − 1.

    Args:
        raw: Raw index tuples, any batch prefix, one column for each entry of `shape`.
        shape: Sizes of the index axes.
        edge: How the real line is folded onto the axis, see `fractions`.

    Returns:
        Continuous index tuples in float32 (float64 for float64). Axes are limited to 2²² indices
        (2⁵¹), of which every one can then be reached. Raw numbers in half precision are accepted
        but too coarse for long axes: bfloat16 reaches every index of 256, float16 of 1,024.

    Examples:
        >>> raw = torch.tensor([[-100.0, 0.0], [100.0, 2.0]])
        >>> bound_means(raw, (8, 5))
        tensor([[0.0000, 2.0000],
                [7.0000, 3.5232]])
    """
    check_floating("raw", raw)
    sizes = check_rank("shape", shape)
    check_dims("raw", raw, (len(sizes),), "(*b, r)")
    dtype = working_dtype(raw.dtype)
    check_resolution(sizes, dtype)
    return fractions(raw, edge) * constant([n - 1 for n in sizes], dtype, raw.device)


def check_resolution(shape: Sequence[int], dtype: torch.dtype) -> None:
    """Refuse axes with more indices than the mean's dtype can tell apart."""
    # Two bits less than the dtype has, for what the sigmoid and the product round away.
    bits = 51 if dtype == torch.float64 else 22
    for axis, size in enumerate(shape):
        if size > 2**bits:
            raise ValueError(
                f"shape[{axis}] must be at most 2**{bits} for {dtype} means, which cannot tell "
                f"more indices apart; got {size} (use float64 parameters, or split the axis in two)"
            )


def bound_variances(
    raw: Float[Tensor, "*b"], shape: Sequence[int], scale: float = 0.1, floor: float = 0.1
) -> Float[Tensor, "*b r"]:
    """Bound raw variances to positive ones that cover an equal share of every axis.

    variance[d] = softplus(raw + 2) · shape[d] · scale + floor

    These are variances, the diagonal of a covariance matrix, not standard deviations. Each tuple
    has one raw number, expanded over the rank. `floor` is the paper's τ.

    Args:
        raw: One raw number for each tuple, any batch prefix.
        shape: Sizes of the index axes.
        scale: Share of the axis that softplus(raw + 2) = 1 stands for.
        floor: Smallest variance; 0 is allowed and leaves only the softplus.

    Examples:
        >>> bound_variances(torch.tensor([-2.0, 0.0]), (8, 16))
        tensor([[0.6545, 1.2090],
                [1.8015, 3.5031]])
    """
    check_floating("raw", raw)
    sizes = check_shape("shape", shape)
    check_range("scale", scale, 0.0, 1e6)
    check_range("floor", floor, 0.0, 1e6)
    dtype = working_dtype(raw.dtype)
    width = F.softplus(raw.to(dtype) + 2).unsqueeze(-1)
    return width * constant(sizes, dtype, raw.device) * scale + floor


def raw_variance(variance: float, size: int, scale: float = 0.1) -> float:
    """Return the raw number that `bound_variances` turns into this variance above its floor.

    Examples:
        >>> raw = torch.tensor(raw_variance(0.5, size=8))
        >>> bound_variances(raw, (8,), floor=0.1)
        tensor([0.6000])
    """
    if not size * scale:
        return 0.0  # every raw number gives the floor
    width = max(variance / (size * scale), _LEAST)
    return width + math.log(-math.expm1(-width)) - 2.0
