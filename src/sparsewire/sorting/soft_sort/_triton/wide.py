"""A payload of many features in soft order, in tiles of places and features.

A program has the sums of one tile of nodes: L at nodes from the sources before them, R from those
behind. In the forward pass nodes are thresholds and sources are the rows of keys, in the backward
pass it is the other way around. Each node adds the sources up to the next node, about one, then a
scan over the tile carries the sums on; sums from other tiles are found before by `_carry`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsewire.sorting.soft_sort._triton.rows import Tape, backward
from sparsewire.sorting.soft_sort._triton.scans import ABSENT, PLAN_BACK, decay, weight

NODES, FEATURES = 16, 64  # of a tile
_BLOCK = 1024
_FORWARD, _TO_PAYLOAD, _TO_LEVELS = (tl.constexpr(i) for i in range(3))


def mix(payload: Tensor, weights: Tensor | None, tape: Tape) -> tuple[Tensor, Tensor]:
    """Return the payload, (b, n, f), in soft order, and sums of tiles for the backward pass."""
    out = torch.empty_like(payload, memory_format=torch.contiguous_format)
    parts = payload.new_empty(0)
    factors = _all_factors(payload, weights, tape)
    sums = _launch(
        _FORWARD.value, payload.contiguous(), out, weights, tape, factors, out, parts, None
    )
    return out, sums


def new_sums(payload: Tensor, weights: Tensor | None) -> Tensor:
    """Return room for the sums of tiles; of one tile there are none."""
    b, n, features = payload.shape
    tiles = _tiles(n, weights)
    return payload.new_empty((b, tiles if tiles > 1 else 0, 2, features))


def mix_backward(
    grad: Tensor,
    payload: Tensor,
    weights: Tensor | None,
    tape: Tape,
    sums: Tensor,
    descending: bool,
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the keys and of the payload."""
    grad, payload = grad.contiguous(), payload.contiguous()
    b, n, features = payload.shape
    parts = payload.new_zeros((b, 3, triton.cdiv(features, _features(payload)), n))
    out = torch.empty_like(payload)
    factors = _all_factors(payload, weights, tape)
    _launch(_TO_PAYLOAD.value, payload, grad, weights, tape, factors, out, parts, None)
    _launch(_TO_LEVELS.value, payload, grad, weights, tape, factors, out, parts, sums)
    low, high, more = parts.sum(2, dtype=torch.float64).unbind(1)
    more = more.contiguous()
    return backward(PLAN_BACK.value, low + high, None, weights, tape, descending, more)[0], out


def _tiles(n: int, weights: Tensor | None) -> int:
    # Where weights add up to more than n, the threshold of level n is a node before place n.
    return triton.cdiv(n + (weights is not None), NODES)


def _features(payload: Tensor) -> int:
    return FEATURES * 4 // payload.element_size()


def _all_factors(payload: Tensor, weights: Tensor | None, tape: Tape) -> Tensor:
    b, n, _ = payload.shape
    factors = payload.new_empty((b, 7, n))
    if factors.numel():
        _factors[(b, triton.cdiv(n, _BLOCK))](
            payload if weights is None else weights.contiguous(), *tape, factors, n,
            WEIGHTED=weights is not None, SIZE=min(_BLOCK, max(32, triton.next_power_of_2(n))),
        )  # fmt: skip
    return factors


def _launch(
    mode: int, payload: Tensor, grad: Tensor, weights: Tensor | None, tape: Tape, factors: Tensor,
    out: Tensor, parts: Tensor, sums: Tensor | None,
) -> Tensor:  # fmt: skip
    b, n, features = payload.shape
    tiles, slices = _tiles(n, weights), triton.cdiv(features, _features(payload))
    options = {"NODES": NODES, "FEATURES": _features(payload), "WEIGHTED": weights is not None}
    rows = payload, grad, payload if weights is None else weights.contiguous(), *tape
    found = new_sums(payload, weights) if sums is None else sums
    if not payload.numel():
        return found
    if tiles > 1 and sums is None:
        _carry[(b * slices, 2)](
            *rows, found, n, features, tiles, slices,
            BACK=mode == _TO_PAYLOAD.value, num_warps=1, **options,
        )  # fmt: skip
    _mix[(b * tiles * slices,)](
        *rows, factors, found, out, parts, n, features, tiles, slices,
        MODE=mode, CARRY=tiles > 1, num_warps=1, **options,
    )  # fmt: skip
    return found


@triton.jit
def _factors(
    weights, order, points, heats, slots, below, places, offsets, means, factors, n,
    WEIGHTED: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Exponentials of distances between neighbours.

    Of a key: from the threshold below, to the one above, and what is left of its own place, times
    its weight. Of a threshold: 1 less that from the one below, and those from the key below and to
    the key above. Of a key: 1 less that from the key below.
    """
    row, i = tl.program_id(0).to(tl.int64), tl.program_id(1) * SIZE + tl.arange(0, SIZE)
    at, inside, heat = row * n, i < n, tl.load(heats + row)
    points, places, offsets, out = points + at, places + at, offsets + at, factors + 7 * at + i
    w = weight(weights + at, tl.load(order + at + i, mask=inside, other=0), inside, WEIGHTED)
    x, none = tl.load(points + i, mask=inside, other=0.0).to(tl.float64), i * 0.0
    k = tl.minimum(tl.load(slots + at + i, mask=inside, other=0), n)
    y, u, there = _threshold(k - 1, n, places, offsets)
    down = tl.where(there, decay(x, none, y, u, heat), 0.0)
    y, u, there = _threshold(k, n, places, offsets)
    up = tl.where(there, decay(y, u, x, none, heat), 0.0)
    tl.store(out, w * down, mask=inside)
    tl.store(out + n, w * up, mask=inside)
    tl.store(out + 2 * n, w * (1 - down / 2 - up / 2), mask=inside)
    y = tl.load(points + i - 1, mask=inside & (i > 0), other=0.0).to(tl.float64)
    gap = tl.where(i > 0, decay(x, none, y, none, heat), 0.0)
    tl.store(out + 6 * n, 1 - gap, mask=inside)
    x, t, there = _threshold(i, n, places, offsets)
    y, u, left = _threshold(i - 1, n, places, offsets)
    gap = tl.where(there & left, decay(x, t, y, u, heat), 0.0)
    tl.store(out + 3 * n, 1 - gap, mask=inside)
    k = tl.load(below + at + i, mask=inside, other=0)
    y = tl.load(points + k - 1, mask=there & (k > 0), other=0.0).to(tl.float64)
    gap = tl.where(there & (k > 0), decay(x, t, y, none, heat), 0.0)
    tl.store(out + 4 * n, gap, mask=inside)
    y = tl.load(points + k, mask=there & (k < n), other=0.0).to(tl.float64)
    gap = tl.where(there & (k < n), decay(y, none, x, t, heat), 0.0)
    tl.store(out + 5 * n, gap, mask=inside)


@triton.jit
def _threshold(i, n, places, offsets):
    inside = (i >= 0) & (i < n)
    x = tl.load(places + i, mask=inside, other=0.0).to(tl.float64)
    t = tl.load(offsets + i, mask=inside, other=0.0).to(tl.float64)
    return x, t, inside & (t < ABSENT)


@triton.jit
def _start(i, n, starts):
    """The first source that is not before a node."""
    start = tl.load(starts + i, mask=(i >= 0) & (i < n), other=0)
    return tl.minimum(tl.where(i < n, start, n), n)


@triton.jit
def _source(s, inside, f, n, features, payload, grad, order, BACK: tl.constexpr):
    """Rows of sources: steps from one place to the next, or the payload in hard order."""
    wanted = inside[:, None] & (f < features)[None, :]
    if BACK:
        at = grad + s.to(tl.int64)[:, None] * features + f[None, :]
        row = tl.load(at, mask=wanted, other=0.0)
        row -= tl.load(at + features, mask=wanted & (s + 1 < n)[:, None], other=0.0)
    else:
        place = tl.load(order + s, mask=inside, other=0)
        at = payload + place.to(tl.int64)[:, None] * features + f[None, :]
        row = tl.load(at, mask=wanted, other=0.0)
    return row


@triton.jit
def _fade(x, t, y, u, inverse, kind: tl.constexpr):
    """As `decay`, with the exponential in the dtype of the payload."""
    far = tl.minimum(tl.maximum((x - y) * inverse + (t - u), 0.0), 300.0)
    return tl.exp(-far.to(kind))


@triton.jit
def _point(i, inside, points, places, offsets, THRESHOLD: tl.constexpr):
    if THRESHOLD:
        x = tl.load(places + i, mask=inside, other=0.0).to(tl.float64)
        return x, tl.load(offsets + i, mask=inside, other=0.0).to(tl.float64)
    else:
        x = tl.load(points + i, mask=inside, other=0.0).to(tl.float64)
        return x, x * 0


@triton.jit
def _carry(
    payload, grad, weights, order, points, heats, slots, below, places, offsets, means, sums,
    n, features, tiles, slices, BACK: tl.constexpr, WEIGHTED: tl.constexpr, NODES: tl.constexpr,
    FEATURES: tl.constexpr,
):  # fmt: skip
    """L at the node before each tile, or R at the node behind it, for some features of a row."""
    row, f = (tl.program_id(0) // slices).to(tl.int64), tl.arange(0, FEATURES)
    f += tl.program_id(0) % slices * FEATURES
    at, inverse = row * n, 1 / tl.maximum(tl.load(heats + row), 1e-300)
    payload, grad = payload + at * features, grad + at * features
    weights, order = weights + at, order + at
    points, places, offsets = points + at, places + at, offsets + at
    starts = slots + at if BACK else below + at
    shift: tl.constexpr = 0 if BACK else 1
    kind: tl.constexpr = payload.dtype.element_ty
    forth = tl.program_id(1) == 0
    total = tl.zeros((FEATURES,), kind)
    for step in range(tiles):
        tile = tl.where(forth, step, tiles - 1 - step)
        to = sums + ((row * tiles + tile) * 2 + tl.program_id(1)) * features + f
        tl.store(to, total, mask=f < features)
        low = tile * NODES - tl.where(forth, shift + 1, 0)
        high = low + NODES
        begin, end = _start(low, n, starts), _start(high, n, starts)
        left, right = (low >= 0) & (low < n), high < n
        x, t = _point(low, left, points, places, offsets, not BACK)
        y, u = _point(high, right, points, places, offsets, not BACK)
        total *= tl.where(left & right, _fade(y, u, x, t, inverse, kind), 0.0)
        ahead = tl.where(forth, right, left)
        x, t = tl.where(forth, y, x), tl.where(forth, u, t)
        for s in range(begin, end, NODES):
            i = s + tl.arange(0, NODES)
            inside = i < end
            z, v = _point(i, inside, points, places, offsets, BACK)
            far = tl.where(forth, 1.0, -1.0) * ((x - z) * inverse + (t - v))
            share = tl.exp(-tl.minimum(tl.maximum(far, 0.0), 300.0).to(kind))
            if WEIGHTED and not BACK:
                place = tl.load(order + i, mask=inside, other=0)
                share *= weight(weights, place, inside, WEIGHTED).to(kind)
            share = tl.where(inside & (v < ABSENT), share, 0.0) * tl.where(ahead, 1.0, 0.0)
            values = _source(i, inside, f, n, features, payload, grad, order, BACK)
            total += tl.sum(values * share[:, None], 0)


@triton.jit
def _join(a, v, b, w):
    return a * b, v * b + w


@triton.jit
def _mix(
    payload, grad, weights, order, points, heats, slots, below, places, offsets, means, factors,
    sums, out, parts, n, features, tiles, slices, MODE: tl.constexpr, CARRY: tl.constexpr,
    WEIGHTED: tl.constexpr, NODES: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    back: tl.constexpr = MODE == _TO_PAYLOAD
    shift: tl.constexpr = 0 if back else 1
    kind: tl.constexpr = payload.dtype.element_ty
    part, tile = tl.program_id(0) % slices, tl.program_id(0) // slices % tiles
    row = (tl.program_id(0) // slices // tiles).to(tl.int64)
    f, at = part * FEATURES + tl.arange(0, FEATURES), row * n
    payload, grad, out = payload + at * features, grad + at * features, out + at * features
    starts, order, factors = slots + at if back else below + at, order + at, factors + 7 * at
    to_left, to_right = factors + (5 if back else 1) * n, factors + (4 if back else 0) * n
    gaps = factors + (6 if back else 3) * n
    high = tile * NODES + tl.arange(0, NODES)
    low = high - shift
    # Of each node below: the sources before it. Of each node above: those behind it.
    start, begin = _start(low - 1, n, starts), _start(low, n, starts)
    end, stop = _start(high, n, starts), _start(high + 1, n, starts)
    most = tl.max(tl.maximum(begin - start, stop - end), 0)
    if MODE == _FORWARD:
        most = tl.maximum(most, tl.max(end - begin, 0))
    down = tl.zeros((NODES, FEATURES), kind)
    up, middle = down, down
    for s in range(most):
        there = start + s < begin
        values = _source(start + s, there, f, n, features, payload, grad, order, back)
        down += values * tl.load(to_left + start + s, mask=there, other=0.0)[:, None]
        there = end + s < stop
        values = _source(end + s, there, f, n, features, payload, grad, order, back)
        up += values * tl.load(to_right + end + s, mask=there, other=0.0)[:, None]
        if MODE == _FORWARD:
            there = begin + s < end
            values = _source(begin + s, there, f, n, features, payload, grad, order, back)
            middle += values * tl.load(factors + 2 * n + begin + s, mask=there, other=0.0)[:, None]
    fall = 1 - tl.load(gaps + low, mask=(low >= 0) & (low < n), other=1.0)
    rise = 1 - tl.load(gaps + high + 1, mask=high + 1 < n, other=1.0)
    fall = tl.broadcast_to(fall[:, None], (NODES, FEATURES))
    rise = tl.broadcast_to(rise[:, None], (NODES, FEATURES))
    fall, down = tl.associative_scan((fall, down), 0, _join)
    rise, up = tl.associative_scan((rise, up), 0, _join, reverse=True)
    some, inside = f < features, high < n
    if CARRY:
        sums += (row * tiles + tile) * 2 * features + f
        down += fall * tl.load(sums, mask=some, other=0.0)[None, :]
        up += rise * tl.load(sums + features, mask=some, other=0.0)[None, :]
    wanted = inside[:, None] & some[None, :]
    place = high.to(tl.int64)[:, None] * features + f[None, :]
    if MODE == _FORWARD:
        share = tl.load(gaps + high, mask=inside, other=0.0) / 2
        tl.store(out + place, middle + (down + up) * share[:, None], mask=wanted)
    elif MODE == _TO_PAYLOAD:
        given = tl.load(order + high, mask=inside, other=0)
        w = weight(weights + at, given, inside, WEIGHTED).to(kind)
        g = grad + end.to(tl.int64)[:, None] * features + f[None, :]
        g = tl.load(g, mask=wanted & (end < n)[:, None], other=0.0)
        place = given.to(tl.int64)[:, None] * features + f[None, :]
        tl.store(out + place, w[:, None] * (g + (down - up) / 2), mask=wanted)
        owned = tl.load(payload + place, mask=wanted, other=0.0)
        to = parts + ((row * 3 + 2) * slices + part) * n + high
        tl.store(to, tl.sum(owned * (down + up), 1) / 2, mask=inside)
    else:
        # Steps to this place, and from it: at the nodes below and above.
        left = (low >= 0) & (low < n)
        g = tl.load(grad + place, mask=wanted, other=0.0)
        before = tl.load(grad + place - features, mask=left[:, None] & some[None, :], other=0.0)
        after = tl.load(grad + place + features, mask=wanted & (high + 1 < n)[:, None], other=0.0)
        to = parts + (row * 3 * slices + part) * n + high
        tl.store(to - 1, tl.sum((before - g) * down, 1) / 2, mask=left)
        tl.store(to + slices * n, tl.sum((g - after) * up, 1) / 2, mask=inside)
