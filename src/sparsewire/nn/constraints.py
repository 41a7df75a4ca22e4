"""Constrained layouts: matrices and convolutions in which only some elements may be nonzero."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sparsewire.annotations import Bool, Int
from sparsewire.checks import check_count, check_rank, constant
from sparsewire.nn.layout import Indices, Layout, Means, Placed, Samples, Shapes, Shares, along
from sparsewire.ops import fractions
from sparsewire.ops.bound import Edge, check_resolution, unbound_fractions
from sparsewire.ops.repeats import flat_columns


class _IntervalLayout(Layout):
    """Matrices whose row i may be nonzero only between two of its columns.

    The second learned column runs between `limits(i)`. Means stay between the two by construction;
    integer tuples outside are excluded before the shares are normalised.
    """

    def limits(self, row: Tensor, shapes: Shapes) -> tuple[Tensor, Tensor]:
        """Return the first and last place in a row, for integer rows and for those in between."""
        raise NotImplementedError

    def bound(self, raw: Means, shapes: Shapes, edge: Edge) -> Means:
        """Bound the row to the matrix, and the second column to the row's limits."""
        down, across = fractions(raw, edge).unbind(-1)
        check_resolution(self.space(shapes), down.dtype)
        row = down * (shapes.outs[0] - 1)
        low, high = self.limits(row, shapes)
        return torch.stack([row, low + across * (high - low)], dim=-1)

    def unbound(self, indices: Indices, shapes: Shapes, edge: Edge) -> Means:
        """Take the second column's position between the limits of its row."""
        row, place = indices.double().unbind(-1)
        last = constant([shapes.outs[0] - 1], torch.float64, row.device)
        down = along(row, 0.0, last)
        # The limits of the row that the mean will have, which differs a little at the edges.
        across = along(place, *self.limits(down * (shapes.outs[0] - 1), shapes))
        return unbound_fractions(torch.stack([down, across], dim=-1), edge)

    def allowed(self, indices: Indices, shapes: Shapes) -> Bool[Tensor, "*b"]:
        """Return which tuples lie between the limits of their row."""
        row, place = indices.unbind(-1)
        low, high = self.limits(row, shapes)
        return (low <= place) & (place <= high)

    def settle(self, indices: Indices, shapes: Shapes) -> Indices:
        """Move the second column between the limits of the rounded row."""
        row, place = indices.unbind(-1)
        return torch.stack([row, place.clamp(*self.limits(row, shapes))], dim=-1)


class LowerTriangularLayout(_IntervalLayout):
    """W[i, j] = 0 for j > i."""

    def space(self, shapes: Shapes) -> tuple[int, ...]:
        """Learn row and column."""
        return _check_matrix("LowerTriangular", shapes)

    def limits(self, row: Tensor, shapes: Shapes) -> tuple[Tensor, Tensor]:
        """Return the first column and the diagonal."""
        return torch.zeros_like(row), row.clamp(max=shapes.ins[0] - 1)


class BandedLayout(_IntervalLayout):
    """W[i, j] = 0 unless −below ≤ j − i ≤ above.

    Learned are the row and the place inside the band, j − i + below, so that no sample is wasted
    on the empty part of the matrix.
    """

    def __init__(self, below: int, above: int) -> None:
        self.below = check_count("below", below)
        self.above = check_count("above", above)

    def space(self, shapes: Shapes) -> tuple[int, ...]:
        """Learn row and place inside the band."""
        rows, cols = _check_matrix("Banded", shapes)
        if rows > cols + self.below:
            raise ValueError(
                f"out_shape must be at most ({cols + self.below},), so that the band crosses every "
                f"row; got ({rows},)"
            )
        return rows, self.below + 1 + self.above

    def limits(self, row: Tensor, shapes: Shapes) -> tuple[Tensor, Tensor]:
        """Return the first and last place of the band that are inside the matrix."""
        low = (self.below - row).clamp(min=0)
        high = (shapes.ins[0] - 1 + self.below - row).clamp(max=self.below + self.above)
        return low, high

    def place(self, indices: Samples, values: Shares, shapes: Shapes) -> Placed:
        """Turn the place inside the band into a column; excluded tuples have value 0 anywhere."""
        row, place = indices.unbind(-1)
        col = (row + place - self.below).clamp(0, shapes.ins[0] - 1)
        return Placed(row.flatten(-2), col.flatten(-2), values.flatten(-2))


class BlockDiagonalLayout(Layout):
    """W is zero outside of `blocks` equal blocks on its diagonal; tuples stay in their block."""

    def __init__(self, blocks: int, tuples: int) -> None:
        self.blocks = check_count("blocks", blocks, least=1)
        self.tuples = check_count("tuples", tuples, least=1)

    def space(self, shapes: Shapes) -> tuple[int, ...]:
        """Learn row and column inside a block."""
        sizes = _check_matrix("BlockDiagonal", shapes)
        for name, size in zip(("out_shape", "in_shape"), sizes, strict=True):
            if size % self.blocks:
                raise ValueError(
                    f"{name} must be divisible by {self.blocks}, the blocks; got ({size},)"
                )
        return tuple(size // self.blocks for size in sizes)

    def default_context(self, tuples: int) -> int:
        """Let the tuples of a block compete."""
        return self.tuples

    def check_context(self, tuples: int, context: int) -> None:
        """Refuse contexts of tuples in different blocks."""
        if (each := self.tuples) % context:
            raise ValueError(f"context must divide {each}, the tuples of a block; got {context}")

    def groups(self, tuples: int) -> Int[Tensor, " k"]:
        """Return the block of each tuple."""
        return torch.arange(tuples).div(self.tuples, rounding_mode="floor")

    def place(self, indices: Samples, values: Shares, shapes: Shapes) -> Placed:
        """Shift each context to its block."""
        blocks = torch.arange(self.blocks, device=indices.device).unsqueeze(-1)
        block = blocks.repeat_interleave(indices.shape[-3] // self.blocks, dim=0)
        height, width = self.space(shapes)
        rows, cols = indices[..., 0] + block * height, indices[..., 1] + block * width
        return Placed(rows.flatten(-2), cols.flatten(-2), values.flatten(-2))


class ConvolutionLayout(Layout):
    """One sparse kernel, sampled once and repeated at every position; see `Convolution`."""

    def __init__(
        self, kernel: Sequence[int], stride: int = 1, padding: int | Sequence[int] | None = None
    ) -> None:
        self.kernel = check_rank("kernel", kernel)
        self.stride = check_count("stride", stride, least=1)
        if padding is None:
            padding = [n // 2 for n in self.kernel]
        pads: Any = padding if isinstance(padding, (tuple, list)) else [padding] * len(self.kernel)
        self.padding = tuple(check_count("padding", pad) for pad in pads)
        if len(self.padding) != len(self.kernel):
            raise ValueError(
                f"padding must have {len(self.kernel)} entries, one for each axis of the kernel; "
                f"got {self.padding}"
            )

    def space(self, shapes: Shapes) -> tuple[int, ...]:
        """Learn the channels and the offset inside the kernel."""
        rank = 1 + len(self.kernel)
        for name, sizes in (("out_shape", shapes.outs), ("in_shape", shapes.ins)):
            if len(sizes) != rank:
                raise ValueError(
                    f"{name} must have {rank} sizes, channels and one for each axis of the kernel; "
                    f"got {sizes}"
                )
        positions = tuple(
            (n + 2 * p - k) // self.stride + 1
            for n, p, k in zip(shapes.ins[1:], self.padding, self.kernel, strict=True)
        )
        if shapes.outs[1:] != positions or min(positions) < 1:
            raise ValueError(
                f"out_shape must be (channels, {', '.join(map(str, positions))}), the positions of "
                f"a kernel {self.kernel} with stride {self.stride} and padding {self.padding} on "
                f"in_shape {shapes.ins}; got {shapes.outs}"
            )
        return (shapes.outs[0], shapes.ins[0], *self.kernel)

    def place(self, indices: Samples, values: Shares, shapes: Shapes) -> Placed:
        """Repeat the kernel at every position; elements that read outside the input get value 0."""
        outs, ins = shapes.outs[1:], shapes.ins[1:]
        out_channel, in_channel, *offset = indices.unsqueeze(-2).unbind(-1)
        position = torch.arange(math.prod(outs), device=indices.device)
        rows = out_channel * len(position) + position
        inside = torch.ones_like(rows, dtype=torch.bool)
        sources = [in_channel]
        axes = [torch.arange(n, device=indices.device) for n in outs]
        for axis, position_of in enumerate(torch.meshgrid(*axes, indexing="ij")):
            source = position_of.flatten() * self.stride - self.padding[axis] + offset[axis]
            inside &= (source >= 0) & (source < ins[axis])
            sources.append(source.clamp(0, ins[axis] - 1))
        cols = flat_columns(sources, shapes.ins)
        repeated = values.unsqueeze(-1) * inside
        return Placed(rows.flatten(-3), cols.flatten(-3), repeated.flatten(-3))


def _check_matrix(name: str, shapes: Shapes) -> tuple[int, int]:
    if len(shapes.outs) != 1 or len(shapes.ins) != 1:
        raise ValueError(
            f"out_shape and in_shape must have one size each, since {name} is a matrix; "
            f"got {shapes.outs} and {shapes.ins}"
        )
    return shapes.outs[0], shapes.ins[0]
