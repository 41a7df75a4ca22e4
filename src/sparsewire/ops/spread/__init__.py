"""Stage 4, spread: continuous tuples distribute their values over the integer tuples.

`proportions` and `spread_reference` are the specification and store the whole (k, m) table. The
other engines of `spread` compute the same in chunks of the table or in fused kernels, forward and
backward, and store none of it.
"""

import functools
import math
from typing import Any

import torch
from torch import Tensor

from sparsewire.annotations import Bool, Float, Int
from sparsewire.checks import (
    check_choice,
    check_devices,
    check_dims,
    check_exact,
    check_floating,
    check_integer,
    check_range,
)
from sparsewire.engines import Engine, dispatch
from sparsewire.ops.bound import working_dtype
from sparsewire.ops.density import DEGREES, DENSITIES, Density, Kind, hidden_logit, tame
from sparsewire.ops.spread import _grid
from sparsewire.ops.spread._chunked import ChunkedSpread

# Below this number of pairs the table is cheaper to store than to recompute.
_SMALL_PAIRS = 2**13


def spread(
    means: Float[Tensor, "*b k r"],
    variances: Float[Tensor, "*b k r"],
    values: Float[Tensor, "*b k"],
    indices: Int[Tensor, "*b m r"],
    excluded: Bool[Tensor, "*b m"] | None = None,
    density: Density = "gaussian",
    degrees: float = 1.0,
    tolerance: float = 1e-7,
) -> Float[Tensor, "*b m"]:
    """Distribute each value over the integer tuples, in proportion to their densities.

    v'_j = Σ_i v_i p_ij / Σ_l p_il, where p_ij = N(index_j | mean_i, diag(variance_i)) and both
    sums leave out the excluded tuples. Computed in log space: finite for every finite input.

    Time is O(k·m); memory, backward included, is O(k + m): the table of pairs is computed in chunks
    and recomputed in the backward pass, and in that of the second derivative. Gradients reach
    means, variances and values.

    Args:
        means: Continuous tuples, any batch prefix; each (k, r) matrix is a context.
        variances: Their positive variances, one for each axis.
        values: Their values.
        indices: Integer tuples of the same contexts.
        excluded: Integer tuples that receive nothing (repeats).
        density: `"gaussian"`, or `"student"` for heavy tails: the multivariate Student-t density,
            p_ij ∝ (1 + δ_ij / ν)^(−(ν + r) / 2) with δ the squared distance in units of variance.
        degrees: Degrees of freedom ν of `"student"`; the smaller, the heavier the tails.
        tolerance: Largest share of its value that a continuous tuple may lose because the engine
            `"triton"` skips integer tuples far from it, in large tables; 0 skips nothing. The
            other engines skip nothing.

    Returns:
        Values of the integer tuples, in float32 (float64 for float64).

    Examples:
        >>> means = torch.tensor([[1.0], [2.2]])
        >>> variances = torch.full((2, 1), 0.5)
        >>> indices = torch.tensor([[0], [1], [2], [2], [3]])
        >>> excluded = torch.tensor([False, False, False, True, False])
        >>> spread(means, variances, torch.tensor([1.0, 10.0]), indices, excluded)
        tensor([0.2554, 1.9373, 5.7541, 0.0000, 3.0532])
    """
    _check(means, variances, values, indices, excluded, density, degrees, tolerance)
    options = density, float(degrees), float(tolerance)
    return dispatch(ENGINES, means.device, means, variances, values, indices, excluded, *options)


def spread_reference(
    means: Float[Tensor, "*b k r"],
    variances: Float[Tensor, "*b k r"],
    values: Float[Tensor, "*b k"],
    indices: Int[Tensor, "*b m r"],
    excluded: Bool[Tensor, "*b m"] | None = None,
    density: Density = "gaussian",
    degrees: float = 1.0,
    tolerance: float = 1e-7,
) -> Float[Tensor, "*b m"]:
    """Compute `spread` from the whole table of proportions: the specification of every engine.

    Examples:
        >>> means, variances = torch.tensor([[1.0], [2.0]]), torch.ones(2, 1)
        >>> spread_reference(means, variances, torch.ones(2), torch.tensor([[1], [2]]))
        tensor([1., 1.])
    """
    args = means, variances, values, indices, excluded, density, degrees, tolerance
    _check(*args)
    return _whole_table(*args)


def proportions(
    means: Float[Tensor, "*b k r"],
    variances: Float[Tensor, "*b k r"],
    indices: Int[Tensor, "*b m r"],
    excluded: Bool[Tensor, "*b m"] | None = None,
    density: Density = "gaussian",
    degrees: float = 1.0,
) -> Float[Tensor, "*b k m"]:
    """Return the table p'_ij = p_ij / Σ_l p_il: the share of tuple i that integer tuple j receives.

    Each row sums to one (to zero where every integer tuple is excluded). The whole table is stored:
    for tests and for inspection, not for training.

    Examples:
        >>> proportions(torch.tensor([[1.0]]), torch.tensor([[0.5]]), torch.tensor([[0], [1], [2]]))
        tensor([[0.2119, 0.5761, 0.2119]])
    """
    _check(means, variances, None, indices, excluded, density, degrees, 0.0)
    kind = Kind(density, degrees, means.shape[-1])
    return _proportions(means, variances, indices, excluded, kind)


def _proportions(
    means: Tensor, variances: Tensor, indices: Tensor, excluded: Tensor | None, kind: Kind
) -> Tensor:
    dtype = working_dtype(means.dtype)
    means, variances = tame(means.to(dtype), variances.to(dtype))
    steps = indices.to(dtype).unsqueeze(-3) - means.unsqueeze(-2)
    # Scale before squaring, or the gradient of the variance overflows.
    distance = (steps * variances.sqrt().reciprocal().unsqueeze(-2)).square().sum(-1)
    logits = kind.log_density(distance)
    if excluded is None:
        return logits.softmax(-1)
    hidden = excluded.unsqueeze(-2)
    return logits.masked_fill(hidden, hidden_logit(dtype)).softmax(-1).masked_fill(hidden, 0)


def _check(*args: Any) -> None:
    means, variances, values, indices, excluded, density, degrees, tolerance = args
    check_floating("means", means)
    check_floating("variances", variances)
    check_integer("indices", indices)
    check_choice("density", density, DENSITIES)
    check_range("degrees", degrees, *DEGREES)
    check_range("tolerance", tolerance, 0.0, 1.0)
    check_dims("means", means, (None, None), "(*b, k, r)")
    *prefix, k, r = means.shape
    if r < 1:
        raise ValueError(f"means must have at least one column; got {tuple(means.shape)}")
    check_exact("variances", variances, means.shape)
    check_dims("indices", indices, (None, r), "(*b, m, r)")
    check_exact("indices", indices, (*prefix, indices.shape[-2], r))
    if values is not None:
        check_floating("values", values)
        check_exact("values", values, (*prefix, k))
    if excluded is not None:
        check_exact("excluded", excluded, indices.shape[:-1])
        if excluded.dtype != torch.bool:
            raise TypeError(f"excluded must have dtype torch.bool; got {excluded.dtype}")
    check_devices(
        means=means, variances=variances, values=values, indices=indices, excluded=excluded
    )


def _flatten(
    means: Tensor, variances: Tensor, values: Tensor, indices: Tensor, excluded: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Convert all to the working dtype, and the prefix to one dimension of contexts."""
    dtype = working_dtype(torch.promote_types(means.dtype, values.dtype))
    *prefix, m, r = indices.shape
    contexts, k = math.prod(prefix), means.shape[-2]
    return (
        means.to(dtype).reshape(contexts, k, r),
        variances.to(dtype).reshape(contexts, k, r),
        values.to(dtype).reshape(contexts, k),
        indices.reshape(contexts, m, r),
        None if excluded is None else excluded.reshape(contexts, m),
    )


# The engines: all have the arguments of `spread`, which are checked.


def _whole_table(*args: Any) -> Tensor:
    means, variances, values, indices, excluded, density, degrees, _ = args
    kind = Kind(density, degrees, means.shape[-1])
    means = means.to(torch.promote_types(means.dtype, values.dtype))
    table = _proportions(means, variances, indices, excluded, kind)
    return (values.to(table.dtype).unsqueeze(-1) * table).sum(-2)


def _in_chunks(function: type[torch.autograd.Function], *args: Any) -> Tensor:
    *tensors, density, degrees, _ = args
    means, variances, *rest = _flatten(*tensors)
    kind = Kind(density, degrees, means.shape[-1])
    out: Any = function.apply(*tame(means, variances), *rest, kind)
    return out.view(tensors[3].shape[:-1])


def _fused(*args: Any) -> Tensor:
    from sparsewire.ops.spread._triton import operators

    *tensors, density, degrees, tolerance = args
    out = operators.spread(*_flatten(*tensors), density, degrees, tolerance)[0]
    return out.view(tensors[3].shape[:-1])


def _pairs(means: Tensor, variances: Tensor, values: Tensor, indices: Tensor, *_: Any) -> int:
    return values.numel() * indices.shape[-2]


ENGINES = (
    Engine("triton", _fused),
    Engine(
        "grid",
        functools.partial(_in_chunks, _grid.GridSpread),
        takes=_grid.fits,
        pays=lambda *args: _pairs(*args) > _SMALL_PAIRS and _grid.pays(*args),
    ),
    Engine(
        "chunked",
        functools.partial(_in_chunks, ChunkedSpread),
        pays=lambda *args: _pairs(*args) > _SMALL_PAIRS,
    ),
    Engine("reference", _whole_table),
)
