"""The kernel of the output: v'_j = Σ_i v_i p_ij / Σ_l p_il."""

import triton
import triton.language as tl

from sparsewire.ops._triton_density import log_density
from sparsewire.ops.spread._triton.tiles import box_count, near, part_of


@triton.jit
def _distribute_tile(
    total,
    columns,
    rows,
    place,
    k,
    R: tl.constexpr,
    LIMIT: tl.constexpr,
    STUDENT: tl.constexpr,
    POWER: tl.constexpr,
):
    """Add the shares of a tile of rows to a tile of points; each thread has one row."""
    live = place < k
    distance = tl.zeros_like(total)
    for axis in tl.static_range(R):
        mean = tl.load(rows + axis * k + place, mask=live, other=0)[None, :]
        precision = tl.load(rows + (R + axis) * k + place, mask=live, other=0)[None, :]
        step = columns[axis] - mean
        distance += step * (step * precision)
    top = tl.load(rows + 2 * R * k + place, mask=live, other=0)[None, :]
    weight = tl.load(rows + (2 * R + 1) * k + place, mask=live, other=0)[None, :]
    return total + weight * tl.exp2(log_density(distance, LIMIT, STUDENT, POWER) - top)


@triton.jit
def distribute(
    rows,
    points,
    row_boxes,
    point_boxes,
    order,
    out,
    k,
    m,
    row_tiles,
    point_tiles,
    row_parts,
    R: tl.constexpr,
    ROWS: tl.constexpr,
    POINTS: tl.constexpr,
    NEAR: tl.constexpr,
    GROUP: tl.constexpr,
    LIMIT: tl.constexpr,
    STUDENT: tl.constexpr,
    POWER: tl.constexpr,
    HIDDEN: tl.constexpr,
):
    row_part, tile = tl.program_id(0) % row_parts, tl.program_id(0) // row_parts % point_tiles
    context = (tl.program_id(0) // row_parts // point_tiles).to(tl.int64)
    place = tile * POINTS + tl.arange(0, POINTS)
    lane = tl.arange(0, ROWS)
    rows += context * (2 * R + 3) * k
    points += context * R * m
    columns = ()
    for axis in tl.static_range(R):
        column = tl.load(points + axis * m + place, mask=place < m, other=HIDDEN)
        columns = columns + (column[:, None],)
    total = tl.zeros([POINTS, ROWS], rows.dtype.element_ty)
    if NEAR:
        point_width, row_width = box_count(point_tiles, GROUP), box_count(row_tiles, GROUP)
        point_box = point_boxes + context * 2 * R * point_width + tile
        row_boxes += context * (3 * R + 1) * row_width
        groups = tl.cdiv(row_tiles, GROUP)
        for top_group in range(0, tl.cdiv(groups, GROUP)):
            box = row_boxes + row_tiles + groups + top_group
            if near(box, row_width, point_box, point_width, R, LIMIT, STUDENT, POWER):
                for group in range(top_group * GROUP, tl.minimum((top_group + 1) * GROUP, groups)):
                    box = row_boxes + row_tiles + group
                    if near(box, row_width, point_box, point_width, R, LIMIT, STUDENT, POWER):
                        for part in range(
                            group * GROUP, tl.minimum((group + 1) * GROUP, row_tiles)
                        ):
                            box = row_boxes + part
                            if near(
                                box, row_width, point_box, point_width, R, LIMIT, STUDENT, POWER
                            ):
                                total = _distribute_tile(
                                    total, columns, rows, part * ROWS + lane, k,
                                    R, LIMIT, STUDENT, POWER,
                                )  # fmt: skip
    else:
        first, last = part_of(row_part, row_parts, row_tiles, False, GROUP)
        for part in range(first, last):
            total = _distribute_tile(
                total, columns, rows, part * ROWS + lane, k, R, LIMIT, STUDENT, POWER
            )
    received = tl.sum(total, 1)
    column = tl.load(points + place, mask=place < m, other=HIDDEN)
    received = tl.where(column < HIDDEN / 2, received, 0)
    source = place.to(tl.int64)
    if NEAR:
        source = tl.load(order + context * m + place, mask=place < m, other=0)
    out += (context * row_parts + row_part) * m
    tl.store(out + source, received, mask=place < m)
