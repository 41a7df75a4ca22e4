"""Soft sorts and ranks of short rows: one kernel from the keys to the result, and one back.

For things that are sorted by their keys there is one for the order alone, and the distances in it.

A program has some rows whole. It sorts them as integers of 64 bits: those of a key in the upper
half, in its order, and its place in the lower. Place 4 k + r of what is sorted is at k of the r-th
of four arrays, as in `sparsewire.ops._mixing_numpy`; rows stand one behind the other, so that what
comes from the next row, or the one before, must not count.

The way back makes everything again from the keys, for that costs less than to read it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsewire.ops._triton.cuts import (
    against,
    back,
    cut_sums,
    forth,
    odds_back,
    pair_share,
    pair_slope,
    slopes,
    swap,
)
from sparsewire.ops.halves import FAR

LONGEST = 1024  # a row
_FOURS = 32  # of them has a program at least, where there are as many
_INFINITY = tl.constexpr(float("inf"))
_FAR = tl.constexpr(10 * FAR)
_TINY = tl.constexpr(1.1754943508222875e-38)
_LOWER = tl.constexpr(0xFFFFFFFF)
_LARGEST, _SMALLEST = tl.constexpr(0x7FFFFFFF), tl.constexpr(-0x80000000)
_LAST = tl.constexpr(0x7FFFFFFFFFFFFFFF)


def forward(
    keys: Tensor, squash: int, temperature: float | None, descending: bool, ranks: bool
) -> Tensor:
    """Return the keys in soft order, or their soft ranks.

    Args:
        keys: (b, n) float32, with n from 2 to `LONGEST`.
        squash: As for `sparsewire.ops._triton.mixing`.
        temperature: None for that of `sparsewire.ops.quicksort`.
        descending: Whether the largest come first.
        ranks: Whether ranks are wanted.
    """
    out = torch.empty_like(keys, memory_format=torch.contiguous_format)
    grid, heat, options = _launch(keys, temperature)
    _soft[grid](
        keys.contiguous(), out, *keys.shape, heat,
        DESCENDING=descending, RANKS=ranks, SQUASH=squash, **options,
    )  # fmt: skip
    return out


def backward(
    grad: Tensor,
    keys: Tensor,
    squash: int,
    temperature: float | None,
    descending: bool,
    ranks: bool,
) -> Tensor:
    """Return the gradient of the keys."""
    out = torch.empty_like(keys, memory_format=torch.contiguous_format)
    grid, heat, options = _launch(keys, temperature)
    _soft_backward[grid](
        grad.contiguous(), keys.contiguous(), out, *keys.shape, heat,
        DESCENDING=descending, RANKS=ranks, SQUASH=squash, **options,
    )  # fmt: skip
    return out


def order(keys: Tensor, temperature: float | None, descending: bool) -> tuple[Tensor, Tensor]:
    """Return where the sorted keys were, and distances of neighbours over the temperature.

    There is one distance less than n, filled up to a power of two.
    """
    batch, n = keys.shape
    index = torch.empty((batch, n), dtype=torch.int64, device=keys.device)
    gaps = torch.empty((batch, triton.next_power_of_2(n) - 1), device=keys.device)
    grid, heat, options = _launch(keys, temperature)
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
    grid, heat, options = _launch(keys, temperature)
    _order_backward[grid](
        to_gaps.contiguous(), keys.contiguous(), out, *keys.shape, to_gaps.shape[1],
        heat, DESCENDING=descending, **options,
    )  # fmt: skip
    return out


def _launch(keys: Tensor, temperature: float | None) -> tuple[tuple[int], float, dict[str, int]]:
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
def _next(x, q):
    """What follows, of the same residue."""
    return tl.gather(x, tl.minimum(q + 1, x.shape[0] - 1), 0)


@triton.jit
def _before(x, q, k):
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
    return tl.where(here & (away < _INFINITY), away, 0.0)


@triton.jit
def _heat(
    a, b, c, d, k, n, temperature, DEFAULT: tl.constexpr, ROWS: tl.constexpr, FOURS: tl.constexpr
):  # fmt: skip
    if DEFAULT:
        middle, count = (n - 1) // 2, n - 4 * k
        median = tl.where(4 * k == middle, a, 0.0) + tl.where(4 * k + 1 == middle, b, 0.0)
        median += tl.where(4 * k + 2 == middle, c, 0.0) + tl.where(4 * k + 3 == middle, d, 0.0)
        median = _row_sum(median, ROWS, FOURS)
        there = ((count > 0) & (tl.abs(a) < _INFINITY)).to(tl.float32)
        there += ((count > 1) & (tl.abs(b) < _INFINITY)).to(tl.float32)
        there += ((count > 2) & (tl.abs(c) < _INFINITY)).to(tl.float32)
        there += ((count > 3) & (tl.abs(d) < _INFINITY)).to(tl.float32)
        there = tl.maximum(_row_sum(there, ROWS, FOURS), 1.0)
        # Divided first: the sum of large ones may be too large.
        away = _away(a, median, count > 0) / there + _away(b, median, count > 1) / there
        away += _away(c, median, count > 2) / there + _away(d, median, count > 3) / there
        heat = _row_sum(away, ROWS, FOURS) * (4.0 / n)
        return tl.where((heat > 0) & (heat < _INFINITY), tl.maximum(heat, _TINY), 1.0)
    else:
        return temperature


@triton.jit
def _known(x, DESCENDING: tl.constexpr):
    """What is not a number is at the end, as if infinite."""
    return tl.where(x != x, -_INFINITY if DESCENDING else _INFINITY, x)


@triton.jit
def _gap(low, high, heat, inside):
    """A distance over the temperature: none of two that are infinite; endless behind the last."""
    gap = (high - low) / heat
    return tl.where(inside, tl.where(gap != gap, 0.0, gap), _INFINITY)


@triton.jit
def _gaps(a, b, c, d, q, k, n, heat, DESCENDING: tl.constexpr):
    """Behind each place."""
    a, b = _known(a, DESCENDING), _known(b, DESCENDING)
    c, d = _known(c, DESCENDING), _known(d, DESCENDING)
    return (
        _gap(a, b, heat, 4 * k + 1 < n),
        _gap(b, c, heat, 4 * k + 2 < n),
        _gap(c, d, heat, 4 * k + 3 < n),
        _gap(d, _next(a, q), heat, 4 * k + 4 < n),
    )


@triton.jit
def _slope_of_gap(low, high, gap, to_gap, heat):
    """From the gradient of a gap to that of the two at its ends: none if one is infinite."""
    moves = (tl.abs(low) < _INFINITY) & (tl.abs(high) < _INFINITY) & (gap < _INFINITY)
    return tl.where(moves, to_gap, 0.0) / heat


@triton.jit
def _to_numbers(a, b, c, d, g0, g1, g2, g3, to_g0, to_g1, to_g2, to_g3, q, k, heat):
    """From the gradients of gaps to those of sorted numbers."""
    to_g0 = _slope_of_gap(a, b, g0, to_g0, heat)
    to_g1 = _slope_of_gap(b, c, g1, to_g1, heat)
    to_g2 = _slope_of_gap(c, d, g2, to_g2, heat)
    to_g3 = _slope_of_gap(d, _next(a, q), g3, to_g3, heat)
    return _before(to_g3, q, k) - to_g0, to_g0 - to_g1, to_g1 - to_g2, to_g2 - to_g3


@triton.jit
def _where(batch, n, ROWS: tl.constexpr, FOURS: tl.constexpr):
    """Number, four, row and first place of each, and whether its four places are there."""
    q = tl.arange(0, ROWS * FOURS)
    k, row = q % FOURS, tl.program_id(0).to(tl.int64) * ROWS + q // FOURS
    here = row < batch
    return (
        q, k, row, 4 * k,
        here & (4 * k < n), here & (4 * k + 1 < n), here & (4 * k + 2 < n), here & (4 * k + 3 < n),
    )  # fmt: skip


@triton.jit
def _quarter(x, inside):
    """A quarter of what is finite: differences of such are finite too."""
    return tl.where(inside & (tl.abs(x) < _INFINITY), x / 4, 0.0)


@triton.jit
def _soft(
    keys, out, batch, n, temperature, DESCENDING: tl.constexpr, RANKS: tl.constexpr,
    SQUASH: tl.constexpr, DEFAULT: tl.constexpr, ROWS: tl.constexpr, FOURS: tl.constexpr,
):  # fmt: skip
    p0, p1, p2, p3 = _sorted(keys, batch, n, DESCENDING, ROWS, FOURS)
    y0, y1, y2, y3 = _number(p0), _number(p1), _number(p2), _number(p3)
    p0, p1, p2, p3 = p0 & _LOWER, p1 & _LOWER, p2 & _LOWER, p3 & _LOWER
    q, k, row, place, here0, here1, here2, here3 = _where(batch, n, ROWS, FOURS)
    heat = _heat(y0, y1, y2, y3, k, n, temperature, DEFAULT, ROWS, FOURS)
    g0, g1, g2, g3 = _gaps(y0, y1, y2, y3, q, k, n, heat, DESCENDING)
    # Of fours, of the windows behind them, and of pairs.
    first, _ = against(g0 + g1 / 2, SQUASH)
    middle, _ = against(g1 / 2, SQUASH)
    last, _ = against(g2 + g1 / 2, SQUASH)
    f0, f1, f2, f3, f4, f5, f6 = cut_sums(first, middle, last)
    first, _ = against(g2 + g3 / 2, SQUASH)
    middle, _ = against(g3 / 2, SQUASH)
    last, _ = against(_next(g0, q) + g3 / 2, SQUASH)
    w0, w1, w2, w3, w4, w5, w6 = cut_sums(first, middle, last)
    low, _ = against(g0 / 2, SQUASH)
    high, _ = against(g2 / 2, SQUASH)
    low, high = pair_share(low), pair_share(high)
    if RANKS:
        a, b = swap(place.to(tl.float32), place + 1.0, low)
        c, d = swap(place + 2.0, place + 3.0, high)
        a, b, c, d = back(a, b, c, d, f0, f1, f2, f3, f4, f5, f6)
        c, d, e, f = back(c, d, _next(a, q), _next(b, q), w0, w1, w2, w3, w4, w5, w6)
        a = tl.where(k > 0, _before(e, q, k), a)
        b = tl.where(k > 0, _before(f, q, k), b)
        t0, t1, t2, t3 = p0, p1, p2, p3
    else:
        a, b = _quarter(y0, place < n), _quarter(y1, place + 1 < n)
        c, d = _quarter(y2, place + 2 < n), _quarter(y3, place + 3 < n)
        c, d, e, f = forth(c, d, _next(a, q), _next(b, q), w0, w1, w2, w3, w4, w5, w6)
        a = tl.where(k > 0, _before(e, q, k), a)
        b = tl.where(k > 0, _before(f, q, k), b)
        a, b, c, d = forth(a, b, c, d, f0, f1, f2, f3, f4, f5, f6)
        a, b = swap(a, b, low)
        c, d = swap(c, d, high)
        # What is infinite stays so.
        a = tl.where(tl.abs(y0) < _INFINITY, 4 * a, y0)
        b = tl.where(tl.abs(y1) < _INFINITY, 4 * b, y1)
        c = tl.where(tl.abs(y2) < _INFINITY, 4 * c, y2)
        d = tl.where(tl.abs(y3) < _INFINITY, 4 * d, y3)
        if DESCENDING:
            a, b, c, d = -a, -b, -c, -d
        t0, t1, t2, t3 = place, place + 1, place + 2, place + 3
    out += row * n
    tl.store(out + t0, a, mask=here0)
    tl.store(out + t1, b, mask=here1)
    tl.store(out + t2, c, mask=here2)
    tl.store(out + t3, d, mask=here3)


@triton.jit
def _soft_backward(
    grad, keys, out, batch, n, temperature, DESCENDING: tl.constexpr, RANKS: tl.constexpr,
    SQUASH: tl.constexpr, DEFAULT: tl.constexpr, ROWS: tl.constexpr, FOURS: tl.constexpr,
):  # fmt: skip
    p0, p1, p2, p3 = _sorted(keys, batch, n, DESCENDING, ROWS, FOURS)
    y0, y1, y2, y3 = _number(p0), _number(p1), _number(p2), _number(p3)
    p0, p1, p2, p3 = p0 & _LOWER, p1 & _LOWER, p2 & _LOWER, p3 & _LOWER
    q, k, row, place, here0, here1, here2, here3 = _where(batch, n, ROWS, FOURS)
    heat = _heat(y0, y1, y2, y3, k, n, temperature, DEFAULT, ROWS, FOURS)
    g0, g1, g2, g3 = _gaps(y0, y1, y2, y3, q, k, n, heat, DESCENDING)
    first, first_slope = against(g0 + g1 / 2, SQUASH)
    middle, middle_slope = against(g1 / 2, SQUASH)
    last, last_slope = against(g2 + g1 / 2, SQUASH)
    f0, f1, f2, f3, f4, f5, f6 = cut_sums(first, middle, last)
    near, near_slope = against(g2 + g3 / 2, SQUASH)
    inner, inner_slope = against(g3 / 2, SQUASH)
    far, far_slope = against(_next(g0, q) + g3 / 2, SQUASH)
    w0, w1, w2, w3, w4, w5, w6 = cut_sums(near, inner, far)
    low, low_slope = against(g0 / 2, SQUASH)
    high, high_slope = against(g2 / 2, SQUASH)
    grad += row * n
    # Elements as they came, and what is wanted in places; or what came of places, and is wanted of
    # elements: the transpose.
    if RANKS:
        t0 = tl.load(grad + p0, mask=here0, other=0.0)
        t1 = tl.load(grad + p1, mask=here1, other=0.0)
        t2 = tl.load(grad + p2, mask=here2, other=0.0)
        t3 = tl.load(grad + p3, mask=here3, other=0.0)
        a, b, c, d = t0, t1, t2, t3
        to_a, to_b, to_c, to_d = place.to(tl.float32), place + 1.0, place + 2.0, place + 3.0
    else:
        t0 = tl.load(grad + place, mask=here0, other=0.0)
        t1 = tl.load(grad + place + 1, mask=here1, other=0.0)
        t2 = tl.load(grad + place + 2, mask=here2, other=0.0)
        t3 = tl.load(grad + place + 3, mask=here3, other=0.0)
        if DESCENDING:
            t0, t1, t2, t3 = -t0, -t1, -t2, -t3
        a, b = _quarter(y0, place < n), _quarter(y1, place + 1 < n)
        c, d = _quarter(y2, place + 2 < n), _quarter(y3, place + 3 < n)
        to_a = tl.where(tl.abs(y0) < _INFINITY, t0, 0.0)
        to_b = tl.where(tl.abs(y1) < _INFINITY, t1, 0.0)
        to_c = tl.where(tl.abs(y2) < _INFINITY, t2, 0.0)
        to_d = tl.where(tl.abs(y3) < _INFINITY, t3, 0.0)
    to_low, to_high = to_b - to_a, to_d - to_c
    to_a, to_b = swap(to_a, to_b, pair_share(low))
    to_c, to_d = swap(to_c, to_d, pair_share(high))
    h0, h1, h2, h3 = back(to_a, to_b, to_c, to_d, f0, f1, f2, f3, f4, f5, f6)
    # Windows behind fours: of elements as they came.
    e, f, g, h = _next(a, q), _next(b, q), _next(h0, q), _next(h1, q)
    s0, s1, s2, s3, s4, s5, s6 = slopes(c, d, e, f, h2, h3, g, h)
    one, two, three = odds_back(near, inner, far, s0, s1, s2, s3, s4, s5, s6)
    one, two, three = one * near_slope, two * inner_slope, three * far_slope
    to_g3 = (one + two + three) / 2
    to_g2, to_g0 = one, _before(three, q, k)
    # Fours: of elements mixed by the windows.
    c, d, e, f = forth(c, d, e, f, w0, w1, w2, w3, w4, w5, w6)
    a = tl.where(k > 0, _before(e, q, k), a)
    b = tl.where(k > 0, _before(f, q, k), b)
    s0, s1, s2, s3, s4, s5, s6 = slopes(a, b, c, d, to_a, to_b, to_c, to_d)
    one, two, three = odds_back(first, middle, last, s0, s1, s2, s3, s4, s5, s6)
    one, two, three = one * first_slope, two * middle_slope, three * last_slope
    to_g1 = (one + two + three) / 2
    # Pairs: of elements mixed by all cuts.
    a, b, c, d = forth(a, b, c, d, f0, f1, f2, f3, f4, f5, f6)
    to_g0 += one - (b - a) * to_low * pair_slope(low, low_slope)
    to_g2 += three - (d - c) * to_high * pair_slope(high, high_slope)
    a, b, c, d = _to_numbers(
        y0, y1, y2, y3, g0, g1, g2, g3, to_g0, to_g1, to_g2, to_g3, q, k, heat
    )  # fmt: skip
    if not RANKS:
        a, b, c, d = 4 * a, 4 * b, 4 * c, 4 * d
        # Elements also are what is mixed; those that are infinite stay as they are.
        h2, h3, g, h = back(h2, h3, g, h, w0, w1, w2, w3, w4, w5, w6)
        h0 = tl.where(k > 0, _before(g, q, k), h0)
        h1 = tl.where(k > 0, _before(h, q, k), h1)
        a += tl.where(tl.abs(y0) < _INFINITY, h0, t0)
        b += tl.where(tl.abs(y1) < _INFINITY, h1, t1)
        c += tl.where(tl.abs(y2) < _INFINITY, h2, t2)
        d += tl.where(tl.abs(y3) < _INFINITY, h3, t3)
    if DESCENDING:
        a, b, c, d = -a, -b, -c, -d
    out += row * n
    tl.store(out + p0, a, mask=here0)
    tl.store(out + p1, b, mask=here1)
    tl.store(out + p2, c, mask=here2)
    tl.store(out + p3, d, mask=here3)


@triton.jit
def _order(
    keys, index, gaps, batch, n, count, temperature,
    DESCENDING: tl.constexpr, DEFAULT: tl.constexpr, ROWS: tl.constexpr, FOURS: tl.constexpr,
):  # fmt: skip
    p0, p1, p2, p3 = _sorted(keys, batch, n, DESCENDING, ROWS, FOURS)
    y0, y1, y2, y3 = _number(p0), _number(p1), _number(p2), _number(p3)
    q, k, row, place, here0, here1, here2, here3 = _where(batch, n, ROWS, FOURS)
    heat = _heat(y0, y1, y2, y3, k, n, temperature, DEFAULT, ROWS, FOURS)
    g0, g1, g2, g3 = _gaps(y0, y1, y2, y3, q, k, n, heat, DESCENDING)
    index += row * n + place
    tl.store(index, p0 & _LOWER, mask=here0)
    tl.store(index + 1, p1 & _LOWER, mask=here1)
    tl.store(index + 2, p2 & _LOWER, mask=here2)
    tl.store(index + 3, p3 & _LOWER, mask=here3)
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
    p0, p1, p2, p3 = _sorted(keys, batch, n, DESCENDING, ROWS, FOURS)
    y0, y1, y2, y3 = _number(p0), _number(p1), _number(p2), _number(p3)
    q, k, row, place, here0, here1, here2, here3 = _where(batch, n, ROWS, FOURS)
    heat = _heat(y0, y1, y2, y3, k, n, temperature, DEFAULT, ROWS, FOURS)
    g0, g1, g2, g3 = _gaps(y0, y1, y2, y3, q, k, n, heat, DESCENDING)
    to_gaps += row * count + place
    to_g0 = tl.load(to_gaps, mask=here0 & (place < count), other=0.0)
    to_g1 = tl.load(to_gaps + 1, mask=here1 & (place + 1 < count), other=0.0)
    to_g2 = tl.load(to_gaps + 2, mask=here2 & (place + 2 < count), other=0.0)
    to_g3 = tl.load(to_gaps + 3, mask=here3 & (place + 3 < count), other=0.0)
    a, b, c, d = _to_numbers(
        y0, y1, y2, y3, g0, g1, g2, g3, to_g0, to_g1, to_g2, to_g3, q, k, heat
    )  # fmt: skip
    if DESCENDING:
        a, b, c, d = -a, -b, -c, -d
    out += row * n
    tl.store(out + (p0 & _LOWER), a, mask=here0)
    tl.store(out + (p1 & _LOWER), b, mask=here1)
    tl.store(out + (p2 & _LOWER), c, mask=here2)
    tl.store(out + (p3 & _LOWER), d, mask=here3)
