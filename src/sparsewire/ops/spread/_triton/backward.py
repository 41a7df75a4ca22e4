"""Kernels of the backward pass of `spread`: moments of each row, and the gradients they make."""

import triton
import triton.language as tl

from sparsewire.ops.spread._triton.tiles import box_count, part_of, read_rows, sum_parts, sweep


@triton.jit
def sum_moments(
    rows,
    points,
    row_boxes,
    point_boxes,
    grads,
    moments,
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
    SCALE: tl.constexpr,
):
    part, tile = tl.program_id(0) % parts, tl.program_id(0) // parts % row_tiles
    context = (tl.program_id(0) // parts // row_tiles).to(tl.int64)
    place = tile * ROWS + tl.arange(0, ROWS)
    rows += context * (2 * R + 3) * k
    points += context * R * m
    grads += context * m
    means, precisions = read_rows(rows, place, k, 0, R), read_rows(rows, place, k, R, R)
    top = read_rows(rows, place, k, 2 * R, 1)[0]
    first, last = part_of(part, parts, point_tiles, NEAR, GROUP)
    sums = ()
    for moment in tl.static_range(1 + 4 * R):
        sums = sums + (tl.zeros([ROWS, POINTS], rows.dtype.element_ty),)
    row_width = box_count(row_tiles, GROUP)
    sums = sweep(
        sums,
        means,
        precisions,
        top,
        points,
        grads,
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
        SCALE,
        HIDDEN,
        "moments",
    )
    field = moments + (context * parts + part) * (1 + 4 * R) * k + place
    for moment in tl.static_range(1 + 4 * R):
        tl.store(field + moment * k, tl.sum(sums[moment], 1), mask=place < k)


@triton.jit
def finish_gradients(
    rows,
    order,
    moments,
    means,
    variances,
    values,
    to_means,
    to_variances,
    to_values,
    k,
    row_tiles,
    parts,
    R: tl.constexpr,
    ROWS: tl.constexpr,
    NEAR: tl.constexpr,
    PARTS: tl.constexpr,
    SCALE: tl.constexpr,
    FARTHEST: tl.constexpr,
    SHARPEST: tl.constexpr,
):
    tile, context = tl.program_id(0) % row_tiles, (tl.program_id(0) // row_tiles).to(tl.int64)
    place = tile * ROWS + tl.arange(0, ROWS)
    live = place < k
    source = place.to(tl.int64)
    if NEAR:
        source = tl.load(order + context * k + place, mask=live, other=0)
    share = tl.load(rows + (context * (2 * R + 3) + 2 * R + 2) * k + place, mask=live, other=0)
    value = tl.load(values + context * k + source, mask=live, other=0)
    stride = (1 + 4 * R) * k
    field = moments + context * parts * stride + place
    received = sum_parts(field, live, stride, parts, PARTS) * share
    for axis in tl.static_range(R):
        field += k
        first = sum_parts(field, live, stride, parts, PARTS)
        field += k
        first_by_grad = sum_parts(field, live, stride, parts, PARTS)
        field += k
        second = sum_parts(field, live, stride, parts, PARTS)
        field += k
        second_by_grad = sum_parts(field, live, stride, parts, PARTS)
        raw = (context * k + source) * R + axis
        mean = tl.load(means + raw, mask=live, other=0)
        variance = tl.load(variances + raw, mask=live, other=1)
        # Clamped numbers have no gradient.
        to_mean = value * share * (first_by_grad - received * first) / SCALE
        to_mean = tl.where(tl.abs(mean) > FARTHEST, 0, to_mean)
        to_variance = value * share * (second_by_grad - received * second) * 0.5 / SCALE / SCALE
        to_variance = tl.where(variance < SHARPEST, 0, to_variance)
        tl.store(to_means + raw, to_mean, mask=live)
        tl.store(to_variances + raw, to_variance, mask=live)
    tl.store(to_values + context * k + source, received, mask=live)
