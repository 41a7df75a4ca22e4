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
_FORWARD, _TO_PAYLOAD, _TO_LEVELS = (tl.constexpr(i) for i in range(3))


def mix(payload: Tensor, weights: Tensor | None, tape: Tape) -> tuple[Tensor, Tensor]:
    """Return the payload, (b, n, f), in soft order, and sums of tiles for the backward pass."""
    out = torch.empty_like(payload, memory_format=torch.contiguous_format)
    parts = payload.new_empty(0)
    sums = _launch(_FORWARD.value, payload.contiguous(), out, weights, tape, out, parts, None)
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
    parts = payload.new_zeros((b, 3, triton.cdiv(features, FEATURES), n))
    out = torch.empty_like(payload)
    _launch(_TO_PAYLOAD.value, payload, grad, weights, tape, out, parts, None)
    _launch(_TO_LEVELS.value, payload, grad, weights, tape, out, parts, sums)
    low, high, more = parts.sum(2, dtype=torch.float64).unbind(1)
    more = more.contiguous()
    return backward(PLAN_BACK.value, low + high, None, weights, tape, descending, more)[0], out


def _tiles(n: int, weights: Tensor | None) -> int:
    # Where weights add up to more than n, the threshold of level n is a node before place n.
    return triton.cdiv(n + (weights is not None), NODES)


def _launch(
    mode: int, payload: Tensor, grad: Tensor, weights: Tensor | None, tape: Tape, out: Tensor,
    parts: Tensor, sums: Tensor | None,
) -> Tensor:  # fmt: skip
    b, n, features = payload.shape
    tiles, slices = _tiles(n, weights), triton.cdiv(features, FEATURES)
    options = {"WEIGHTED": weights is not None, "NODES": NODES, "FEATURES": FEATURES}
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
        *rows, found, out, parts, n, features, tiles, slices,
        MODE=mode, CARRY=tiles > 1, num_warps=1, **options,
    )  # fmt: skip
    return found


@triton.jit
def _node(i, n, points, slots, below, places, offsets, BACK: tl.constexpr):
    """Whether a node is there, where it is, and the first source that is not before it."""
    there = (i >= 0) & (i < n)
    if BACK:
        x = tl.load(points + i, mask=there, other=0.0).to(tl.float64)
        t = x * 0
        start = tl.load(slots + i, mask=there, other=0)
    else:
        x = tl.load(places + i, mask=there, other=0.0).to(tl.float64)
        t = tl.load(offsets + i, mask=there, other=0.0).to(tl.float64)
        start = tl.load(below + i, mask=there, other=0)
    return there, x, t, tl.minimum(tl.where(i < n, start, n), n)


@triton.jit
def _source(
    s, inside, f, n, features, payload, grad, weights, order, points, places, offsets,
    BACK: tl.constexpr, WEIGHTED: tl.constexpr,
):  # fmt: skip
    """Where sources are, and their rows."""
    if BACK:
        x = tl.load(places + s, mask=inside, other=0.0).to(tl.float64)
        t = tl.load(offsets + s, mask=inside, other=0.0).to(tl.float64)
        inside &= t < ABSENT
        at = grad + s.to(tl.int64)[:, None] * features + f[None, :]
        wanted = inside[:, None] & (f < features)[None, :]
        row = tl.load(at, mask=wanted, other=0.0)
        row -= tl.load(at + features, mask=wanted & (s + 1 < n)[:, None], other=0.0)
    else:
        x = tl.load(points + s, mask=inside, other=0.0).to(tl.float64)
        t = x * 0
        place = tl.load(order + s, mask=inside, other=0)
        wanted = inside[:, None] & (f < features)[None, :]
        at = payload + place.to(tl.int64)[:, None] * features + f[None, :]
        row = tl.load(at, mask=wanted, other=0.0)
        if WEIGHTED:
            row *= weight(weights, place, inside, WEIGHTED).to(row.dtype)[:, None]
    return x, t, row


@triton.jit
def _carry(
    payload, grad, weights, order, points, heats, slots, below, places, offsets, means, sums,
    n, features, tiles, slices, BACK: tl.constexpr, WEIGHTED: tl.constexpr, NODES: tl.constexpr,
    FEATURES: tl.constexpr,
):  # fmt: skip
    """L at the node before each tile, or R at the node behind it, for some features of a row."""
    row, f = tl.program_id(0) // slices, tl.arange(0, FEATURES)
    f += tl.program_id(0) % slices * FEATURES
    row, heat = row.to(tl.int64), tl.load(heats + row)
    at, lane = row * n, tl.arange(0, NODES)
    payload, grad = payload + at * features, grad + at * features
    shift: tl.constexpr = 0 if BACK else 1
    forth = tl.program_id(1) == 0
    total = tl.zeros((FEATURES,), payload.dtype.element_ty)
    for step in range(tiles):
        tile = tl.where(forth, step, tiles - 1 - step)
        to = sums + ((row * tiles + tile) * 2 + tl.program_id(1)) * features + f
        tl.store(to, total, mask=f < features)
        low = tile * NODES - tl.where(forth, shift + 1, 0)
        left, x, t, begin = _node(
            low, n, points + at, slots + at, below + at, places + at, offsets + at, BACK
        )
        right, y, u, end = _node(
            low + NODES, n, points + at, slots + at, below + at, places + at, offsets + at, BACK
        )
        fade = tl.where(left & right, decay(y, u, x, t, heat), 0.0)
        total *= fade.to(total.dtype)
        for s in range(begin, end, NODES):
            i = s + lane
            z, v, values = _source(
                i, i < end, f, n, features, payload, grad, weights + at, order + at, points + at,
                places + at, offsets + at, BACK, WEIGHTED,
            )  # fmt: skip
            share = tl.where(forth, decay(y, u, z, v, heat), decay(z, v, x, t, heat))
            share = tl.where((i < end) & tl.where(forth, right, left), share, 0.0)
            total += tl.sum(values * share.to(total.dtype)[:, None], 0)


@triton.jit
def _join(a, v, b, w):
    return a * b, v * b + w


@triton.jit
def _mix(
    payload, grad, weights, order, points, heats, slots, below, places, offsets, means, sums,
    out, parts, n, features, tiles, slices, MODE: tl.constexpr, CARRY: tl.constexpr,
    WEIGHTED: tl.constexpr, NODES: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    back: tl.constexpr = MODE == _TO_PAYLOAD
    shift: tl.constexpr = 0 if back else 1
    part, tile = tl.program_id(0) % slices, tl.program_id(0) // slices % tiles
    row = (tl.program_id(0) // slices // tiles).to(tl.int64)
    f, at, heat = part * FEATURES + tl.arange(0, FEATURES), row * n, tl.load(heats + row)
    payload, grad, out = payload + at * features, grad + at * features, out + at * features
    points, slots, below, order = points + at, slots + at, below + at, order + at
    places, offsets, weights = places + at, offsets + at, weights + at
    high = tile * NODES + tl.arange(0, NODES)
    low = high - shift
    some = f < features
    # Of each node below: what is before it. Of each node above: what is behind it.
    before, p, q, start = _node(low - 1, n, points, slots, below, places, offsets, back)
    left, x, t, begin = _node(low, n, points, slots, below, places, offsets, back)
    right, y, u, end = _node(high, n, points, slots, below, places, offsets, back)
    after, z, v, stop = _node(high + 1, n, points, slots, below, places, offsets, back)
    most = tl.max(tl.maximum(begin - start, stop - end), 0)
    if MODE == _FORWARD:
        most = tl.maximum(most, tl.max(end - begin, 0))
    kind = payload.dtype.element_ty
    down = tl.zeros((NODES, FEATURES), kind)
    up, middle = down, down
    for s in range(most):
        there = start + s < begin
        e, d, values = _source(
            start + s, there, f, n, features, payload, grad, weights, order, points, places, offsets,
            back, WEIGHTED,
        )  # fmt: skip
        down += values * tl.where(there & left, decay(x, t, e, d, heat), 0.0).to(kind)[:, None]
        there = end + s < stop
        e, d, values = _source(
            end + s, there, f, n, features, payload, grad, weights, order, points, places, offsets,
            back, WEIGHTED,
        )  # fmt: skip
        up += values * tl.where(there & right, decay(e, d, y, u, heat), 0.0).to(kind)[:, None]
        if MODE == _FORWARD:
            there = begin + s < end
            e, d, values = _source(
                begin + s, there, f, n, features, payload, grad, weights, order, points, places,
                offsets, back, WEIGHTED,
            )  # fmt: skip
            inner = 1 - tl.where(left, decay(e, d, x, t, heat), 0.0) / 2
            inner -= tl.where(right, decay(y, u, e, d, heat), 0.0) / 2
            middle += values * tl.where(there, inner, 0.0).to(kind)[:, None]
    fall = tl.where(before & left, decay(x, t, p, q, heat), 0.0).to(kind)
    rise = tl.where(right & after, decay(z, v, y, u, heat), 0.0).to(kind)
    fall = tl.broadcast_to(fall[:, None], (NODES, FEATURES))
    rise = tl.broadcast_to(rise[:, None], (NODES, FEATURES))
    fall, down = tl.associative_scan((fall, down), 0, _join)
    rise, up = tl.associative_scan((rise, up), 0, _join, reverse=True)
    if CARRY:
        sums += (row * tiles + tile) * 2 * features + f
        down += fall * tl.load(sums, mask=some, other=0.0)[None, :]
        up += rise * tl.load(sums + features, mask=some, other=0.0)[None, :]
    wanted = (high < n)[:, None] & some[None, :]
    if MODE == _FORWARD:
        # 1 − e^{−distance}, of the thresholds around a place.
        share = 1 - tl.where(left & right, decay(y, u, x, t, heat), 0.0)
        result = middle + (down + up) * (share / 2).to(kind)[:, None]
        tl.store(out + high.to(tl.int64)[:, None] * features + f[None, :], result, mask=wanted)
    elif MODE == _TO_PAYLOAD:
        place = tl.load(order + high, mask=high < n, other=0)
        w = weight(weights, place, high < n, WEIGHTED).to(kind)
        g = grad + end.to(tl.int64)[:, None] * features + f[None, :]
        g = tl.load(g, mask=wanted & (end < n)[:, None], other=0.0)
        at = place.to(tl.int64)[:, None] * features + f[None, :]
        tl.store(out + at, w[:, None] * (g + (down - up) / 2), mask=wanted)
        owned = tl.load(payload + at, mask=wanted, other=0.0)
        to = parts + ((row * 3 + 2) * slices + part) * n + high
        tl.store(to, tl.sum(owned * (down + up), 1) / 2, mask=high < n)
    else:
        g = grad + high.to(tl.int64)[:, None] * features + f[None, :]
        there = (right & (u < ABSENT))[:, None] & some[None, :]
        step = tl.load(g, mask=there, other=0.0)
        step -= tl.load(g + features, mask=there & (high + 1 < n)[:, None], other=0.0)
        to = parts + (row * 3 * slices + part) * n + high
        tl.store(to + slices * n, tl.sum(step * up, 1) / 2, mask=right)
        there = (left & (t < ABSENT))[:, None] & some[None, :]
        step = tl.load(g - features, mask=there, other=0.0)
        step -= tl.load(g, mask=there & (high < n)[:, None], other=0.0)
        tl.store(to - 1, tl.sum(step * down, 1) / 2, mask=left)
