"""The grid engine of `spread`: Gaussian densities at every place of a small index space.

A Gaussian density is a product over the axes. The densities of a continuous tuple on the whole grid
are therefore an outer product of two rows, one for the first axes and one for the others, and sums
over places are products of matrices. Exponentials are computed along the axes only.
"""

import functools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsewire.engines import concrete
from sparsewire.ops.repeats import flat_index
from sparsewire.ops.spread._chunked import (
    ChunkedSpread,
    ChunkedSpreadBackward,
    differentiate,
    places,
)
from sparsewire.precision import without_autocast

# Places for each integer tuple, up to which the grid is smaller than the tuples themselves, and the
# largest grid that is always allowed.
_GRID_CELLS, _SMALL_GRID = 8, 2**16

# Continuous tuples in a context, from which a grid of its own is worth filling.
_LEAST_TUPLES = 16

# Elements of the rows computed at once.
_CHUNK_ELEMENTS = 2**18

# Densities are relative to that of the nearest place. Smaller ones along a group of axes are zero:
# products of two then never leave the normal range of the dtype, outside of which it is slow.
_LEAST = {torch.float32: 2.0**-62, torch.float64: 2.0**-500}
# A row whose sum is smaller has nothing near; one whose nearest place is farther would be rounded.
_LEAST_SUM, _FARTHEST = {torch.float32: 2.0**-20, torch.float64: 2.0**-400}, 1e6


class Grid(NamedTuple):
    """The box of all integer tuples; its axes are divided into two groups."""

    low: tuple[int, ...]
    sizes: tuple[int, ...]
    split: int

    @classmethod
    def around(cls, indices: Tensor) -> "Grid":
        """Return the smallest grid, divided so that the rows of both groups are short."""
        ends = [[int(t) for t in column.aminmax()] for column in indices.unbind(-1)]
        sizes = tuple(high - low + 1 for low, high in ends)
        lengths = [math.prod(sizes[:i]) + math.prod(sizes[i:]) for i in range(len(sizes))]
        return cls(tuple(low for low, _ in ends), sizes, lengths.index(min(lengths)))

    @property
    def lengths(self) -> tuple[int, int]:
        """Lengths of the rows of both groups."""
        return math.prod(self.sizes[: self.split]), math.prod(self.sizes[self.split :])

    def scatter(self, cells: Tensor, numbers: Tensor) -> Tensor:
        """Add the numbers of integer tuples (c, m) in their cells of a table (c, left, right)."""
        table = numbers.new_zeros(len(cells), math.prod(self.sizes))
        return table.scatter_add_(-1, cells, numbers).view(-1, *self.lengths)


def fits(means: Tensor, variances: Tensor, values: Tensor, indices: Tensor, *how: Any) -> bool:
    """Whether the grid engine can compute this call: a Gaussian density, and a small grid."""
    known = all(map(concrete, (means, variances, values, indices)))
    if not known or indices.device.type != "cpu" or how[1] != "gaussian" or not indices.numel():
        return False
    cells = math.prod(Grid.around(indices).sizes)
    return cells <= max(_GRID_CELLS * indices.shape[-2], _SMALL_GRID)


def pays(means: Tensor, variances: Tensor, values: Tensor, indices: Tensor, *how: Any) -> bool:
    """Whether the grid is faster than a table of pairs."""
    k, m = means.shape[-2], indices.shape[-2]
    if k < _LEAST_TUPLES or not fits(means, variances, values, indices, *how):
        return False
    grid = Grid.around(indices)
    return math.prod(grid.sizes) <= _GRID_CELLS * m and 2 * sum(grid.lengths) <= m


class GridSpread(ChunkedSpread):
    """`ChunkedSpread` by matrix products; `ChunkedSpread` itself where tuples have nothing near."""

    @classmethod
    def apply(cls, *inputs: Any) -> Any:
        """Return the values of the integer tuples."""
        return _Spread.apply(*inputs)[0]


class _Spread(torch.autograd.Function):
    """Returns the values, and the sums of densities for the backward pass."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
        means, variances, values, indices, excluded, _ = inputs
        grid, sums = Grid.around(indices), torch.empty_like(values)
        cells, visible = _cells(grid, indices), _visible(excluded, indices, means.dtype)
        seen = grid.scatter(cells, visible)
        out = torch.zeros_like(seen)
        with without_autocast(means):
            for place in places(values, sum(grid.lengths), _CHUNK_ELEMENTS):
                left, right, _, near = _densities(means[place], variances[place], grid)
                sums[place] = total = (left * (right @ seen[place[0]].mT)).sum(-1)
                if not bool((near & (total >= _LEAST_SUM[total.dtype])).all()):
                    return ChunkedSpread.forward(*inputs), means.new_empty(0)
                left *= (values[place] / total).unsqueeze(-1)
                out[place[0]].baddbmm_(left.mT, right)
        return out.flatten(1).gather(-1, cells).mul_(visible), sums

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs[:5], output[1])
        ctx.kind = inputs[5]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        *tensors, sums = ctx.saved_tensors
        inputs = grads[0], *tensors, ctx.kind
        if sums.numel():
            result = differentiate(_SpreadBackward, *inputs, sums)
        else:
            result = differentiate(ChunkedSpreadBackward, *inputs)
        return (*result, None, None, None)


class _SpreadBackward(ChunkedSpreadBackward):
    """`ChunkedSpreadBackward`, by matrix products."""

    @staticmethod
    def forward(grad: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        means, variances, values, indices, excluded, _, sums = inputs
        grads = torch.empty_like(means), torch.empty_like(variances), torch.empty_like(values)
        grid = Grid.around(indices)
        cells, visible = _cells(grid, indices), _visible(excluded, indices, means.dtype)
        tables = grid.scatter(cells, visible), grid.scatter(cells, grad * visible)
        with without_autocast(means):
            for place in places(values, sum(grid.lengths), _CHUNK_ELEMENTS):
                seen, incoming = (table[place[0]] for table in tables)
                parts = _gradients(
                    means[place], variances[place], sums[place], seen, incoming, grid
                )
                for total, part in zip(grads, parts, strict=True):
                    total[place] = part
        return grads[0].mul_(values.unsqueeze(-1)), grads[1].mul_(values.unsqueeze(-1)), grads[2]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return (*ChunkedSpreadBackward.backward(ctx, *grads), None)


def _cells(grid: Grid, indices: Tensor) -> Tensor:
    return flat_index(indices - indices.new_tensor(grid.low), grid.sizes)


def _visible(excluded: Tensor | None, indices: Tensor, dtype: torch.dtype) -> Tensor:
    if excluded is None:
        return indices.new_ones(indices.shape[:-1], dtype=dtype)
    return (~excluded).to(dtype)


def _densities(
    means: Tensor, variances: Tensor, grid: Grid
) -> tuple[Tensor, Tensor, list[Tensor], Tensor]:
    """Return the densities of both groups, steps along each axis, and which rows are near."""
    axes, steps, nearest = [], [], torch.zeros_like(means[..., 0])
    scales, least = variances.sqrt().reciprocal(), _LEAST[means.dtype]
    farthest = -2.5 * math.log(least)
    for axis, (low, size) in enumerate(zip(grid.low, grid.sizes, strict=True)):
        line = torch.arange(low, low + size, dtype=means.dtype, device=means.device)
        steps.append(line - means[..., axis, None])
        distance = (steps[-1] * scales[..., axis, None]).square_()
        closest = distance.amin(-1, keepdim=True)
        nearest += closest.squeeze(-1)
        axes.append(distance.sub_(closest).clamp_(max=farthest).mul_(-0.5).exp_())
    groups = axes[: grid.split] or [torch.ones_like(means[..., :1])], axes[grid.split :]
    left, right = (F.threshold(functools.reduce(_outer, group), least, 0.0) for group in groups)
    return left, right, steps, nearest <= _FARTHEST


def _outer(a: Tensor, b: Tensor) -> Tensor:
    return (a.unsqueeze(-1) * b.unsqueeze(-2)).flatten(-2)


def _gradients(
    means: Tensor, variances: Tensor, sums: Tensor, seen: Tensor, incoming: Tensor, grid: Grid
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of means and variances, for values of one, and that of the values."""
    left, right, steps, _ = _densities(means, variances, grid)
    along, total = right @ incoming.mT, sums.unsqueeze(-1)
    received = (left * along).sum(-1, keepdim=True) / total
    # Weights of all places, added up along the other group.
    lefts = (along - received * (right @ seen.mT)).mul_(left).div_(total)
    rights = (left @ incoming).sub_(received * (left @ seen)).mul_(right).div_(total)
    sizes = grid.sizes[: grid.split], grid.sizes[grid.split :]
    to_means, to_variances = [], []
    for weights, group in zip((lefts, rights), sizes, strict=True):
        table = weights.unflatten(-1, group or (1,))
        for i in range(len(group)):
            others = [axis - len(group) for axis in range(len(group)) if axis != i]
            line = table.sum(others) if others else table
            axis = len(to_means)
            step = steps[axis] * variances[..., axis, None].reciprocal()
            to_means.append((line * step).sum(-1))
            to_variances.append((line * step.square()).sum(-1) / 2)
    return torch.stack(to_means, -1), torch.stack(to_variances, -1), received.squeeze(-1)
