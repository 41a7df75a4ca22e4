"""Stage 4, spread: continuous tuples deal their values out over the integer tuples.

`proportions` and `spread_reference` are the specification; they keep the whole (k, m) table.
`spread_chunked` computes the same in chunks of the table, forward and backward, and keeps none of
it. `spread` chooses between the two by size.
"""

import math
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

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
from sparsewire.ops.tuples import working_dtype

Density = Literal["gaussian", "student"]
DENSITIES: tuple[Density, ...] = get_args(Density)

# Pairs in flight at once: a chunk of this many floats sits in a core's cache, or fills a GPU.
_CHUNK_PAIRS = {"cpu": 2**17}
_CHUNK_PAIRS_ELSEWHERE = 2**22

# Between the heaviest tails that float32 can hold and what is Gaussian to its last digit.
DEGREES = (1e-6, 1e6)

# Tables this small are cheaper to keep than to make again.
_SMALL_PAIRS = 2**13

# What "however far" means: means and squared distances end at the first number, variances at the
# second, so that no step of the arithmetic overflows, gradients included.
_FARTHEST = {torch.float32: 1e18, torch.float64: 1e150}
_SHARPEST = {torch.float32: 1e-12, torch.float64: 1e-100}


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
    and made again in the backward pass. Gradients reach means, variances and values, and may be
    differentiated once more.

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

    Example:
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

    Example:
        >>> means, variances = torch.tensor([[1.0], [2.0]]), torch.ones(2, 1)
        >>> spread_chunked(means, variances, torch.ones(2), torch.tensor([[1], [2]]))
        tensor([1., 1.])
    """
    _check(means, variances, indices, excluded, density, degrees, values)
    dtype = working_dtype(torch.promote_types(means.dtype, values.dtype))
    *prefix, m, r = indices.shape
    contexts, k = math.prod(prefix), means.shape[-2]
    means, variances = _tame(means.to(dtype), variances.to(dtype))
    shared: Any = _Spread.apply(
        means.reshape(contexts, k, r),
        variances.reshape(contexts, k, r),
        values.to(dtype).reshape(contexts, k),
        indices.reshape(contexts, m, r),
        None if excluded is None else excluded.reshape(contexts, m),
        _Kind(density, float(degrees), r),
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

    Example:
        >>> means, variances = torch.tensor([[1.0], [2.0]]), torch.ones(2, 1)
        >>> spread_reference(means, variances, torch.ones(2), torch.tensor([[1], [2]]))
        tensor([1., 1.])
    """
    _check(means, variances, indices, excluded, density, degrees, values)
    means = means.to(torch.promote_types(means.dtype, values.dtype))
    table = proportions(means, variances, indices, excluded, density, degrees)
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

    Example:
        >>> proportions(torch.tensor([[1.0]]), torch.tensor([[0.5]]), torch.tensor([[0], [1], [2]]))
        tensor([[0.2119, 0.5761, 0.2119]])
    """
    _check(means, variances, indices, excluded, density, degrees)
    dtype = working_dtype(means.dtype)
    means, variances = _tame(means.to(dtype), variances.to(dtype))
    steps = indices.to(dtype).unsqueeze(-3) - means.unsqueeze(-2)
    distance = (steps.square() * variances.reciprocal().unsqueeze(-2)).sum(-1)
    logits = _Kind(density, degrees, means.shape[-1]).log_density(distance)
    if excluded is None:
        return logits.softmax(-1)
    hidden = excluded.unsqueeze(-2)
    return logits.masked_fill(hidden, _hidden_logit(dtype)).softmax(-1).masked_fill(hidden, 0)


def _tame(means: Tensor, variances: Tensor) -> tuple[Tensor, Tensor]:
    farthest = _FARTHEST[means.dtype]
    return means.clamp(-farthest, farthest), variances.clamp(min=_SHARPEST[means.dtype])


def _hidden_logit(dtype: torch.dtype) -> float:
    """So far below every other logit that its exponential is exactly zero, yet not infinite."""
    return torch.finfo(dtype).min


class _Kind(NamedTuple):
    """A density as a function of the squared distance δ, without factors that cancel."""

    name: str
    degrees: float
    rank: int

    def log_density(self, distance: Tensor) -> Tensor:
        distance = distance.clamp(max=_FARTHEST[distance.dtype])
        if self.name == "gaussian":
            return distance * -0.5
        return torch.log1p(distance / self.degrees) * (-0.5 * (self.degrees + self.rank))

    def slope(self, distance: Tensor) -> Tensor | None:
        """Return −2 · d log p / dδ, or None where it is one everywhere."""
        if self.name == "gaussian":
            return None
        return (self.degrees + self.rank) / (self.degrees + distance)


class _Spread(torch.autograd.Function):
    """The chunked engine: keeps its inputs only and makes the table again in the backward pass."""

    @staticmethod
    def forward(
        means: Tensor,
        variances: Tensor,
        values: Tensor,
        indices: Tensor,
        excluded: Tensor | None,
        kind: _Kind,
    ) -> Tensor:
        out = means.new_zeros(indices.shape[:-1])
        for chunk in _chunks(means, variances, values, indices, excluded):
            table, _ = chunk.proportions(kind)
            out[chunk.contexts] += table.mul_(chunk.values.unsqueeze(-1)).sum(-2)
        return out if excluded is None else out.masked_fill_(excluded, 0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:5])
        ctx.kind = inputs[5]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        differentiate: Any = _SpreadBackward
        # Only a backward pass that will itself be differentiated needs a node in the graph.
        call = differentiate.apply if torch.is_grad_enabled() else differentiate.forward
        return (*call(*grads, *ctx.saved_tensors, ctx.kind), None, None, None)


class _SpreadBackward(torch.autograd.Function):
    """The first derivative, written out; its own derivative comes from autograd, chunk by chunk.

    With g the gradient of v' and a_i = Σ_j g_j p_ij: dL/dv_i = a_i, and through the logarithm of
    the density dL/dlog p_ij = v_i p_ij (g_j − a_i).
    """

    @staticmethod
    def forward(
        grad: Tensor,
        means: Tensor,
        variances: Tensor,
        values: Tensor,
        indices: Tensor,
        excluded: Tensor | None,
        kind: _Kind,
    ) -> tuple[Tensor, Tensor, Tensor]:
        grads = torch.empty_like(means), torch.empty_like(variances), torch.empty_like(values)
        if excluded is not None:
            grad = grad.masked_fill(excluded, 0)
        farthest = _FARTHEST[means.dtype]
        for chunk in _chunks(means, variances, values, indices, excluded):
            to_means, to_variances, to_values = (g[chunk.place] for g in grads)
            table, distance = chunk.proportions(kind)
            incoming = grad[chunk.contexts].unsqueeze(-2)
            received = (table * incoming).sum(-1, keepdim=True)
            to_values.copy_(received.squeeze(-1))
            weight = table.mul_(incoming - received).mul_(chunk.values.unsqueeze(-1))
            weight.masked_fill_(distance >= farthest, 0)
            if (slope := kind.slope(distance)) is not None:
                weight.mul_(slope)
            for axis in range(kind.rank):
                _, pull = chunk.steps(axis)
                weighted = weight * pull
                to_means[..., axis] = weighted.sum(-1)
                to_variances[..., axis] = weighted.mul_(pull).sum(-1)
        grads[1].mul_(0.5)
        return grads

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs[:6])
        ctx.kind = inputs[6]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        grad, means, variances, values, indices, excluded = ctx.saved_tensors
        tuples = means, variances, values
        if excluded is not None:
            grad = grad.masked_fill(excluded, 0)
        to_grad, *to_tuples = (torch.zeros_like(t) for t in (grad, *tuples))
        for chunk in _chunks(*tuples, indices, excluded):
            with torch.enable_grad():
                incoming = grad[chunk.contexts].detach().requires_grad_()
                leaves = [t[chunk.place].detach().requires_grad_() for t in tuples]
                table, _ = chunk.with_tuples(*leaves).proportions(ctx.kind)
                out = (table * leaves[2].unsqueeze(-1)).sum(-2)
                first = torch.autograd.grad(out, leaves, incoming, create_graph=True)
                second = [g[chunk.place] for g in grads]
                parts = torch.autograd.grad(first, (incoming, *leaves), second)
            to_grad[chunk.contexts] += parts[0]
            for total, part in zip(to_tuples, parts[1:], strict=True):
                total[chunk.place] = part
        if excluded is not None:
            to_grad.masked_fill_(excluded, 0)
        return (to_grad, *to_tuples, None, None, None)


class _Chunk(NamedTuple):
    """Rows of the table: continuous tuples at `place`, all integer tuples of their contexts."""

    contexts: slice
    place: tuple[slice, slice]
    points: tuple[Tensor, ...]
    hidden: Tensor | None
    values: Tensor
    means: tuple[Tensor, ...] = ()
    precisions: tuple[Tensor, ...] = ()

    def with_tuples(self, means: Tensor, variances: Tensor, values: Tensor) -> "_Chunk":
        """Return the chunk with these continuous tuples, taken apart by axis."""
        return self._replace(
            means=means.unsqueeze(-1).unbind(-2),
            precisions=variances.reciprocal().unsqueeze(-1).unbind(-2),
            values=values,
        )

    def steps(self, axis: int) -> tuple[Tensor, Tensor]:
        """Return the differences index − mean along an axis, and the same over the variance."""
        step = self.points[axis] - self.means[axis]
        return step, step * self.precisions[axis]

    def proportions(self, kind: _Kind) -> tuple[Tensor, Tensor]:
        """Return proportions and squared distances, axis by axis: no (k, m, r) table."""
        step, pull = self.steps(0)
        distance = step * pull
        for axis in range(1, kind.rank):
            distance = torch.addcmul(distance, *self.steps(axis))
        logits = kind.log_density(distance)
        if self.hidden is not None:
            logits = logits.masked_fill(self.hidden, _hidden_logit(logits.dtype))
        return logits.softmax(-1), distance


def _chunks(
    means: Tensor, variances: Tensor, values: Tensor, indices: Tensor, excluded: Tensor | None
) -> Iterator[_Chunk]:
    """Cut the tables of all contexts into chunks of whole rows: a few contexts, or part of one."""
    (contexts, k), m = values.shape, indices.shape[-2]
    points = indices.movedim(-1, 0).to(means.dtype).contiguous().unsqueeze(-2)
    hidden = None if excluded is None else excluded.unsqueeze(-2)
    rows = max(_CHUNK_PAIRS.get(means.device.type, _CHUNK_PAIRS_ELSEWHERE) // max(m, 1), 1)
    together, part = max(rows // max(k, 1), 1), max(min(rows, k), 1)
    for start in range(0, contexts, together):
        here = slice(start, start + together)
        near = points[:, here].unbind(0)
        for first in range(0, k, part):
            place = here, slice(first, first + part)
            chunk = _Chunk(here, place, near, None if hidden is None else hidden[here], values)
            yield chunk.with_tuples(means[place], variances[place], values[place])


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
