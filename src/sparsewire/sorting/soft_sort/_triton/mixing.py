"""The kernels of soft sorts: values in order are mixed by all cuts in one pass over memory.

The mathematics are those of `sparsewire.sorting.soft_sort._mixing`: a cut mixes the four values
around it, and buckets of two are mixed by one number each. Every cut but those of pairs is known by
its number k: it lies between the elements 2k + 1 and 2k + 2. Those with an odd number belong to
buckets of eight or more and are made first, each on four values of its own; then come those with an
even number, of buckets of four; then pairs. So a result depends on the eight values around it and
on nothing else: a program reads these, and mixes what two programs need twice.

Of a value's gradient the same is true, by the transposes in the other order. That of the gaps needs
elements as they were before each cut, and places as they are wanted after it: if E are elements and
P what is wanted in their places, or what places held if the transposes were applied, these are E
mixed by the cuts before, and P mixed back by the cuts behind.
"""

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

STUDENT, LOGISTIC = 0, 1
_INFINITY = tl.constexpr(float("inf"))
_TILE = 512  # numbers of one kind that a program has at a time
_FEATURES = 256  # most of them
_SUMMED = 32  # most where sums over features are made: as many as the threads that need not wait
_PROGRAMS = 1056  # to be busy; features are shared among more where there are fewer


def mix(values: Tensor, gaps: Tensor, back: bool, distribution: int) -> Tensor:
    """Mix values by all cuts, or by their transposes in the other order.

    Args:
        values: (b, n, f) float32, in the order of their keys.
        gaps: (b, g) float32, distances of neighbours over the temperature; g + 1 is n, filled up to
            a power of two.
        back: Whether by the transposes.
        distribution: `STUDENT` or `LOGISTIC`.
    """
    out = torch.empty_like(values, memory_format=torch.contiguous_format)
    batch, n, features = values.shape
    fours = _fours(gaps) + int(back)
    blocks, tile = _tile(fours, features, _FEATURES)
    _mix[(batch * blocks, triton.cdiv(features, tile["WIDE"]))](
        values.contiguous(), gaps.contiguous(), out, n, features, gaps.shape[1], blocks,
        BACK=back, LAW=distribution, **tile,
    )  # fmt: skip
    return out


def mix_backward(
    grad: Tensor, values: Tensor, gaps: Tensor, back: bool, distribution: int, wanted: bool = True
) -> tuple[Tensor, Tensor]:
    """Return the gradients of values, which is nothing unless it is wanted, and of gaps."""
    batch, n, features = values.shape
    elements, places = (grad, values) if back else (values, grad)
    blocks, tile = _tile(_fours(gaps), features, _SUMMED)
    tiles = triton.cdiv(features, tile["WIDE"])
    shares = min(tiles, triton.cdiv(_PROGRAMS, batch * blocks))
    like = {"dtype": torch.float32, "device": values.device}
    # For the three gaps of each cut, then for that of each pair: what each share of features says.
    cuts, pairs = 2 * _fours(gaps), (gaps.shape[1] + 1) // 2
    found = torch.zeros((shares, batch, 3 * cuts + pairs), **like)
    to_gaps = torch.empty(gaps.shape, **like)
    gaps = gaps.contiguous()
    _weigh[(batch * blocks, shares)](
        elements.contiguous(), places.contiguous(), gaps, found, batch, n, features, gaps.shape[1],
        blocks, cuts, tiles, LAW=distribution, **tile,
    )  # fmt: skip
    _gather[(batch, triton.cdiv(gaps.shape[1], _TILE))](
        found, to_gaps, batch, gaps.shape[1], cuts, shares, GAPS=_TILE
    )
    to_values = mix(grad, gaps, not back, distribution) if wanted else values.new_empty(0)
    return to_values, to_gaps


def _fours(gaps: Tensor) -> int:
    """How many buckets of four there are; two elements count as one."""
    return max(1, (gaps.shape[1] + 1) // 4)


def _tile(fours: int, features: int, most: int) -> tuple[int, dict[str, int]]:
    """Into how many blocks fours are cut, and how many of them and of features are in one."""
    wide = min(most, triton.next_power_of_2(features))
    rows = max(1, min(_TILE // wide, triton.next_power_of_2(fours)))
    return triton.cdiv(fours, rows), {"ROWS": rows, "WIDE": wide}


@triton.jit
def _cut_odds(gaps, k, n, LAW: tl.constexpr):
    """Of some cuts: the odds of the first, of the two in the middle and of the last, and slopes.

    A cut that is not there, or behind the last element, has none: it moves nothing.
    """
    live = (k >= 0) & (2 * k + 2 < n)
    half = tl.load(gaps + 2 * k + 1, mask=live, other=_INFINITY) / 2
    first, first_slope = against(tl.load(gaps + 2 * k, mask=live, other=_INFINITY) + half, LAW)
    middle, middle_slope = against(half, LAW)
    last, last_slope = against(tl.load(gaps + 2 * k + 2, mask=live, other=_INFINITY) + half, LAW)
    return first, middle, last, first_slope, middle_slope, last_slope


@triton.jit
def _cut(gaps, k, n, LAW: tl.constexpr):
    """What the four values around cuts are mixed by, whatever the feature."""
    odds = _cut_odds(gaps, k, n, LAW)
    one, two, three, four, five, six, seven = cut_sums(odds[0], odds[1], odds[2])
    return (
        one[:, None], two[:, None], three[:, None], four[:, None],
        five[:, None], six[:, None], seven[:, None],
    )  # fmt: skip


@triton.jit
def _pair_odds(gaps, j, n, LAW: tl.constexpr):
    """The odds of both elements of a pair, and their slope; none for one that is not there."""
    live = (j >= 0) & (2 * j + 1 < n)
    return against(tl.load(gaps + 2 * j, mask=live, other=_INFINITY) / 2, LAW)


@triton.jit
def _pair(gaps, j, n, LAW: tl.constexpr):
    """The chance that pairs change places, whatever the feature."""
    odds, _ = _pair_odds(gaps, j, n, LAW)
    return pair_share(odds)[:, None]


@triton.jit
def _load(x, row, feature, n, features):
    here = ((row >= 0) & (row < n))[:, None] & (feature < features)[None, :]
    return tl.load(x + row[:, None] * features + feature[None, :], mask=here, other=0.0)


@triton.jit
def _store(x, value, row, feature, n, features):
    here = ((row >= 0) & (row < n))[:, None] & (feature < features)[None, :]
    tl.store(x + row[:, None] * features + feature[None, :], value, mask=here)


@triton.jit
def _mix(
    values, gaps, out, n, features, count, blocks,
    BACK: tl.constexpr, LAW: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    which = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    feature = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    gaps += which * count
    x, y = values + which * n * features, out + which * n * features
    q = block * ROWS + tl.arange(0, ROWS)
    # Back, a block has the fours of large buckets, from 4q - 2 on, and two of small ones around it.
    row = 4 * q - 4 if BACK else 4 * q - 2
    a = _load(x, row, feature, n, features)
    b = _load(x, row + 1, feature, n, features)
    c = _load(x, row + 2, feature, n, features)
    d = _load(x, row + 3, feature, n, features)
    e = _load(x, row + 4, feature, n, features)
    f = _load(x, row + 5, feature, n, features)
    g = _load(x, row + 6, feature, n, features)
    h = _load(x, row + 7, feature, n, features)
    if BACK:
        a, b = swap(a, b, _pair(gaps, 2 * q - 2, n, LAW))
        c, d = swap(c, d, _pair(gaps, 2 * q - 1, n, LAW))
        e, f = swap(e, f, _pair(gaps, 2 * q, n, LAW))
        g, h = swap(g, h, _pair(gaps, 2 * q + 1, n, LAW))
        one, two, three, four, five, six, seven = _cut(gaps, 2 * q - 2, n, LAW)
        _, _, c, d = back(a, b, c, d, one, two, three, four, five, six, seven)
        one, two, three, four, five, six, seven = _cut(gaps, 2 * q, n, LAW)
        e, f, _, _ = back(e, f, g, h, one, two, three, four, five, six, seven)
        one, two, three, four, five, six, seven = _cut(gaps, 2 * q - 1, n, LAW)
        c, d, e, f = back(c, d, e, f, one, two, three, four, five, six, seven)
    else:
        one, two, three, four, five, six, seven = _cut(gaps, 2 * q - 1, n, LAW)
        _, _, c, d = forth(a, b, c, d, one, two, three, four, five, six, seven)
        one, two, three, four, five, six, seven = _cut(gaps, 2 * q + 1, n, LAW)
        e, f, _, _ = forth(e, f, g, h, one, two, three, four, five, six, seven)
        one, two, three, four, five, six, seven = _cut(gaps, 2 * q, n, LAW)
        c, d, e, f = forth(c, d, e, f, one, two, three, four, five, six, seven)
        c, d = swap(c, d, _pair(gaps, 2 * q, n, LAW))
        e, f = swap(e, f, _pair(gaps, 2 * q + 1, n, LAW))
    _store(y, c, row + 2, feature, n, features)
    _store(y, d, row + 3, feature, n, features)
    _store(y, e, row + 4, feature, n, features)
    _store(y, f, row + 5, feature, n, features)


@triton.jit
def _slopes(a, b, c, d, to_a, to_b, to_c, to_d):
    """The same for all features together."""
    one, two, three, four, five, six, seven = slopes(a, b, c, d, to_a, to_b, to_c, to_d)
    return (
        tl.sum(one, 1), tl.sum(two, 1), tl.sum(three, 1), tl.sum(four, 1),
        tl.sum(five, 1), tl.sum(six, 1), tl.sum(seven, 1),
    )  # fmt: skip


@triton.jit
def _store_cut(found, gaps, k, n, s0, s1, s2, s3, s4, s5, s6, LAW: tl.constexpr):
    """From the gradients of the sums of cuts to those of the three gaps of each."""
    first, middle, last, to_first, to_middle, to_last = _cut_odds(gaps, k, n, LAW)
    one, two, three = odds_back(first, middle, last, s0, s1, s2, s3, s4, s5, s6)
    one, two, three = one * to_first, two * to_middle, three * to_last
    live = 2 * k + 2 < n
    tl.store(found + 3 * k, one, mask=live)
    tl.store(found + 3 * k + 1, (one + two + three) / 2, mask=live)
    tl.store(found + 3 * k + 2, three, mask=live)


@triton.jit
def _store_pair(found, gaps, j, n, to_weight, LAW: tl.constexpr):
    """The same for pairs."""
    odds, slope = _pair_odds(gaps, j, n, LAW)
    tl.store(found + j, to_weight * pair_slope(odds, slope), mask=2 * j + 1 < n)


@triton.jit
def _weigh(
    elements, places, gaps, found, batch, n, features, count, blocks, cuts, tiles,
    LAW: tl.constexpr, ROWS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Of fours and of the larger cuts behind them: what each cut and pair would change."""
    which = (tl.program_id(0) // blocks).to(tl.int64)
    q = tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)
    row = 4 * q
    gaps += which * count
    x, y = elements + which * n * features, places + which * n * features
    found += (tl.program_id(1) * batch + which) * (3 * cuts + (count + 1) // 2)
    before0, before1, before2, before3, before4, before5, before6 = _cut(gaps, 2 * q - 1, n, LAW)
    here0, here1, here2, here3, here4, here5, here6 = _cut(gaps, 2 * q, n, LAW)
    behind0, behind1, behind2, behind3, behind4, behind5, behind6 = _cut(gaps, 2 * q + 1, n, LAW)
    next0, next1, next2, next3, next4, next5, next6 = _cut(gaps, 2 * q + 2, n, LAW)
    pair, other = _pair(gaps, 2 * q, n, LAW), _pair(gaps, 2 * q + 1, n, LAW)
    third, fourth = _pair(gaps, 2 * q + 2, n, LAW), _pair(gaps, 2 * q + 3, n, LAW)
    zero = tl.zeros((ROWS,), dtype=tl.float32)
    s0, s1, s2, s3, s4, s5, s6 = zero, zero, zero, zero, zero, zero, zero
    t0, t1, t2, t3, t4, t5, t6 = zero, zero, zero, zero, zero, zero, zero
    to_pair, to_other = zero, zero
    for tile in range(tl.program_id(1), tiles, tl.num_programs(1)):
        feature = tile * WIDE + tl.arange(0, WIDE)
        a = _load(x, row, feature, n, features)
        b = _load(x, row + 1, feature, n, features)
        c = _load(x, row + 2, feature, n, features)
        d = _load(x, row + 3, feature, n, features)
        e = _load(x, row + 4, feature, n, features)
        f = _load(x, row + 5, feature, n, features)
        to_a = _load(y, row, feature, n, features)
        to_b = _load(y, row + 1, feature, n, features)
        to_c = _load(y, row + 2, feature, n, features)
        to_d = _load(y, row + 3, feature, n, features)
        pair_apart, other_apart = to_b - to_a, to_d - to_c
        to_a, to_b = swap(to_a, to_b, pair)
        to_c, to_d = swap(to_c, to_d, other)
        # The cut behind, of a larger bucket: of elements as they came, wanted by two fours.
        _, _, to_e, to_f = back(
            to_a, to_b, to_c, to_d, here0, here1, here2, here3, here4, here5, here6
        )
        to_g, to_h = swap(
            _load(y, row + 4, feature, n, features), _load(y, row + 5, feature, n, features), third
        )
        to_i, to_j = swap(
            _load(y, row + 6, feature, n, features), _load(y, row + 7, feature, n, features), fourth
        )
        to_g, to_h, _, _ = back(
            to_g, to_h, to_i, to_j, next0, next1, next2, next3, next4, next5, next6
        )
        u0, u1, u2, u3, u4, u5, u6 = _slopes(c, d, e, f, to_e, to_f, to_g, to_h)
        t0, t1, t2, t3 = t0 + u0, t1 + u1, t2 + u2, t3 + u3
        t4, t5, t6 = t4 + u4, t5 + u5, t6 + u6
        # That of the four: of elements mixed by the larger cuts on both sides.
        _, _, a, b = forth(
            _load(x, row - 2, feature, n, features), _load(x, row - 1, feature, n, features), a, b,
            before0, before1, before2, before3, before4, before5, before6,
        )  # fmt: skip
        c, d, _, _ = forth(
            c, d, e, f, behind0, behind1, behind2, behind3, behind4, behind5, behind6
        )
        u0, u1, u2, u3, u4, u5, u6 = _slopes(a, b, c, d, to_a, to_b, to_c, to_d)
        s0, s1, s2, s3 = s0 + u0, s1 + u1, s2 + u2, s3 + u3
        s4, s5, s6 = s4 + u4, s5 + u5, s6 + u6
        a, b, c, d = forth(a, b, c, d, here0, here1, here2, here3, here4, here5, here6)
        to_pair -= tl.sum((b - a) * pair_apart, 1)
        to_other -= tl.sum((d - c) * other_apart, 1)
    _store_cut(found, gaps, 2 * q, n, s0, s1, s2, s3, s4, s5, s6, LAW)
    _store_cut(found, gaps, 2 * q + 1, n, t0, t1, t2, t3, t4, t5, t6, LAW)
    _store_pair(found + 3 * cuts, gaps, 2 * q, n, to_pair, LAW)
    _store_pair(found + 3 * cuts, gaps, 2 * q + 1, n, to_other, LAW)


@triton.jit
def _gather(found, to_gaps, batch, count, cuts, shares, GAPS: tl.constexpr):
    """A gap with an even number is that of a pair, before one cut, and behind another."""
    which = tl.program_id(0).to(tl.int64)
    gap = tl.program_id(1) * GAPS + tl.arange(0, GAPS)
    here = gap < count
    even, k = here & (gap % 2 == 0), gap // 2
    total = tl.zeros((GAPS,), dtype=tl.float32)
    for share in range(shares):
        said = found + (share * batch + which) * (3 * cuts + (count + 1) // 2)
        total += tl.load(said + 3 * k + 1, mask=here & (gap % 2 == 1), other=0.0)
        total += tl.load(said + 3 * cuts + k, mask=even, other=0.0)
        total += tl.load(said + 3 * k, mask=even & (k < cuts), other=0.0)
        total += tl.load(said + 3 * k - 1, mask=even & (k > 0) & (k <= cuts), other=0.0)
    tl.store(to_gaps + which * count + gap, total, mask=here)
