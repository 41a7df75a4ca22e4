"""Stage 4, spread: continuous tuples deal their values out over the integer tuples.

`proportions` and `spread_reference` are the specification; they keep the whole (k, m) table.
`spread_chunked` computes the same in chunks of the table, forward and backward, and keeps none of
it; `spread_compiled` compiles the chunks. `spread` chooses by device and size, and on a GPU it runs
fused kernels.
"""

import math
from collections.abc import Callable
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
from sparsewire.engines import chosen, kernels_run
from sparsewire.ops.bound import working_dtype
from sparsewire.ops.density import DEGREES, DENSITIES, Density, Kind, hidden_logit, tame
from sparsewire.ops.spread._chunked import ChunkedSpread
from sparsewire.ops.spread._compiled import WORTHWHILE, CompiledSpread, available

# Tables this small are cheaper to keep than to make again.
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
    """Give every integer tuple its share of the values.

    v'_j = Σ_i v_i p_ij / Σ_l p_il, where p_ij = N(index_j | mean_i, diag(variance_i)) and both
    sums leave out the excluded tuples. Computed in log space: finite for every finite input.

    Time is O(k·m); memory, backward included, is O(k + m): the table of pairs is made in chunks
    and made again in the backward pass, and in that of the second derivative. Gradients reach
    means, variances and values.

    Args:
        means: Continuous tuples, any batch prefix; each (k, r) matrix is a context.
        variances: Their positive variances, one for each axis.
        values: Their values.
        indices: Integer tuples of the same contexts.
        excluded: Integer tuples that get nothing (repeats).
        density: `"gaussian"`, or `"student"` for heavy tails: the multivariate Student-t density,
            p_ij ∝ (1 + δ_ij / ν)^(−(ν + r) / 2) with δ the squared distance in units of variance.
        degrees: Degrees of freedom ν of `"student"`; the smaller, the heavier the tails.
        tolerance: Share of its value that a continuous tuple may lose to integer tuples too far
            away to matter, which the kernels then skip where the table is large; 0 skips nothing.
            The other engines skip nothing.

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
    check_range("tolerance", tolerance, 0.0, 1.0)
    check_floating("means", means)
    check_integer("indices", indices)
    check_dims("indices", indices, (None, None), "(*b, m, r)")
    tensors = means, variances, values, indices, excluded
    if kernels_run(means.device):
        return _spread_fused(*tensors, density, degrees, tolerance)
    pairs = math.prod(means.shape[:-1]) * indices.shape[-2]
    return _choose(means.device, pairs)(*tensors, density, degrees)


def _choose(device: torch.device, pairs: int) -> Callable[..., Tensor]:
    """Return the engine for a table of so many pairs: from its size alone, never from the past."""
    if (name := chosen()) == "auto":
        if pairs <= _SMALL_PAIRS:
            return spread_reference
        worthwhile = device.type == "cpu" and pairs >= WORTHWHILE
        if worthwhile and not torch.compiler.is_compiling() and available():
            return spread_compiled
        return spread_chunked
    if name == "compiled":
        return spread_compiled
    return spread_reference if name == "reference" else spread_chunked


def _spread_fused(
    means: Tensor,
    variances: Tensor,
    values: Tensor,
    indices: Tensor,
    excluded: Tensor | None,
    density: Density,
    degrees: float,
    tolerance: float,
) -> Tensor:
    """Compute `spread` in Triton kernels."""
    from sparsewire.ops.spread._triton import operators

    _check(means, variances, indices, excluded, density, degrees, values)
    flat = _flatten(means, variances, values, indices, excluded)
    out = operators.spread(*flat, density, float(degrees), float(tolerance))[0]
    return out.view(indices.shape[:-1])


def spread_chunked(
    means: Float[Tensor, "*b k r"],
    variances: Float[Tensor, "*b k r"],
    values: Float[Tensor, "*b k"],
    indices: Int[Tensor, "*b m r"],
    excluded: Bool[Tensor, "*b m"] | None = None,
    density: Density = "gaussian",
    degrees: float = 1.0,
) -> Float[Tensor, "*b m"]:
    """Compute `spread` in O(k + m) memory: in chunks of the table, made again for the gradient.

    Examples:
        >>> means, variances = torch.tensor([[1.0], [2.0]]), torch.ones(2, 1)
        >>> spread_chunked(means, variances, torch.ones(2), torch.tensor([[1], [2]]))
        tensor([1., 1.])
    """
    tensors = means, variances, values, indices, excluded
    return _apply(ChunkedSpread, *tensors, density, degrees)


def spread_compiled(
    means: Float[Tensor, "*b k r"],
    variances: Float[Tensor, "*b k r"],
    values: Float[Tensor, "*b k"],
    indices: Int[Tensor, "*b m r"],
    excluded: Bool[Tensor, "*b m"] | None = None,
    density: Density = "gaussian",
    degrees: float = 1.0,
) -> Float[Tensor, "*b m"]:
    """Compute `spread_chunked` with the chunks compiled; where that cannot be, it is the same.

    The first call compiles, for some seconds, unless an earlier process has done so.
    """
    if means.device.type != "cpu" or torch.compiler.is_compiling() or not available():
        return spread_chunked(means, variances, values, indices, excluded, density, degrees)
    tensors = means, variances, values, indices, excluded
    return _apply(CompiledSpread, *tensors, density, degrees)


def _apply(
    function: type[torch.autograd.Function],
    means: Tensor,
    variances: Tensor,
    values: Tensor,
    indices: Tensor,
    excluded: Tensor | None,
    density: Density,
    degrees: float,
) -> Tensor:
    """Check everything and call an engine that wants contexts in one dimension."""
    _check(means, variances, indices, excluded, density, degrees, values)
    means, variances, *rest = _flatten(means, variances, values, indices, excluded)
    kind = Kind(density, float(degrees), means.shape[-1])
    out: Any = function.apply(*tame(means, variances), *rest, kind)
    return out.view(indices.shape[:-1])


def _flatten(
    means: Tensor, variances: Tensor, values: Tensor, indices: Tensor, excluded: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Bring all to the working dtype and the contexts to one dimension."""
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


def spread_reference(
    means: Float[Tensor, "*b k r"],
    variances: Float[Tensor, "*b k r"],
    values: Float[Tensor, "*b k"],
    indices: Int[Tensor, "*b m r"],
    excluded: Bool[Tensor, "*b m"] | None = None,
    density: Density = "gaussian",
    degrees: float = 1.0,
) -> Float[Tensor, "*b m"]:
    """Compute `spread` from the whole table of proportions: the specification of every engine.

    Examples:
        >>> means, variances = torch.tensor([[1.0], [2.0]]), torch.ones(2, 1)
        >>> spread_reference(means, variances, torch.ones(2), torch.tensor([[1], [2]]))
        tensor([1., 1.])
    """
    _check(means, variances, indices, excluded, density, degrees, values)
    means = means.to(torch.promote_types(means.dtype, values.dtype))
    table = _proportions(means, variances, indices, excluded, density, degrees)
    return (values.to(table.dtype).unsqueeze(-1) * table).sum(-2)


def proportions(
    means: Float[Tensor, "*b k r"],
    variances: Float[Tensor, "*b k r"],
    indices: Int[Tensor, "*b m r"],
    excluded: Bool[Tensor, "*b m"] | None = None,
    density: Density = "gaussian",
    degrees: float = 1.0,
) -> Float[Tensor, "*b k m"]:
    """Return the table p'_ij = p_ij / Σ_l p_il: what share of tuple i goes to integer tuple j.

    Each row sums to one (to zero where every integer tuple is excluded). The table is as large as
    it looks: for tests and for looking at, not for training.

    Examples:
        >>> proportions(torch.tensor([[1.0]]), torch.tensor([[0.5]]), torch.tensor([[0], [1], [2]]))
        tensor([[0.2119, 0.5761, 0.2119]])
    """
    _check(means, variances, indices, excluded, density, degrees)
    return _proportions(means, variances, indices, excluded, density, degrees)


def _proportions(
    means: Tensor,
    variances: Tensor,
    indices: Tensor,
    excluded: Tensor | None,
    density: str,
    degrees: float,
) -> Tensor:
    dtype = working_dtype(means.dtype)
    means, variances = tame(means.to(dtype), variances.to(dtype))
    steps = indices.to(dtype).unsqueeze(-3) - means.unsqueeze(-2)
    distance = (steps.square() * variances.reciprocal().unsqueeze(-2)).sum(-1)
    logits = Kind(density, degrees, means.shape[-1]).log_density(distance)
    if excluded is None:
        return logits.softmax(-1)
    hidden = excluded.unsqueeze(-2)
    return logits.masked_fill(hidden, hidden_logit(dtype)).softmax(-1).masked_fill(hidden, 0)


def _check(
    means: Tensor,
    variances: Tensor,
    indices: Tensor,
    excluded: Tensor | None,
    density: str,
    degrees: float,
    values: Tensor | None = None,
) -> None:
    check_floating("means", means)
    check_floating("variances", variances)
    check_integer("indices", indices)
    check_choice("density", density, DENSITIES)
    check_range("degrees", degrees, *DEGREES)
    check_dims("means", means, (None, None), "(*b, k, r)")
    *prefix, k, r = means.shape
    if r < 1:
        raise ValueError(f"means must have at least one column; got {tuple(means.shape)}")
    check_exact("variances", variances, (*prefix, k, r))
    check_dims("indices", indices, (None, r), "(*b, m, r)")
    check_exact("indices", indices, (*prefix, indices.shape[-2], r))
    if values is not None:
        check_floating("values", values)
        check_exact("values", values, (*prefix, k))
    if excluded is not None:
        check_exact("excluded", excluded, tuple(indices.shape[:-1]))
        if excluded.dtype != torch.bool:
            raise TypeError(f"excluded must have dtype torch.bool; got {excluded.dtype}")
    check_devices(
        means=means, variances=variances, values=values, indices=indices, excluded=excluded
    )
