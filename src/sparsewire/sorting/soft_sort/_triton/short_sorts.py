"""Soft sorts and ranks of short rows: one kernel from the keys to the result, and one back."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsewire.sorting.soft_sort._triton.cuts import (
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
from sparsewire.sorting.soft_sort._triton.short_rows import (
    INFINITY,
    before,
    following,
    launch,
    places_of,
    spaced,
    to_numbers,
)


def forward(
    keys: Tensor, distribution: int, temperature: float | None, descending: bool, ranks: bool
) -> Tensor:
    """Return the keys in soft order, or their soft ranks.

    Args:
        keys: (b, n) float32, with n from 2 to `LONGEST`.
        distribution: As for `sparsewire.sorting.soft_sort._triton.mixing`.
        temperature: None for that of `sparsewire.sorting.soft_sort`.
        descending: Whether the largest come first.
        ranks: Whether ranks are wanted.
    """
    out = torch.empty_like(keys, memory_format=torch.contiguous_format)
    grid, heat, options = launch(keys, temperature)
    _soft[grid](
        keys.contiguous(), out, *keys.shape, heat,
        DESCENDING=descending, RANKS=ranks, LAW=distribution, **options,
    )  # fmt: skip
    return out


def backward(
    grad: Tensor,
    keys: Tensor,
    distribution: int,
    temperature: float | None,
    descending: bool,
    ranks: bool,
) -> Tensor:
    """Return the gradient of the keys."""
    out = torch.empty_like(keys, memory_format=torch.contiguous_format)
    grid, heat, options = launch(keys, temperature)
    _soft_backward[grid](
        grad.contiguous(), keys.contiguous(), out, *keys.shape, heat,
        DESCENDING=descending, RANKS=ranks, LAW=distribution, **options,
    )  # fmt: skip
    return out


@triton.jit
def _quarter(x, inside):
    """A quarter of what is finite: differences of such are finite too."""
    return tl.where(inside & (tl.abs(x) < INFINITY), x / 4, 0.0)


@triton.jit
def _soft(
    keys, out, batch, n, temperature, DESCENDING: tl.constexpr, RANKS: tl.constexpr,
    LAW: tl.constexpr, DEFAULT: tl.constexpr, ROWS: tl.constexpr, FOURS: tl.constexpr,
):  # fmt: skip
    q, k, row, place, here0, here1, here2, here3 = places_of(batch, n, ROWS, FOURS)
    p0, p1, p2, p3, y0, y1, y2, y3, g0, g1, g2, g3, _ = spaced(
        keys, q, k, batch, n, temperature, DESCENDING, DEFAULT, ROWS, FOURS
    )
    # Of fours, of the windows behind them, and of pairs.
    first, _ = against(g0 + g1 / 2, LAW)
    middle, _ = against(g1 / 2, LAW)
    last, _ = against(g2 + g1 / 2, LAW)
    f0, f1, f2, f3, f4, f5, f6 = cut_sums(first, middle, last)
    first, _ = against(g2 + g3 / 2, LAW)
    middle, _ = against(g3 / 2, LAW)
    last, _ = against(following(g0, q) + g3 / 2, LAW)
    w0, w1, w2, w3, w4, w5, w6 = cut_sums(first, middle, last)
    low, _ = against(g0 / 2, LAW)
    high, _ = against(g2 / 2, LAW)
    low, high = pair_share(low), pair_share(high)
    if RANKS:
        a, b = swap(place.to(tl.float32), place + 1.0, low)
        c, d = swap(place + 2.0, place + 3.0, high)
        a, b, c, d = back(a, b, c, d, f0, f1, f2, f3, f4, f5, f6)
        c, d, e, f = back(c, d, following(a, q), following(b, q), w0, w1, w2, w3, w4, w5, w6)
        a = tl.where(k > 0, before(e, q, k), a)
        b = tl.where(k > 0, before(f, q, k), b)
        t0, t1, t2, t3 = p0, p1, p2, p3
    else:
        a, b = _quarter(y0, place < n), _quarter(y1, place + 1 < n)
        c, d = _quarter(y2, place + 2 < n), _quarter(y3, place + 3 < n)
        c, d, e, f = forth(c, d, following(a, q), following(b, q), w0, w1, w2, w3, w4, w5, w6)
        a = tl.where(k > 0, before(e, q, k), a)
        b = tl.where(k > 0, before(f, q, k), b)
        a, b, c, d = forth(a, b, c, d, f0, f1, f2, f3, f4, f5, f6)
        a, b = swap(a, b, low)
        c, d = swap(c, d, high)
        # What is infinite stays so.
        a = tl.where(tl.abs(y0) < INFINITY, 4 * a, y0)
        b = tl.where(tl.abs(y1) < INFINITY, 4 * b, y1)
        c = tl.where(tl.abs(y2) < INFINITY, 4 * c, y2)
        d = tl.where(tl.abs(y3) < INFINITY, 4 * d, y3)
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
    LAW: tl.constexpr, DEFAULT: tl.constexpr, ROWS: tl.constexpr, FOURS: tl.constexpr,
):  # fmt: skip
    q, k, row, place, here0, here1, here2, here3 = places_of(batch, n, ROWS, FOURS)
    p0, p1, p2, p3, y0, y1, y2, y3, g0, g1, g2, g3, heat = spaced(
        keys, q, k, batch, n, temperature, DESCENDING, DEFAULT, ROWS, FOURS
    )
    first, first_slope = against(g0 + g1 / 2, LAW)
    middle, middle_slope = against(g1 / 2, LAW)
    last, last_slope = against(g2 + g1 / 2, LAW)
    f0, f1, f2, f3, f4, f5, f6 = cut_sums(first, middle, last)
    near, near_slope = against(g2 + g3 / 2, LAW)
    inner, inner_slope = against(g3 / 2, LAW)
    far, far_slope = against(following(g0, q) + g3 / 2, LAW)
    w0, w1, w2, w3, w4, w5, w6 = cut_sums(near, inner, far)
    low, low_slope = against(g0 / 2, LAW)
    high, high_slope = against(g2 / 2, LAW)
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
        to_a = tl.where(tl.abs(y0) < INFINITY, t0, 0.0)
        to_b = tl.where(tl.abs(y1) < INFINITY, t1, 0.0)
        to_c = tl.where(tl.abs(y2) < INFINITY, t2, 0.0)
        to_d = tl.where(tl.abs(y3) < INFINITY, t3, 0.0)
    to_low, to_high = to_b - to_a, to_d - to_c
    to_a, to_b = swap(to_a, to_b, pair_share(low))
    to_c, to_d = swap(to_c, to_d, pair_share(high))
    h0, h1, h2, h3 = back(to_a, to_b, to_c, to_d, f0, f1, f2, f3, f4, f5, f6)
    # Windows behind fours: of elements as they came.
    e, f, g, h = following(a, q), following(b, q), following(h0, q), following(h1, q)
    s0, s1, s2, s3, s4, s5, s6 = slopes(c, d, e, f, h2, h3, g, h)
    one, two, three = odds_back(near, inner, far, s0, s1, s2, s3, s4, s5, s6)
    one, two, three = one * near_slope, two * inner_slope, three * far_slope
    to_g3 = (one + two + three) / 2
    to_g2, to_g0 = one, before(three, q, k)
    # Fours: of elements mixed by the windows.
    c, d, e, f = forth(c, d, e, f, w0, w1, w2, w3, w4, w5, w6)
    a = tl.where(k > 0, before(e, q, k), a)
    b = tl.where(k > 0, before(f, q, k), b)
    s0, s1, s2, s3, s4, s5, s6 = slopes(a, b, c, d, to_a, to_b, to_c, to_d)
    one, two, three = odds_back(first, middle, last, s0, s1, s2, s3, s4, s5, s6)
    one, two, three = one * first_slope, two * middle_slope, three * last_slope
    to_g1 = (one + two + three) / 2
    # Pairs: of elements mixed by all cuts.
    a, b, c, d = forth(a, b, c, d, f0, f1, f2, f3, f4, f5, f6)
    to_g0 += one - (b - a) * to_low * pair_slope(low, low_slope)
    to_g2 += three - (d - c) * to_high * pair_slope(high, high_slope)
    a, b, c, d = to_numbers(
        y0, y1, y2, y3, g0, g1, g2, g3, to_g0, to_g1, to_g2, to_g3, q, k, heat
    )  # fmt: skip
    if not RANKS:
        a, b, c, d = 4 * a, 4 * b, 4 * c, 4 * d
        # Elements also are what is mixed; those that are infinite stay as they are.
        h2, h3, g, h = back(h2, h3, g, h, w0, w1, w2, w3, w4, w5, w6)
        h0 = tl.where(k > 0, before(g, q, k), h0)
        h1 = tl.where(k > 0, before(h, q, k), h1)
        a += tl.where(tl.abs(y0) < INFINITY, h0, t0)
        b += tl.where(tl.abs(y1) < INFINITY, h1, t1)
        c += tl.where(tl.abs(y2) < INFINITY, h2, t2)
        d += tl.where(tl.abs(y3) < INFINITY, h3, t3)
    if DESCENDING:
        a, b, c, d = -a, -b, -c, -d
    out += row * n
    tl.store(out + p0, a, mask=here0)
    tl.store(out + p1, b, mask=here1)
    tl.store(out + p2, c, mask=here2)
    tl.store(out + p3, d, mask=here3)
