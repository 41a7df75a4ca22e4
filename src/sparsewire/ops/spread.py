"""Stage 4, spread: continuous tuples deal their values out over the integer tuples.

`proportions` and `spread_reference` are the specification; they keep the whole (k, m) table.
`spread_chunked` computes the same in chunks of the table, forward and backward, and keeps none of
it. `spread` chooses between the two by size.
"""

import math
from typing import Any

import torch
from torch import Tensor

from sparsewire._typing import Bool, Float, Int
from sparsewire.ops._checks import (
    check_choice,
    check_devices,
    check_dims,
    check_exact,
    check_floating,
    check_integer,
    check_range,
)
from sparsewire.ops._chunked import ChunkedSpread
from sparsewire.ops.density import DEGREES, DENSITIES, Density, Kind, hidden_logit, tame
from sparsewire.ops.tuples import working_dtype

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
    check_floating("means", means)
    check_integer("indices", indices)
    check_dims("indices", indices, (None, None), "(*b, m, r)")
    pairs = math.prod(means.shape[:-1]) * indices.shape[-2]
    engine = spread_reference if pairs <= _SMALL_PAIRS else spread_chunked
    return engine(means, variances, values, indices, excluded, density, degrees)


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
    _check(means, variances, indices, excluded, density, degrees, values)
    dtype = working_dtype(torch.promote_types(means.dtype, values.dtype))
    *prefix, m, r = indices.shape
    contexts, k = math.prod(prefix), means.shape[-2]
    means, variances = tame(means.to(dtype), variances.to(dtype))
    shared: Any = ChunkedSpread.apply(
        means.reshape(contexts, k, r),
        variances.reshape(contexts, k, r),
        values.to(dtype).reshape(contexts, k),
        indices.reshape(contexts, m, r),
        None if excluded is None else excluded.reshape(contexts, m),
        Kind(density, float(degrees), r),
    )
    return shared.view(*prefix, m)


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
