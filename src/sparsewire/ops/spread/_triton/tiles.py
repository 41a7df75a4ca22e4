"""Tiles of the table of pairs: what the kernels of `spread` share."""

import triton
import triton.language as tl

from sparsewire.ops._triton_density import log_density, slope


@triton.jit
def box_count(tiles, GROUP: tl.constexpr):
    """Return the number of boxes that belong to so many tiles."""
    groups = tl.cdiv(tiles, GROUP)
    return tiles + groups + tl.cdiv(groups, GROUP)


@triton.jit
def threshold_of(normaliser, share):
    """Return the logarithm below which pairs do not matter: a share of a normaliser.

    Slightly lower, since distances of boxes and of tuples are rounded differently.
    """
    if normaliser.dtype == tl.float64:
        slack = tl.abs(normaliser) * 2.0**-48
    else:
        slack = tl.abs(normaliser) * 2.0**-20
    return normaliser - slack + share


@triton.jit
def near(
    row_box,
    row_width,
    point_box,
    point_width,
    R: tl.constexpr,
    LIMIT: tl.constexpr,
    STUDENT: tl.constexpr,
    POWER: tl.constexpr,
):
    """Whether a pair of boxes may hold a pair of tuples that matters."""
    least = tl.full([], 0, row_box.dtype.element_ty)
    for axis in tl.static_range(R):
        after = tl.load(point_box + axis * point_width) + tl.load(row_box + (R + axis) * row_width)
        before = tl.load(row_box + axis * row_width)
        before += tl.load(point_box + (R + axis) * point_width)
        gap = tl.maximum(tl.maximum(after, before), 0)
        least += gap * gap * tl.load(row_box + (2 * R + axis) * row_width)
    threshold = tl.load(row_box + 3 * R * row_width)
    # Not `>=`: NaN must count as near.
    return (log_density(least, LIMIT, STUDENT, POWER) < threshold) == 0


@triton.jit
def read_rows(rows, place, k, FIRST: tl.constexpr, R: tl.constexpr):
    """Return r fields of a tile of rows; the rows beyond the last are zero."""
    fields = ()
    for axis in tl.static_range(R):
        field = tl.load(rows + (FIRST + axis) * k + place, mask=place < k, other=0)
        fields = fields + (field[:, None],)
    return fields


@triton.jit
def read_points(points, place, m, R: tl.constexpr, HIDDEN: tl.constexpr):
    """Return the columns of a tile of points; those beyond the last are hidden."""
    columns = ()
    for axis in tl.static_range(R):
        column = tl.load(points + axis * m + place, mask=place < m, other=HIDDEN)
        columns = columns + (column[None, :],)
    return columns


@triton.jit
def distances(means, precisions, points, R: tl.constexpr):
    """Return the scaled second distances of a tile of pairs."""
    step = points[0] - means[0]
    distance = step * (step * precisions[0])
    for axis in tl.static_range(1, R):
        step = points[axis] - means[axis]
        distance += step * (step * precisions[axis])
    return distance


@triton.jit
def _visible(density, column, STUDENT: tl.constexpr, HIDDEN: tl.constexpr):
    """Return zero for hidden points, which a density with heavy tails reaches too."""
    if STUDENT:
        return tl.where(column < HIDDEN / 2, density, 0)
    else:
        return density


@triton.jit
def _visit(
    sums, means, precisions, top, points, grads, place, m,
    R: tl.constexpr, LIMIT: tl.constexpr, STUDENT: tl.constexpr, POWER: tl.constexpr,
    SCALE: tl.constexpr, HIDDEN: tl.constexpr, WHAT: tl.constexpr,
):  # fmt: skip
    """Add a tile of pairs to the sums of its rows, see `sweep`."""
    columns = read_points(points, place, m, R, HIDDEN)
    distance = distances(means, precisions, columns, R)
    logit = log_density(distance, LIMIT, STUDENT, POWER)
    if WHAT == "total":
        return (sums[0] + _visible(tl.exp2(logit), columns[0], STUDENT, HIDDEN),)
    elif WHAT == "largest":
        seen = tl.where(columns[0] < HIDDEN / 2, logit, float("-inf"))
        return (tl.maximum(sums[0], seen),)
    elif WHAT == "shifted":
        return (sums[0] + tl.where(columns[0] < HIDDEN / 2, tl.exp2(logit - top), 0),)
    else:
        grad = tl.load(grads + place, mask=place < m, other=0)[None, :]
        grad = tl.where(columns[0] < HIDDEN / 2, grad, 0)
        weight = _visible(tl.exp2(logit - top), columns[0], STUDENT, HIDDEN)
        added = (sums[0] + weight * grad,)
        weight = tl.where(distance < LIMIT, weight * slope(distance, SCALE, STUDENT, POWER), 0)
        for axis in tl.static_range(R):
            scaled = (columns[axis] - means[axis]) * precisions[axis]
            first = weight * scaled
            second = first * scaled
            added = added + (sums[4 * axis + 1] + first, sums[4 * axis + 2] + first * grad)
            added = added + (sums[4 * axis + 3] + second, sums[4 * axis + 4] + second * grad)
        return added


@triton.jit
def sweep(
    sums, means, precisions, top, points, grads, row_box, row_width, point_boxes, m, point_tiles,
    first, last,
    R: tl.constexpr, POINTS: tl.constexpr, NEAR: tl.constexpr, GROUP: tl.constexpr,
    LIMIT: tl.constexpr, STUDENT: tl.constexpr, POWER: tl.constexpr, SCALE: tl.constexpr,
    HIDDEN: tl.constexpr, WHAT: tl.constexpr,
):  # fmt: skip
    """Loop over the point tiles `first` to `last` (in near mode: groups of them) for a row tile.

    WHAT is summed, elementwise over the tiles: the "total" of the densities; the "largest"
    of their logarithms; the total after the top of each row was subtracted, "shifted"; or, also
    with the top, the "moments": Σ p g, and for each axis Σ p s, Σ p g s, Σ p s², Σ p g s², where s
    is the step from mean to point times the precision.
    """
    lane = tl.arange(0, POINTS)
    if NEAR:
        width = box_count(point_tiles, GROUP)
        group_boxes = point_boxes + point_tiles
        top_boxes = group_boxes + tl.cdiv(point_tiles, GROUP)
        for top_group in range(first // GROUP, tl.cdiv(last, GROUP)):
            if near(row_box, row_width, top_boxes + top_group, width, R, LIMIT, STUDENT, POWER):
                start = tl.maximum(top_group * GROUP, first)
                for group in range(start, tl.minimum((top_group + 1) * GROUP, last)):
                    box = group_boxes + group
                    if near(row_box, row_width, box, width, R, LIMIT, STUDENT, POWER):
                        end = tl.minimum((group + 1) * GROUP, point_tiles)
                        for tile in range(group * GROUP, end):
                            box = point_boxes + tile
                            if near(row_box, row_width, box, width, R, LIMIT, STUDENT, POWER):
                                sums = _visit(
                                    sums, means, precisions, top, points, grads,
                                    tile * POINTS + lane, m,
                                    R, LIMIT, STUDENT, POWER, SCALE, HIDDEN, WHAT,
                                )  # fmt: skip
    else:
        for tile in range(first, last):
            sums = _visit(
                sums, means, precisions, top, points, grads, tile * POINTS + lane, m,
                R, LIMIT, STUDENT, POWER, SCALE, HIDDEN, WHAT,
            )  # fmt: skip
    return sums


@triton.jit
def part_of(part, parts, point_tiles, NEAR: tl.constexpr, GROUP: tl.constexpr):
    """Return the first tile (in near mode: group) of a part of the points, and that of the next."""
    units = point_tiles
    if NEAR:
        units = tl.cdiv(point_tiles, GROUP)
    return (units * part) // parts, (units * (part + 1)) // parts


@triton.jit
def sum_parts(field, live, stride, parts, PARTS: tl.constexpr):
    """Sum over the parts of the points for a tile of rows."""
    part = tl.arange(0, PARTS)[:, None]
    mask = (part < parts) & live[None, :]
    return tl.sum(tl.load(field[None, :] + part.to(tl.int64) * stride, mask=mask, other=0), 0)
