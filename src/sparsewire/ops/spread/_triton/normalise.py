"""Kernels of the normaliser of each continuous tuple: Σ_j p_ij over its integer tuples."""

import triton
import triton.language as tl

from sparsewire.ops.spread._triton.tiles import (
    box_count,
    part_of,
    read_rows,
    sum_parts,
    sweep,
    threshold_of,
)


@triton.jit
def sum_densities(
    rows,
    points,
    row_boxes,
    point_boxes,
    totals,
    k,
    m,
    row_tiles,
    point_tiles,
    parts,
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
    part, tile = tl.program_id(0) % parts, tl.program_id(0) // parts % row_tiles
    context = (tl.program_id(0) // parts // row_tiles).to(tl.int64)
    place = tile * ROWS + tl.arange(0, ROWS)
    rows += context * (2 * R + 3) * k
    means, precisions = read_rows(rows, place, k, 0, R), read_rows(rows, place, k, R, R)
    first, last = part_of(part, parts, point_tiles, NEAR, GROUP)
    row_width = box_count(row_tiles, GROUP)
    sums = sweep(
        (tl.zeros([ROWS, POINTS], rows.dtype.element_ty),),
        means,
        precisions,
        means[0],
        points + context * R * m,
        points,
        row_boxes + context * (3 * R + 1) * row_width + tile,
        row_width,
        point_boxes + context * 2 * R * box_count(point_tiles, GROUP),
        m,
        point_tiles,
        first,
        last,
        R,
        POINTS,
        NEAR,
        GROUP,
        LIMIT,
        STUDENT,
        POWER,
        1.0,
        HIDDEN,
        "total",
    )
    tl.store(totals + (context * parts + part) * k + place, tl.sum(sums[0], 1), mask=place < k)


@triton.jit
def finish_normalisers(
    rows,
    points,
    row_boxes,
    point_boxes,
    totals,
    values,
    order,
    k,
    m,
    row_tiles,
    point_tiles,
    parts,
    share,
    R: tl.constexpr,
    ROWS: tl.constexpr,
    POINTS: tl.constexpr,
    NEAR: tl.constexpr,
    GROUP: tl.constexpr,
    LIMIT: tl.constexpr,
    STUDENT: tl.constexpr,
    POWER: tl.constexpr,
    HIDDEN: tl.constexpr,
    PARTS: tl.constexpr,
    TINY: tl.constexpr,
):
    tile, context = tl.program_id(0) % row_tiles, (tl.program_id(0) // row_tiles).to(tl.int64)
    place = tile * ROWS + tl.arange(0, ROWS)
    live = place < k
    rows += context * (2 * R + 3) * k
    total = sum_parts(totals + context * parts * k + place, live, k, parts, PARTS)
    total = tl.where(live, total, 1)
    top = tl.zeros([ROWS], rows.dtype.element_ty)
    row_width = box_count(row_tiles, GROUP)
    row_box = row_boxes + context * (3 * R + 1) * row_width + tile
    if tl.min(total, 0) < TINY:
        # Some row has all its points so far away that their densities vanish: subtract the largest
        # logarithm first, as softmax does, in two more sweeps.
        points += context * R * m
        around = point_boxes + context * 2 * R * box_count(point_tiles, GROUP)
        first, last = part_of(0, 1, point_tiles, NEAR, GROUP)
        means, precisions = read_rows(rows, place, k, 0, R), read_rows(rows, place, k, R, R)
        sums = sweep(
            (tl.full([ROWS, POINTS], float("-inf"), rows.dtype.element_ty),),
            means, precisions, means[0], points, points, row_box, row_width, around, m, point_tiles,
            first, last, R, POINTS, NEAR, GROUP, LIMIT, STUDENT, POWER, 1.0, HIDDEN, "largest",
        )  # fmt: skip
        best = tl.max(sums[0], 1)
        top = tl.where((total < TINY) & (best > float("-inf")), best, 0)
        sums = sweep(
            (tl.zeros([ROWS, POINTS], rows.dtype.element_ty),),
            means, precisions, top[:, None], points, points, row_box, row_width, around, m,
            point_tiles, first, last,
            R, POINTS, NEAR, GROUP, LIMIT, STUDENT, POWER, 1.0, HIDDEN, "shifted",
        )  # fmt: skip
        total = tl.where(total < TINY, tl.sum(sums[0], 1), total)
    source = place.to(tl.int64)
    if NEAR:
        source = tl.load(order + context * k + place, mask=live, other=0)
        # From here on a pair matters if it has a large enough share of the value of its row.
        normaliser = tl.log2(total) + top
        normaliser = tl.where(normaliser == normaliser, normaliser, float("-inf"))
        normaliser = tl.where(live, normaliser, 0)
        tl.store(row_box + 3 * R * row_width, threshold_of(tl.min(normaliser, 0), share))
    value = tl.load(values + context * k + source, mask=live, other=0)
    inverse = tl.where(total == 0, 0, 1 / tl.where(total == 0, 1, total))
    field = rows + 2 * R * k + place
    tl.store(field, top, mask=live)
    tl.store(field + k, value * inverse, mask=live)
    tl.store(field + 2 * k, inverse, mask=live)
