"""Kernels of `contract`: tuples move runs of lanes, the batch innermost, from input to output.

Rows, columns and values are (w, m), a wiring for each place of w; the input is (w, n, lanes) with
any strides. Sums are taken in the dtype of the values, by atomic additions.
"""

import triton
import triton.language as tl
from torch import Tensor

# Products of a tile; lanes come first, for neighbouring lanes share a line of memory.
_TILE = 1024
_LANES = 64

# What is so small sits in a cache: it is read and written with the batch outermost, as it lies
# outside, for scattered lanes cost less there than one more launch.
_SMALL = 2**18


def contract(rows: Tensor, cols: Tensor, values: Tensor, x: Tensor, size: int) -> Tensor:
    """Return y (w, size, lanes) with y[w, row_j] += v_j x[w, col_j]."""
    w, m = rows.shape
    lanes = x.shape[2]
    x, y = _lanes_inside(x), empty(values, size, lanes).zero_()
    grid, tile = _tiles(w, m, lanes)
    if w * m * lanes:
        strides = *rows.stride(), *cols.stride(), *values.stride(), *x.stride(), *y.stride()
        _contract[grid](rows, cols, values, x, y, m, lanes, *strides, **tile)
    return y


def empty(values: Tensor, size: int, lanes: int) -> Tensor:
    """Return memory for an output (w, size, lanes)."""
    w = values.shape[0]
    if w * size * lanes <= _SMALL:
        return values.new_empty(w, lanes, size).transpose(1, 2)
    return values.new_empty(w, size, lanes)


def _lanes_inside(x: Tensor) -> Tensor:
    return x if x.numel() <= _SMALL else x.contiguous()


def dot(rows: Tensor, cols: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """Return v (w, m) with v_j = y[w, row_j] · x[w, col_j]."""
    w, m = rows.shape
    lanes = x.shape[2]
    x, y, values = _lanes_inside(x), _lanes_inside(y), y.new_empty(w, m)
    grid, tile = _tiles(w, m, lanes)
    if w * m:
        strides = *rows.stride(), *cols.stride(), *y.stride(), *x.stride()
        _dot[grid[:1]](rows, cols, y, x, values, m, lanes, *strides, **tile)
    return values


def _tiles(w: int, m: int, lanes: int) -> tuple[tuple[int, int], dict[str, int]]:
    wide = min(_LANES, triton.next_power_of_2(max(lanes, 1)))
    tuples = _TILE // wide
    grid = w * triton.cdiv(m, tuples), triton.cdiv(max(lanes, 1), wide)
    return grid, {"TUPLES": tuples, "LANES": wide}


@triton.jit
def _contract(
    rows, cols, values, x, y, m, lanes,
    rows_w, rows_m, cols_w, cols_m, values_w, values_m, x_w, x_n, x_lane, y_w, y_n, y_lane,
    TUPLES: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(m, TUPLES)
    wiring, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    place = (tile * TUPLES + tl.arange(0, TUPLES)).to(tl.int64)
    lane = (tl.program_id(1) * LANES + tl.arange(0, LANES)).to(tl.int64)
    inside = place < m
    row = tl.load(rows + wiring * rows_w + place * rows_m, mask=inside, other=0)
    col = tl.load(cols + wiring * cols_w + place * cols_m, mask=inside, other=0)
    value = tl.load(values + wiring * values_w + place * values_m, mask=inside, other=0)
    both = inside[:, None] & (lane < lanes)[None, :]
    read = wiring * x_w + col[:, None] * x_n + lane[None, :] * x_lane
    moved = tl.load(x + read, mask=both, other=0).to(value.dtype) * value[:, None]
    write = wiring * y_w + row[:, None] * y_n + lane[None, :] * y_lane
    tl.atomic_add(y + write, moved, mask=both, sem="relaxed")


@triton.jit
def _dot(
    rows, cols, y, x, values, m, lanes,
    rows_w, rows_m, cols_w, cols_m, y_w, y_n, y_lane, x_w, x_n, x_lane,
    TUPLES: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(m, TUPLES)
    wiring, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    place = (tile * TUPLES + tl.arange(0, TUPLES)).to(tl.int64)
    inside = place < m
    row = tl.load(rows + wiring * rows_w + place * rows_m, mask=inside, other=0)
    col = tl.load(cols + wiring * cols_w + place * cols_m, mask=inside, other=0)
    total = tl.zeros([TUPLES, LANES], values.dtype.element_ty)
    for first in range(0, lanes, LANES):
        lane = (first + tl.arange(0, LANES)).to(tl.int64)
        both = inside[:, None] & (lane < lanes)[None, :]
        read = wiring * y_w + row[:, None] * y_n + lane[None, :] * y_lane
        one = tl.load(y + read, mask=both, other=0).to(total.dtype)
        read = wiring * x_w + col[:, None] * x_n + lane[None, :] * x_lane
        total += one * tl.load(x + read, mask=both, other=0).to(total.dtype)
    tl.store(values + wiring * m + place, tl.sum(total, 1), mask=inside)
