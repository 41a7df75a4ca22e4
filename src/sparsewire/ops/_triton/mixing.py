"""The kernels of soft sorts: values in order are mixed by all cuts of all levels in one launch.

The mathematics are those of `sparsewire.ops._mixing`: a cut mixes the four values around it, and
buckets of two are mixed by one number each. A program has some features of one set and goes through
the levels, some cuts at a time; values stay in its own part of the memory, so that nothing is
written by one program and read by another.

Every cut but those of pairs is known by its number k: it lies between the elements 2k + 1 and
2k + 2, and in exactly one level. Cuts of buckets of `size` elements have k = size / 4 - 1, and then
every (size / 2)th.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

STUDENT, LOGISTIC = 0, 1
# Distances from here on make no difference; their squares are in the range of float32.
_FAR = tl.constexpr(1e15)
_CERTAIN = tl.constexpr(110.0)  # a distance whose exponential is nothing beside one
_TILE = 1024  # numbers that a program has at a time
_FEATURES = 256  # most of them


def mix(values: Tensor, gaps: Tensor, back: bool, squash: int) -> Tensor:
    """Mix values by all cuts, or by their transposes in the other order.

    Args:
        values: (b, n, f) float32, in the order of their keys.
        gaps: (b, g) float32, distances of neighbours over the temperature; g + 1 is n, filled up to
            a power of two.
        back: Whether by the transposes.
        squash: `STUDENT` or `LOGISTIC`.
    """
    out = torch.empty_like(values, memory_format=torch.contiguous_format)
    batch, n, features = values.shape
    grid, tiles = _tiles(batch, gaps.shape[1] + 1, features)
    _mix[grid](
        values.contiguous(), gaps.contiguous(), out, out, n, features, gaps.shape[1] + 1,
        BACK=back, SQUASH=squash, KEEP=False, **tiles,
    )  # fmt: skip
    return out


def mix_backward(
    grad: Tensor, values: Tensor, gaps: Tensor, back: bool, squash: int
) -> tuple[Tensor, Tensor]:
    """Return the gradients of values and gaps; the values between levels are computed anew."""
    batch, n, features = values.shape
    full = gaps.shape[1] + 1
    grid, tiles = _tiles(batch, full, features)
    like = {"dtype": torch.float32, "device": values.device}
    work = torch.empty((batch, n, features), **like)
    kept = torch.empty((batch, 2 * full - 4 + full // 2, features), **like)
    to_values = torch.empty((batch, n, features), **like)
    # What each program finds of the cuts: for three gaps of each, then for that of each pair.
    found = torch.empty((grid[1], batch, 3 * (full // 2 - 1) + full // 2), **like)
    to_gaps = torch.empty((grid[1], batch, full - 1), **like)
    gaps = gaps.contiguous()
    options = {"BACK": back, "SQUASH": squash, **tiles}
    _mix[grid](
        values.contiguous(), gaps, work, kept, n, features, full, KEEP=True, **options
    )  # fmt: skip
    _mix_back[grid](
        grad.contiguous(), gaps, kept, to_values, found, to_gaps, batch, n, features, full,
        **options,
    )  # fmt: skip
    return to_values, to_gaps.sum(0) if grid[1] > 1 else to_gaps[0]


def _tiles(batch: int, full: int, features: int) -> tuple[tuple[int, int], dict[str, int]]:
    """How many programs there are, and how many cuts and features each has at a time."""
    wide = min(_FEATURES, triton.next_power_of_2(features))
    rows = max(1, min(_TILE // wide, full // 2))
    return (batch, triton.cdiv(features, wide)), {"ROWS": rows, "WIDE": wide}


@triton.jit
def _against(distance, SQUASH: tl.constexpr):
    """The odds for the side where an element does not belong, and their slope."""
    t = tl.minimum(distance, _FAR)
    if SQUASH == 0:
        root = tl.sqrt(1 + t * t)
        odds = 1 / (t + root)
        odds = odds * odds
        slope = -2 * odds / root
    else:
        odds = tl.exp(-tl.minimum(t, _CERTAIN))
        slope = tl.where(t < _CERTAIN, -odds, 0.0)
    return odds, tl.where(distance < _FAR, slope, 0.0)


@triton.jit
def _cut_odds(gaps, k, live, SQUASH: tl.constexpr):
    """Of some cuts: the odds of the first, of the two in the middle and of the last, and slopes."""
    far = _FAR * 10
    half = tl.load(gaps + 2 * k + 1, mask=live, other=far) / 2
    first, first_slope = _against(tl.load(gaps + 2 * k, mask=live, other=far) + half, SQUASH)
    middle, middle_slope = _against(half, SQUASH)
    last, last_slope = _against(tl.load(gaps + 2 * k + 2, mask=live, other=far) + half, SQUASH)
    return first, middle, last, first_slope, middle_slope, last_slope


@triton.jit
def _cut_sums(first, middle, last):
    """What the four values around cuts are mixed by."""
    square, ends = middle * middle, first * last
    share = 1 / (1 + square + first * middle + middle * last + ends + ends * square)
    bd, ad, bc = square * share, first * middle * share, middle * last * share
    ac, ab = ends * share, ends * square * share
    low, high = ad + ac, bc + ac
    return low, bd + ad, high + ab, bd + bc, ab, low + ab, high


@triton.jit
def _forth(a, b, c, d, low, second, fourth, third, ab, first, high):
    """Mix elements into places; the weights have a column each."""
    middle = c - b
    return (
        a + (b - a) * low[:, None] + (c - a) * ab[:, None],
        b + middle * second[:, None] + (d - b) * fourth[:, None],
        c - middle * third[:, None] + (a - c) * first[:, None],
        d + (c - d) * high[:, None] + (b - d) * ab[:, None],
    )


@triton.jit
def _back(a, b, c, d, low, second, fourth, third, ab, first, high):
    """Mix places into elements: the transpose."""
    outer, middle = c - a, c - b
    return (
        a + outer * first[:, None],
        b + (a - b) * low[:, None] + middle * third[:, None] + (d - b) * ab[:, None],
        c - outer * ab[:, None] - middle * second[:, None] + (d - c) * high[:, None],
        d + (b - d) * fourth[:, None],
    )


@triton.jit
def _load_row(x, row, feature, n, features, live):
    here = live[:, None] & (row[:, None] < n) & (feature[None, :] < features)
    return tl.load(x + row[:, None] * features + feature[None, :], mask=here, other=0.0)


@triton.jit
def _store_row(x, value, row, feature, n, features, live):
    here = live[:, None] & (row[:, None] < n) & (feature[None, :] < features)
    tl.store(x + row[:, None] * features + feature[None, :], value, mask=here)


@triton.jit
def _copy(source, target, feature, n, features, ROWS: tl.constexpr):
    for start in range(0, n, ROWS):
        row = start + tl.arange(0, ROWS)
        live = row < n
        value = _load_row(source, row, feature, n, features, live)
        _store_row(target, value, row, feature, n, features, live)
    tl.debug_barrier()


@triton.jit
def _mix_pairs(
    x, gaps, kept, feature, n, features, full,
    SQUASH: tl.constexpr, KEEP: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    for start in range(0, full // 2, ROWS):
        pair = start + tl.arange(0, ROWS)
        live = 2 * pair + 1 < n
        odds, _ = _against(tl.load(gaps + 2 * pair, mask=live, other=0.0) / 2, SQUASH)
        odds = odds * odds
        weight = odds / (1 + odds)
        one = _load_row(x, 2 * pair, feature, n, features, live)
        other = _load_row(x, 2 * pair + 1, feature, n, features, live)
        apart = other - one
        if KEEP:
            _store_row(kept, apart, pair, feature, full, features, live)
        _store_row(x, one + apart * weight[:, None], 2 * pair, feature, n, features, live)
        _store_row(x, other - apart * weight[:, None], 2 * pair + 1, feature, n, features, live)
    tl.debug_barrier()


@triton.jit
def _mix(
    values, gaps, out, kept, n, features, full,
    BACK: tl.constexpr, SQUASH: tl.constexpr, KEEP: tl.constexpr,
    ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    which = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    gaps += which * (full - 1)
    x = out + which * n * features
    slots = 2 * full - 4  # four for each cut; behind them, one for each pair
    kept += which * (slots + full // 2) * features
    _copy(values + which * n * features, x, feature, n, features, ROWS)
    if BACK:
        _mix_pairs(x, gaps, kept + slots * features, feature, n, features, full, SQUASH, KEEP, ROWS)
    size = full
    if BACK:
        size = tl.minimum(full, 4)
    while (size >= 4) & (size <= full):
        cuts = full // size
        for start in range(0, cuts, ROWS):
            cut = start + tl.arange(0, ROWS)
            k = size // 4 - 1 + cut * (size // 2)
            row = 2 * k
            live = (cut < cuts) & (row + 2 < n)
            odds = _cut_odds(gaps, k, live, SQUASH)
            low, second, fourth, third, ab, first, high = _cut_sums(odds[0], odds[1], odds[2])
            a = _load_row(x, row, feature, n, features, live)
            b = _load_row(x, row + 1, feature, n, features, live)
            c = _load_row(x, row + 2, feature, n, features, live)
            d = _load_row(x, row + 3, feature, n, features, live)
            if KEEP:
                _store_row(kept, a, 4 * k, feature, slots, features, live)
                _store_row(kept, b, 4 * k + 1, feature, slots, features, live)
                _store_row(kept, c, 4 * k + 2, feature, slots, features, live)
                _store_row(kept, d, 4 * k + 3, feature, slots, features, live)
            if BACK:
                a, b, c, d = _back(a, b, c, d, low, second, fourth, third, ab, first, high)
            else:
                a, b, c, d = _forth(a, b, c, d, low, second, fourth, third, ab, first, high)
            _store_row(x, a, row, feature, n, features, live)
            _store_row(x, b, row + 1, feature, n, features, live)
            _store_row(x, c, row + 2, feature, n, features, live)
            _store_row(x, d, row + 3, feature, n, features, live)
        tl.debug_barrier()
        size = size * 2 if BACK else size // 2
    if not BACK:
        _mix_pairs(x, gaps, kept + slots * features, feature, n, features, full, SQUASH, KEEP, ROWS)


@triton.jit
def _pairs_back(
    g, gaps, apart, found, feature, n, features, full, SQUASH: tl.constexpr, ROWS: tl.constexpr
):
    for start in range(0, full // 2, ROWS):
        pair = start + tl.arange(0, ROWS)
        live = 2 * pair + 1 < n
        odds, slope = _against(tl.load(gaps + 2 * pair, mask=live, other=0.0) / 2, SQUASH)
        square = odds * odds
        weight = square / (1 + square)
        one = _load_row(g, 2 * pair, feature, n, features, live)
        other = _load_row(g, 2 * pair + 1, feature, n, features, live)
        difference = other - one
        was = _load_row(apart, pair, feature, full, features, live)
        to_weight = -tl.sum(difference * was, 1)
        # Of odds² / (1 + odds²), at half the gap.
        to_gap = to_weight * odds * slope / ((1 + square) * (1 + square))
        tl.store(found + pair, to_gap, mask=pair < full // 2)
        _store_row(g, one + difference * weight[:, None], 2 * pair, feature, n, features, live)
        _store_row(
            g, other - difference * weight[:, None], 2 * pair + 1, feature, n, features, live
        )
    tl.debug_barrier()


@triton.jit
def _slopes(a, b, c, d, to_a, to_b, to_c, to_d):
    """Gradients of the sums, of what is mixed forth and of the gradients of the result."""
    middle = c - b
    return (
        tl.sum((b - a) * to_a, 1),
        tl.sum(middle * to_b, 1),
        tl.sum((d - b) * to_b, 1),
        -tl.sum(middle * to_c, 1),
        tl.sum((c - a) * to_a + (b - d) * to_d, 1),
        tl.sum((a - c) * to_c, 1),
        tl.sum((c - d) * to_d, 1),
    )


@triton.jit
def _odds_back(first, middle, last, low, second, fourth, third, ab, one, high):
    """From the gradients of the sums to those of the three odds."""
    down, up = low + one, fourth + high
    to_bd, to_ad, to_bc = second + third, down + second, up + third
    to_ac, to_ab = down + up, ab + fourth + one
    square, ends = middle * middle, first * last
    near, far = first * middle, middle * last
    all_of = ends * square
    share = 1 / (1 + square + near + far + ends + all_of)
    mean = (to_bd * square + to_ad * near + to_bc * far + to_ac * ends + to_ab * all_of) * share
    to_bd, to_ad, to_bc = (to_bd - mean) * share, (to_ad - mean) * share, (to_bc - mean) * share
    to_ac, to_ab = (to_ac - mean) * share, (to_ab - mean) * share
    return (
        to_ad * middle + to_ac * last + to_ab * last * square,
        2 * middle * (to_bd + to_ab * ends) + to_ad * first + to_bc * last,
        to_bc * middle + to_ac * first + to_ab * first * square,
    )


@triton.jit
def _mix_back(
    grad, gaps, kept, out, found, to_gaps, batch, n, features, full,
    BACK: tl.constexpr, SQUASH: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    which = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    row_of = tl.program_id(1) * batch + which
    gaps += which * (full - 1)
    g = out + which * n * features
    slots = 2 * full - 4
    kept += which * (slots + full // 2) * features
    cuts_in_all = full // 2 - 1
    found += row_of * (3 * cuts_in_all + full // 2)
    to_gaps += row_of * (full - 1)
    _copy(grad + which * n * features, g, feature, n, features, ROWS)
    if not BACK:
        _pairs_back(
            g, gaps, kept + slots * features, found + 3 * cuts_in_all,
            feature, n, features, full, SQUASH, ROWS,
        )  # fmt: skip
    size = full
    if not BACK:
        size = tl.minimum(full, 4)
    while (size >= 4) & (size <= full):
        cuts = full // size
        for start in range(0, cuts, ROWS):
            cut = start + tl.arange(0, ROWS)
            k = size // 4 - 1 + cut * (size // 2)
            row = 2 * k
            there = cut < cuts
            live = there & (row + 2 < n)
            x_first, x_middle, x_last, to_first, to_middle, to_last = _cut_odds(
                gaps, k, live, SQUASH
            )
            low, second, fourth, third, ab, first, high = _cut_sums(x_first, x_middle, x_last)
            a = _load_row(kept, 4 * k, feature, slots, features, live)
            b = _load_row(kept, 4 * k + 1, feature, slots, features, live)
            c = _load_row(kept, 4 * k + 2, feature, slots, features, live)
            d = _load_row(kept, 4 * k + 3, feature, slots, features, live)
            to_a = _load_row(g, row, feature, n, features, live)
            to_b = _load_row(g, row + 1, feature, n, features, live)
            to_c = _load_row(g, row + 2, feature, n, features, live)
            to_d = _load_row(g, row + 3, feature, n, features, live)
            # To go back is to apply the transpose: what came in and the gradient change roles.
            if BACK:
                s0, s1, s2, s3, s4, s5, s6 = _slopes(to_a, to_b, to_c, to_d, a, b, c, d)
                to_a, to_b, to_c, to_d = _forth(
                    to_a, to_b, to_c, to_d, low, second, fourth, third, ab, first, high
                )
            else:
                s0, s1, s2, s3, s4, s5, s6 = _slopes(a, b, c, d, to_a, to_b, to_c, to_d)
                to_a, to_b, to_c, to_d = _back(
                    to_a, to_b, to_c, to_d, low, second, fourth, third, ab, first, high
                )
            one, two, three = _odds_back(x_first, x_middle, x_last, s0, s1, s2, s3, s4, s5, s6)
            one, two, three = one * to_first, two * to_middle, three * to_last
            tl.store(found + 3 * k, one, mask=there)
            tl.store(found + 3 * k + 1, (one + two + three) / 2, mask=there)
            tl.store(found + 3 * k + 2, three, mask=there)
            _store_row(g, to_a, row, feature, n, features, live)
            _store_row(g, to_b, row + 1, feature, n, features, live)
            _store_row(g, to_c, row + 2, feature, n, features, live)
            _store_row(g, to_d, row + 3, feature, n, features, live)
        tl.debug_barrier()
        size = size // 2 if BACK else size * 2
    if BACK:
        _pairs_back(
            g, gaps, kept + slots * features, found + 3 * cuts_in_all,
            feature, n, features, full, SQUASH, ROWS,
        )  # fmt: skip
    # A gap with an even number is that of a pair, before one cut, and behind another.
    for start in range(0, full - 1, ROWS):
        gap = start + tl.arange(0, ROWS)
        here = gap < full - 1
        even, k = gap % 2 == 0, gap // 2
        inner = tl.load(found + 3 * k + 1, mask=here & (gap % 2 == 1), other=0.0)
        pair = tl.load(found + 3 * cuts_in_all + k, mask=here & even, other=0.0)
        before = tl.load(found + 3 * k, mask=here & even & (k < cuts_in_all), other=0.0)
        behind = tl.load(found + 3 * k - 1, mask=here & even & (k > 0), other=0.0)
        tl.store(to_gaps + gap, inner + pair + before + behind, mask=here)
