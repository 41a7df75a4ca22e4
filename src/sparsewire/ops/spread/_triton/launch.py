"""Kernels of `spread`: tiles of the table of pairs that live in registers only.

Five kernels compute the forward pass, two more the backward pass:

    pack_points, pack_rows    integer and continuous tuples, column by column
    sum_densities             Σ_j p_ij for tiles of rows against a part of the points
    finish_normalisers        the normaliser of each row, in log space where all points are far
    distribute                v'_j = Σ_i v_i p_ij / Σ_l p_il for tiles of points against all rows
    sum_moments               Σ_j g_j p_ij, Σ_j p_ij x_j, Σ_j g_j p_ij x_j, … of each row
    finish_gradients          gradients of means, variances and values from the moments

Rows are continuous tuples, points are integer tuples. *Near* mode is for large tables and small
variances: rows and points are sorted in space, every tile and every group of tiles has a bounding
box, and pairs of tiles so far apart that no row loses more than `tolerance` are skipped.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from sparsewire.ops._triton_density import RANGE, constants
from sparsewire.ops.density import Kind
from sparsewire.ops.spread._triton.backward import finish_gradients, sum_moments
from sparsewire.ops.spread._triton.forward import distribute
from sparsewire.ops.spread._triton.morton import morton_codes
from sparsewire.ops.spread._triton.normalise import finish_normalisers, sum_densities
from sparsewire.ops.spread._triton.pack import merge_boxes, pack_points, pack_rows

# Tiles that make a group in near mode, and groups that make a larger one.
GROUP = 32

# From this number of pairs in a context, sorting the tuples costs less than it may save.
NEAR_PAIRS = 2**27

# Programs that fill a large GPU several times; with fewer row tiles, points are split into parts.
_PROGRAMS = 1024

# Pairs of a thread, for each kind of kernel: more pairs read less memory, but need registers.
_PAIRS_SUM, _PAIRS_DISTRIBUTE, _PAIRS_MOMENTS = 8, 16, 4


class Packed(NamedTuple):
    """What the forward pass saves for the backward pass: O(k + m)."""

    rows: Tensor  # (c, 2r + 3, k): means, precisions, top, value over normaliser, 1 / normaliser
    points: Tensor  # (c, r, m)
    # Empty but in near mode: (c, k), (c, m), and for tiles, their groups and groups of these,
    # (c, 3r + 1, ·) with lowest mean, −highest mean, smallest precision, threshold, and (c, 2r, ·)
    # with lowest and −highest point: the minimum of each describes a group.
    row_order: Tensor
    point_order: Tensor
    row_boxes: Tensor
    point_boxes: Tensor


class Plan(NamedTuple):
    """Sizes of a launch, from the shapes alone."""

    contexts: int
    k: int
    m: int
    r: int
    near: bool
    rows: int  # rows in a tile
    points: int  # points in a tile

    @classmethod
    def of(cls, contexts: int, k: int, m: int, r: int, kind: Kind, tolerance: float) -> "Plan":
        """Choose tiles, and whether tuples are sorted in space."""
        near = tolerance > 0 and kind.name == "gaussian" and k * m >= NEAR_PAIRS
        # Moments of more axes need more registers; few points need smaller tiles to fill a GPU.
        rows = min(16 if r <= 3 else 8, triton.next_power_of_2(max(k, 1)))
        points = min(128 if contexts * m >= 2**17 else 64, max(triton.next_power_of_2(m), 16))
        return cls(contexts, k, m, r, near, rows, points)

    @property
    def row_tiles(self) -> int:
        """Number of row tiles in a context."""
        return -(-self.k // self.rows)

    @property
    def point_tiles(self) -> int:
        """Number of point tiles in a context."""
        return -(-self.m // self.points)

    @property
    def parts(self) -> int:
        """Number of parts of the points, for kernels whose programs have a tile of rows."""
        wanted = _PROGRAMS // max(self.contexts * self.row_tiles, 1)
        units = -(-self.point_tiles // GROUP) if self.near else self.point_tiles
        return max(min(wanted, units), 1)

    @property
    def row_parts(self) -> int:
        """Number of parts of the rows, for the kernel whose programs have a tile of points."""
        wanted = _PROGRAMS // max(self.contexts * self.point_tiles, 1)
        return 1 if self.near else max(min(wanted, self.row_tiles // 8), 1)

    def warps(self, pairs: int) -> int:
        """Warps of a program, for so many pairs in a thread."""
        return max(min(self.rows * self.points // (32 * pairs), 16), 1)


def boxes(tiles: int) -> int:
    """Return the number of boxes of tiles, groups of tiles, and groups of groups."""
    groups = -(-tiles // GROUP)
    return tiles + groups + -(-groups // GROUP)


def empty(plan: Plan, like: Tensor) -> Packed:
    """Return memory for what the forward pass saves; orders are integers."""
    c, k, m, r = plan[:4]
    near = c if plan.near else 0
    return Packed(
        like.new_empty(c, 2 * r + 3, k),
        like.new_empty(c, r, m),
        like.new_empty(near, k, dtype=torch.int64),
        like.new_empty(near, m, dtype=torch.int64),
        like.new_empty(near, 3 * r + 1, boxes(plan.row_tiles)),
        like.new_empty(near, 2 * r, boxes(plan.point_tiles)),
    )


def forward(
    means: Tensor,
    variances: Tensor,
    values: Tensor,
    indices: Tensor,
    excluded: Tensor | None,
    kind: Kind,
    tolerance: float,
) -> tuple[Tensor, Packed]:
    """Spread values (c, k) over indices (c, m, r)."""
    (c, k, r), m = means.shape, indices.shape[-2]
    plan, dtype = Plan.of(c, k, m, r, kind, tolerance), means.dtype
    out = means.new_empty(c, m)
    packed = empty(plan, means)
    if not out.numel():
        return out, packed
    if not k:
        return out.zero_(), packed
    hidden = None if excluded is None else excluded.contiguous().view(torch.uint8)
    indices = indices.contiguous()
    share = math.log2(tolerance / m) if tolerance > 0 else -math.inf
    seeds = packed.points
    if plan.near:
        packed, seeds = _order(packed, means, indices, hidden)
    pairs = _pairs(plan, kind, dtype)
    pack_points[(c * plan.point_tiles,)](
        indices,
        indices if hidden is None else hidden,
        packed.point_order,
        packed.points,
        packed.point_boxes,
        m,
        plan.point_tiles,
        packed.point_boxes.shape[-1],
        R=r,
        POINTS=plan.points,
        NEAR=plan.near,
        MASKED=hidden is not None,
        **constants(kind, dtype, "HIDDEN"),
    )
    pack_rows[(c * plan.row_tiles,)](
        means.contiguous(),
        variances.contiguous(),
        packed.row_order,
        packed.points,
        seeds,
        packed.rows,
        packed.row_boxes,
        k,
        m,
        plan.row_tiles,
        packed.row_boxes.shape[-1],
        share,
        R=r,
        ROWS=plan.rows,
        NEAR=plan.near,
        **constants(kind, dtype, *RANGE, "SCALE", "STUDENT", "POWER"),
        **_rounding(dtype),
    )
    if plan.near:
        _group(packed.point_boxes, plan.point_tiles)
        _group(packed.row_boxes, plan.row_tiles)
    parts = plan.parts
    totals = means.new_empty(c, parts, k)
    table = packed.rows, packed.points, packed.row_boxes, packed.point_boxes
    sizes = k, m, plan.row_tiles, plan.point_tiles
    sum_densities[(c * plan.row_tiles * parts,)](
        *table, totals, *sizes, parts, **pairs, num_warps=plan.warps(_PAIRS_SUM)
    )
    finish_normalisers[(c * plan.row_tiles,)](
        *table,
        totals,
        values.contiguous(),
        packed.row_order,
        *sizes,
        parts,
        share,
        **pairs,
        PARTS=triton.next_power_of_2(parts),
        TINY=2.0**-80,
        num_warps=plan.warps(_PAIRS_SUM),
    )
    if plan.near:
        _group(packed.row_boxes, plan.row_tiles)
    row_parts = plan.row_parts
    parts_of_out = out if row_parts == 1 else means.new_empty(c, row_parts, m)
    warps = plan.warps(_PAIRS_DISTRIBUTE)
    distribute[(c * plan.point_tiles * row_parts,)](
        *table, packed.point_order, parts_of_out, *sizes, row_parts, **pairs, num_warps=warps
    )
    if row_parts > 1:
        torch.sum(parts_of_out, 1, out=out)
    return out, packed


def backward(
    grad: Tensor, tuples: Sequence[Tensor], packed: Packed, kind: Kind, tolerance: float
) -> tuple[Tensor, ...]:
    """Return the gradients of means, variances and values, the `tuples`."""
    means = tuples[0]
    (c, k, r), m = means.shape, packed.points.shape[-1]
    plan, dtype = Plan.of(c, k, m, r, kind, tolerance), means.dtype
    if not c or not k or not m:
        return tuple(t.new_zeros(t.shape) for t in tuples)
    grads = tuple(t.new_empty(t.shape) for t in tuples)
    grad = grad.gather(-1, packed.point_order) if plan.near else grad.contiguous()
    parts = plan.parts
    moments = means.new_empty(c, parts, 1 + 4 * r, k)
    table = packed.rows, packed.points, packed.row_boxes, packed.point_boxes
    sizes = k, m, plan.row_tiles, plan.point_tiles
    sum_moments[(c * plan.row_tiles * parts,)](
        *table,
        grad,
        moments,
        *sizes,
        parts,
        **_pairs(plan, kind, dtype),
        **constants(kind, dtype, "SCALE"),
        num_warps=plan.warps(_PAIRS_MOMENTS),
    )
    finish_gradients[(c * plan.row_tiles,)](
        packed.rows,
        packed.row_order,
        moments,
        *(t.contiguous() for t in tuples),
        *grads,
        k,
        plan.row_tiles,
        parts,
        R=r,
        ROWS=plan.rows,
        NEAR=plan.near,
        PARTS=triton.next_power_of_2(parts),
        **constants(kind, dtype, "SCALE", "FARTHEST", "SHARPEST"),
    )
    return grads


def _pairs(plan: Plan, kind: Kind, dtype: torch.dtype) -> dict[str, Any]:
    """Return the constants of kernels that compute tiles of the table."""
    return {
        "R": plan.r,
        "ROWS": plan.rows,
        "POINTS": plan.points,
        "NEAR": plan.near,
        "GROUP": GROUP,
        **constants(kind, dtype, "LIMIT", "STUDENT", "POWER", "HIDDEN"),
        **_rounding(dtype),
    }


def _rounding(dtype: torch.dtype) -> dict[str, bool]:
    """Where all points are far, one kernel subtracts the logarithm that another computed.

    In float64 no distance is too large for that: all kernels must round it alike, and must not fuse
    products and sums as each of them likes.
    """
    return {"enable_fp_fusion": dtype != torch.float64}


def _order(
    packed: Packed, means: Tensor, indices: Tensor, hidden: Tensor | None
) -> tuple[Packed, Tensor]:
    """Sort rows and points in space; also return a point for each row that should be near it."""
    largest = indices.amax()
    point_codes, point_order = morton_codes(indices, hidden, largest).sort(-1)
    row_codes, row_order = morton_codes(means, None, largest).sort(-1)
    # The integer tuple below a mean, where it was sampled, has the code of the mean.
    seeds = torch.searchsorted(point_codes, row_codes)
    return packed._replace(row_order=row_order, point_order=point_order), seeds


def _group(around: Tensor, tiles: int) -> None:
    """Append to the boxes of tiles those of their groups, and of groups of groups."""
    c, fields, width = around.shape
    first, count = 0, tiles
    for _ in range(2):
        merged = -(-count // GROUP)
        merge_boxes[(c * fields * merged,)](around, first, count, width, merged, GROUP=GROUP)
        first, count = first + count, merged
