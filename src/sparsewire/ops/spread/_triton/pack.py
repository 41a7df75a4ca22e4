"""Kernels that pack rows (continuous tuples) and points (integer tuples) for the others."""

import triton
import triton.language as tl

from sparsewire.ops._triton_density import bounded, log_density
from sparsewire.ops.spread._triton.tiles import threshold_of


@triton.jit
def pack_points(
    indices,
    excluded,
    order,
    points,
    boxes,
    m,
    point_tiles,
    width,
    R: tl.constexpr,
    POINTS: tl.constexpr,
    NEAR: tl.constexpr,
    MASKED: tl.constexpr,
    HIDDEN: tl.constexpr,
):
    context, tile = tl.program_id(0).to(tl.int64) // point_tiles, tl.program_id(0) % point_tiles
    place = tile * POINTS + tl.arange(0, POINTS)
    inside = place < m
    source = place.to(tl.int64)
    if NEAR:
        source = tl.load(order + context * m + place, mask=inside, other=0)
    visible = inside
    if MASKED:
        visible &= tl.load(excluded + context * m + source, mask=inside, other=1) == 0
    for axis in tl.static_range(R):
        spot = tl.load(indices + (context * m + source) * R + axis, mask=inside, other=0)
        spot = spot.to(points.dtype.element_ty)
        point = tl.where(visible, spot, HIDDEN)
        tl.store(points + (context * R + axis) * m + place, point, mask=inside)
        if NEAR:
            box = boxes + context * 2 * R * width + tile
            tl.store(box + axis * width, tl.min(tl.where(visible, spot, HIDDEN), 0))
            tl.store(box + (R + axis) * width, tl.min(tl.where(visible, -spot, HIDDEN), 0))


@triton.jit
def _or(number, otherwise):
    """Replace NaN: boxes with NaN are near everything, so that NaN reaches the output."""
    return tl.where(number == number, number, otherwise)


@triton.jit
def pack_rows(
    means,
    variances,
    order,
    points,
    seeds,
    rows,
    boxes,
    k,
    m,
    row_tiles,
    width,
    share,
    R: tl.constexpr,
    ROWS: tl.constexpr,
    NEAR: tl.constexpr,
    LIMIT: tl.constexpr,
    STUDENT: tl.constexpr,
    POWER: tl.constexpr,
    SCALE: tl.constexpr,
    FARTHEST: tl.constexpr,
    SHARPEST: tl.constexpr,
    WIDEST: tl.constexpr,
):
    context, tile = tl.program_id(0).to(tl.int64) // row_tiles, tl.program_id(0) % row_tiles
    place = tile * ROWS + tl.arange(0, ROWS)
    live = place < k
    source, seed = place.to(tl.int64), place.to(tl.int64)
    if NEAR:
        source = tl.load(order + context * k + place, mask=live, other=0)
        seed = tl.minimum(tl.load(seeds + context * k + place, mask=live, other=0), m - 1)
    distance = tl.zeros([ROWS], rows.dtype.element_ty)
    for axis in tl.static_range(R):
        raw = (context * k + source) * R + axis
        mean = bounded(tl.load(means + raw, mask=live, other=0), -FARTHEST, FARTHEST)
        variance = bounded(tl.load(variances + raw, mask=live, other=1), SHARPEST, WIDEST)
        precision = SCALE / variance
        field = rows + context * (2 * R + 3) * k + place
        tl.store(field + axis * k, mean, mask=live)
        tl.store(field + (R + axis) * k, precision, mask=live)
        if NEAR:
            step = tl.load(points + (context * R + axis) * m + seed, mask=live, other=0) - mean
            distance += step * step * precision
            box = boxes + context * (3 * R + 1) * width + tile
            tl.store(
                box + axis * width, tl.min(tl.where(live, _or(mean, float("-inf")), FARTHEST), 0)
            )
            tl.store(
                box + (R + axis) * width,
                tl.min(tl.where(live, _or(-mean, float("-inf")), FARTHEST), 0),
            )
            tl.store(
                box + (2 * R + axis) * width, tl.min(tl.where(live, _or(precision, 0), LIMIT), 0)
            )
    if NEAR:
        # No row has a normaliser below the density at one of its points.
        logit = _or(log_density(distance, LIMIT, STUDENT, POWER), float("-inf"))
        best = tl.min(tl.where(live, logit, 0), 0)
        tl.store(boxes + (context * (3 * R + 1) + 3 * R) * width + tile, threshold_of(best, share))


@triton.jit
def merge_boxes(around, first, count, width, merged, GROUP: tl.constexpr):
    line, group = tl.program_id(0).to(tl.int64) // merged, tl.program_id(0) % merged
    place = group * GROUP + tl.arange(0, GROUP)
    box = around + line * width + first
    fields = tl.load(box + place, mask=place < count, other=float("inf"))
    tl.store(box + count + group, tl.min(fields, 0))
