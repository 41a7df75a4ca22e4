"""Short rows in one kernel: their order, the distances of neighbours in it, and the way back.

A program has some rows whole. It sorts them as integers of 64 bits: those of a key in the upper
half, in its order, and its place in the lower. Place 4 k + r of what is sorted is at k of the r-th
of four arrays, as in `sparsewire.sorting.soft_sort._mixing_numpy`; rows stand one behind the other,
so that what comes from the next row, or the one before, must not count.

The way back makes everything again from the keys, for that costs less than to read it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsewire.sorting.halves import CERTAIN_DISTANCE

LONGEST = 1024  # a row
_FOURS = 32  # of them has a program at least, where there are as many
INFINITY = tl.constexpr(float("inf"))
_FAR = tl.constexpr(10 * CERTAIN_DISTANCE)
_TINY = tl.constexpr(1.1754943508222875e-38)
_LOWER = tl.constexpr(0xFFFFFFFF)
_LARGEST, _SMALLEST = tl.constexpr(0x7FFFFFFF), tl.constexpr(-0x80000000)
_LAST = tl.constexpr(0x7FFFFFFFFFFFFFFF)


def order(keys: Tensor, temperature: float | None, descending: bool) -> tuple[Tensor, Tensor]:
    """Return where the sorted keys were, and distances of neighbours over the temperature.

    There is one distance less than n, filled up to a power of two.
    """
    batch, n = keys.shape
    index = keys.new_empty((batch, n), dtype=torch.int64)
    gaps = keys.new_empty((batch, triton.next_power_of_2(n) - 1))
    grid, heat, options = launch(keys, temperature)
    _order[grid](
        keys.contiguous(), index, gaps, batch, n, gaps.shape[1], heat,
        DESCENDING=descending, **options,
    )  # fmt: skip
    return index, gaps


def order_backward(
    to_gaps: Tensor, keys: Tensor, temperature: float | None, descending: bool
) -> Tensor:
    """Return the gradient of the keys."""
    out = torch.empty_like(keys, memory_format=torch.contiguous_format)
    grid, heat, options = launch(keys, temperature)
    _order_backward[grid](
        to_gaps.contiguous(), keys.contiguous(), out, *keys.shape, to_gaps.shape[1],
        heat, DESCENDING=descending, **options,
    )  # fmt: skip
    return out


def launch(keys: Tensor, temperature: float | None) -> tuple[tuple[int], float, dict[str, int]]:
    """The programs, a temperature by which can be divided, and options."""
    batch, n = keys.shape
    fours = max(1, triton.next_power_of_2(n) // 4)
    rows = max(1, _FOURS // fours)
    warps = min(8, max(1, rows * fours // 32))
    options = {"ROWS": rows, "FOURS": fours, "DEFAULT": temperature is None, "num_warps": warps}
    heat = 0.0 if temperature is None else max(temperature, torch.finfo(torch.float32).tiny)
    return (triton.cdiv(batch, rows),), heat, options


@triton.jit
def _ordered(bits):
    """Between the bits of numbers and integers in their order, both ways."""
    return tl.where(bits < 0, bits ^ _LARGEST, bits)


@triton.jit
def _sorted(keys, batch, n, DESCENDING: tl.constexpr, ROWS: tl.constexpr, FOURS: tl.constexpr):
    """The sorted rows of this program, for each residue of places; what is not there comes last."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, 4 * FOURS)[None, :]
    here = (row < batch) & (column < n)
    x = tl.load(keys + row * n + column, mask=here, other=0.0)
    x = (-x if DESCENDING else x) + 0.0  # there is one zero
    bits = _ordered(x.to(tl.int32, bitcast=True))
    # What is not a number is the largest of all, before the sign is turned.
    bits = tl.where(x != x, _SMALLEST if DESCENDING else _LARGEST, bits)
    packed = tl.where(here, (bits.to(tl.int64) << 32) | column, _LAST)
    packed = tl.reshape(tl.sort(packed), (ROWS * FOURS, 2, 2))
    even, odd = tl.split(packed)
    zero, two = tl.split(even)
    one, three = tl.split(odd)
    return zero, one, two, three


@triton.jit
def _number(packed):
    return _ordered((packed >> 32).to(tl.int32)).to(tl.float32, bitcast=True)


@triton.jit
def following(x, q):
    """What follows, of the same residue."""
    return tl.gather(x, tl.minimum(q + 1, x.shape[0] - 1), 0)


@triton.jit
def before(x, q, k):
    """What is before, or nothing at the beginning of a row."""
    return tl.where(k > 0, tl.gather(x, tl.maximum(q - 1, 0), 0), 0.0)


@triton.jit
def _row_sum(x, ROWS: tl.constexpr, FOURS: tl.constexpr):
    """The sum of each row, at each of its places."""
    total = tl.sum(tl.reshape(x, (ROWS, FOURS)), 1)
    return tl.reshape(tl.broadcast_to(total[:, None], (ROWS, FOURS)), (ROWS * FOURS,))


@triton.jit
def _away(x, median, here):
    away = tl.abs(x - median)
    return tl.where(here & (away < INFINITY), away, 0.0)


@triton.jit
def _heat(
    a, b, c, d, k, n, temperature, DEFAULT: tl.constexpr, ROWS: tl.constexpr, FOURS: tl.constexpr
):  # fmt: skip
    if DEFAULT:
        middle, count = (n - 1) // 2, n - 4 * k
        median = tl.where(4 * k == middle, a, 0.0) + tl.where(4 * k + 1 == middle, b, 0.0)
        median += tl.where(4 * k + 2 == middle, c, 0.0) + tl.where(4 * k + 3 == middle, d, 0.0)
        median = _row_sum(median, ROWS, FOURS)
        there = ((count > 0) & (tl.abs(a) < INFINITY)).to(tl.float32)
        there += ((count > 1) & (tl.abs(b) < INFINITY)).to(tl.float32)
        there += ((count > 2) & (tl.abs(c) < INFINITY)).to(tl.float32)
        there += ((count > 3) & (tl.abs(d) < INFINITY)).to(tl.float32)
        there = tl.maximum(_row_sum(there, ROWS, FOURS), 1.0)
        # Divided first: the sum of large ones may be too large.
        away = _away(a, median, count > 0) / there + _away(b, median, count > 1) / there
        away += _away(c, median, count > 2) / there + _away(d, median, count > 3) / there
        heat = _row_sum(away, ROWS, FOURS) * (4.0 / n)
        return tl.where((heat > 0) & (heat < INFINITY), tl.maximum(heat, _TINY), 1.0)
    else:
        return temperature


@triton.jit
def _known(x, DESCENDING: tl.constexpr):
    """What is not a number is at the end, as if infinite."""
    return tl.where(x != x, -INFINITY if DESCENDING else INFINITY, x)


@triton.jit
def _gap(low, high, heat, inside):
    """A distance over the temperature: none of two that are infinite; endless behind the last."""
    gap = (high - low) / heat
    return tl.where(inside, tl.where(gap != gap, 0.0, gap), INFINITY)


@triton.jit
def _gaps(a, b, c, d, q, k, n, heat, DESCENDING: tl.constexpr):
    """Behind each place."""
    a, b = _known(a, DESCENDING), _known(b, DESCENDING)
    c, d = _known(c, DESCENDING), _known(d, DESCENDING)
    return (
        _gap(a, b, heat, 4 * k + 1 < n),
        _gap(b, c, heat, 4 * k + 2 < n),
        _gap(c, d, heat, 4 * k + 3 < n),
        _gap(d, following(a, q), heat, 4 * k + 4 < n),
    )


@triton.jit
def _slope_of_gap(low, high, gap, to_gap, heat):
    """From the gradient of a gap to that of the two at its ends: none if one is infinite."""
    moves = (tl.abs(low) < INFINITY) & (tl.abs(high) < INFINITY) & (gap < INFINITY)
    return tl.where(moves, to_gap, 0.0) / heat


@triton.jit
def to_numbers(a, b, c, d, g0, g1, g2, g3, to_g0, to_g1, to_g2, to_g3, q, k, heat):
    """From the gradients of gaps to those of sorted numbers."""
    to_g0 = _slope_of_gap(a, b, g0, to_g0, heat)
    to_g1 = _slope_of_gap(b, c, g1, to_g1, heat)
    to_g2 = _slope_of_gap(c, d, g2, to_g2, heat)
    to_g3 = _slope_of_gap(d, following(a, q), g3, to_g3, heat)
    return before(to_g3, q, k) - to_g0, to_g0 - to_g1, to_g1 - to_g2, to_g2 - to_g3


@triton.jit
def places_of(batch, n, ROWS: tl.constexpr, FOURS: tl.constexpr):
    """Number, four, row and first place of each, and whether its four places are there."""
    q = tl.arange(0, ROWS * FOURS)
    k, row = q % FOURS, tl.program_id(0).to(tl.int64) * ROWS + q // FOURS
    here = row < batch
    return (
        q, k, row, 4 * k,
        here & (4 * k < n), here & (4 * k + 1 < n), here & (4 * k + 2 < n), here & (4 * k + 3 < n),
    )  # fmt: skip


@triton.jit
def spaced(
    keys, q, k, batch, n, temperature, DESCENDING: tl.constexpr, DEFAULT: tl.constexpr,
    ROWS: tl.constexpr, FOURS: tl.constexpr,
):  # fmt: skip
    """For each residue the places where sorted numbers were, these, and what is behind them."""
    a, b, c, d = _sorted(keys, batch, n, DESCENDING, ROWS, FOURS)
    y0, y1, y2, y3 = _number(a), _number(b), _number(c), _number(d)
    heat = _heat(y0, y1, y2, y3, k, n, temperature, DEFAULT, ROWS, FOURS)
    g0, g1, g2, g3 = _gaps(y0, y1, y2, y3, q, k, n, heat, DESCENDING)
    return (
        a & _LOWER, b & _LOWER, c & _LOWER, d & _LOWER, y0, y1, y2, y3, g0, g1, g2, g3, heat,
    )  # fmt: skip


@triton.jit
def _order(
    keys, index, gaps, batch, n, count, temperature,
    DESCENDING: tl.constexpr, DEFAULT: tl.constexpr, ROWS: tl.constexpr, FOURS: tl.constexpr,
):  # fmt: skip
    q, k, row, place, here0, here1, here2, here3 = places_of(batch, n, ROWS, FOURS)
    p0, p1, p2, p3, _, _, _, _, g0, g1, g2, g3, _ = spaced(
        keys, q, k, batch, n, temperature, DESCENDING, DEFAULT, ROWS, FOURS
    )
    index += row * n + place
    tl.store(index, p0, mask=here0)
    tl.store(index + 1, p1, mask=here1)
    tl.store(index + 2, p2, mask=here2)
    tl.store(index + 3, p3, mask=here3)
    gaps += row * count + place
    inside = row < batch
    tl.store(gaps, tl.minimum(g0, _FAR), mask=inside & (place < count))
    tl.store(gaps + 1, tl.minimum(g1, _FAR), mask=inside & (place + 1 < count))
    tl.store(gaps + 2, tl.minimum(g2, _FAR), mask=inside & (place + 2 < count))
    tl.store(gaps + 3, tl.minimum(g3, _FAR), mask=inside & (place + 3 < count))


@triton.jit
def _order_backward(
    to_gaps, keys, out, batch, n, count, temperature,
    DESCENDING: tl.constexpr, DEFAULT: tl.constexpr, ROWS: tl.constexpr, FOURS: tl.constexpr,
):  # fmt: skip
    q, k, row, place, here0, here1, here2, here3 = places_of(batch, n, ROWS, FOURS)
    p0, p1, p2, p3, y0, y1, y2, y3, g0, g1, g2, g3, heat = spaced(
        keys, q, k, batch, n, temperature, DESCENDING, DEFAULT, ROWS, FOURS
    )
    to_gaps += row * count + place
    to_g0 = tl.load(to_gaps, mask=here0 & (place < count), other=0.0)
    to_g1 = tl.load(to_gaps + 1, mask=here1 & (place + 1 < count), other=0.0)
    to_g2 = tl.load(to_gaps + 2, mask=here2 & (place + 2 < count), other=0.0)
    to_g3 = tl.load(to_gaps + 3, mask=here3 & (place + 3 < count), other=0.0)
    a, b, c, d = to_numbers(
        y0, y1, y2, y3, g0, g1, g2, g3, to_g0, to_g1, to_g2, to_g3, q, k, heat
    )  # fmt: skip
    if DESCENDING:
        a, b, c, d = -a, -b, -c, -d
    out += row * n
    tl.store(out + p0, a, mask=here0)
    tl.store(out + p1, b, mask=here1)
    tl.store(out + p2, c, mask=here2)
    tl.store(out + p3, d, mask=here3)
