"""A payload of many features in soft order, in tiles of nodes and features.

Nodes are places, thresholds or keys, and a tile adds what all sources give to them: in the forward
pass and for the thresholds the rows of keys, for the keys the steps of the gradient from one place
to the next, which are at the thresholds. Sources near a tile are multiplied by a small matrix of
exponentials; those before and behind come as one sum each, found before by `_far`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsewire.sorting.soft_sort._triton.rows import Tape
from sparsewire.sorting.soft_sort._triton.scans import decay, point, weight

NODES, FEATURES = 16, 64  # of a tile
_NOWHERE = tl.constexpr(1e300)  # below every key, infinite ones too
_PLACES, _THRESHOLDS, _KEYS = (tl.constexpr(i) for i in range(3))


def mix(payload: Tensor, weights: Tensor | None, tape: Tape) -> Tensor:
    """Return the payload, (b, n, f), in soft order."""
    out = torch.empty_like(payload, memory_format=torch.contiguous_format)
    _launch(_PLACES, payload, out, weights, tape, out, out)
    return out


def mix_backward(
    grad: Tensor, payload: Tensor, weights: Tensor | None, tape: Tape
) -> tuple[Tensor, Tensor]:
    """Return sums over features at thresholds and at keys, (2, b, n), and the payload's gradient.

    The former are half of L + R there, times the steps of the gradient, or the payload.
    """
    b, n, features = payload.shape
    out = torch.empty_like(payload, memory_format=torch.contiguous_format)
    parts = payload.new_empty((2, triton.cdiv(features, _width(payload)), b, n))
    for nodes, part in ((_THRESHOLDS, parts[0]), (_KEYS, parts[1])):
        _launch(nodes, payload, grad, weights, tape, out, part)
    return parts.sum(1, dtype=torch.float64), out


def _width(payload: Tensor) -> int:
    return FEATURES * 4 // payload.element_size()


def _launch(
    nodes: tl.constexpr, payload: Tensor, grad: Tensor, weights: Tensor | None, tape: Tape,
    out: Tensor, parts: Tensor,
) -> None:  # fmt: skip
    if not payload.numel():
        return
    b, n, features = payload.shape
    tiles, slices = triton.cdiv(n, NODES), triton.cdiv(features, _width(payload))
    sums = payload.new_empty((b, tiles, 2, features))
    payload, grad = payload.contiguous(), grad.contiguous()
    given = payload, grad, payload if weights is None else weights.contiguous(), *tape
    for kernel, programs in ((_far, 2), (_near, tiles)):
        kernel[(b * programs, slices)](
            *given, sums, out, parts, n, features, b * n, tiles,
            OF=nodes.value, WEIGHTED=weights is not None, NODES=NODES, FEATURES=_width(payload),
            num_warps=1,
        )  # fmt: skip


@triton.jit
def _place(s, n, size, floats, THRESHOLDS: tl.constexpr):
    return point(floats, size, s, (s >= 0) & (s < n), THRESHOLDS)


@triton.jit
def _rows(
    s, f, n, features, payload, grad, weights, ints, THRESHOLDS: tl.constexpr,
    WEIGHTED: tl.constexpr,
):  # fmt: skip
    """The steps of the gradient at thresholds, or the payload of keys; and weights."""
    inside = s < n
    wanted = inside[:, None] & (f < features)[None, :]
    place = s if THRESHOLDS else tl.load(ints + s, mask=inside, other=0)
    at = place.to(tl.int64)[:, None] * features + f[None, :]
    if THRESHOLDS:
        rows = tl.load(grad + at, mask=wanted, other=0.0)
        rows -= tl.load(grad + at + features, mask=wanted & (s + 1 < n)[:, None], other=0.0)
    else:
        rows = tl.load(payload + at, mask=wanted, other=0.0)
    return rows, weight(weights, place, inside, WEIGHTED and not THRESHOLDS)


@triton.jit
def _far(
    payload, grad, weights, ints, floats, heats, sums, out, parts, n, features, size, tiles,
    OF: tl.constexpr, WEIGHTED: tl.constexpr, NODES: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """L at the last source before each tile of sources, or R at the first one behind it."""
    row, back = (tl.program_id(0) // 2).to(tl.int64), tl.program_id(0) % 2
    at, f = row * n, tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    cool = 1 / tl.load(heats + row)
    payload, grad = payload + at * features, grad + at * features
    weights, ints, floats = weights + at, ints + at, floats + at
    kind: tl.constexpr = payload.dtype.element_ty
    sources: tl.constexpr = OF == _KEYS  # thresholds
    total = tl.zeros((FEATURES,), kind)
    x, t = _place(tl.where(back == 1, n - 1, 0), n, size, floats, sources)
    for step in range(tiles):
        tile = tl.where(back == 1, tiles - 1 - step, step)
        tl.store(sums + ((row * tiles + tile) * 2 + back) * features + f, total, mask=f < features)
        first, last = tile * NODES, tl.minimum(tile * NODES + NODES, n) - 1
        y, u = _place(tl.where(back == 1, first, last), n, size, floats, sources)
        total *= decay(x, t, y, u, cool).to(kind)
        x, t = y, u
        s = first + tl.arange(0, NODES)
        y, u = _place(s, n, size, floats, sources)
        rows, w = _rows(s, f, n, features, payload, grad, weights, ints, sources, WEIGHTED)
        total += tl.sum(rows * (w * decay(x, t, y, u, cool)).to(kind)[:, None], 0)


@triton.jit
def _laplace(x, t, y, u, cool):
    """F at (x, t) of a source at (y, u)."""
    half = decay(x, t, y, u, cool) / 2
    return tl.where((x - y) * cool + (t - u) < 0, half, 1 - half)


@triton.jit
def _shares(x, t, y, u, v, s, cool, OF: tl.constexpr):
    """What a source at (v, s) gives to nodes: to places, between (x, t) and (y, u), or to points.

    Of keys F, from the other side; and of points the half of an exponential.
    """
    half = decay(y, u, v, s, cool) / 2
    if OF == _PLACES:
        return _laplace(y, u, v, s, cool) - _laplace(x, t, v, s, cool), half
    else:
        return _laplace(v, s, y, u, cool), half


@triton.jit
def _near(
    payload, grad, weights, ints, floats, heats, sums, out, parts, n, features, size, tiles,
    OF: tl.constexpr, WEIGHTED: tl.constexpr, NODES: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """The sums of one tile of nodes."""
    row, tile = (tl.program_id(0) // tiles).to(tl.int64), tl.program_id(0) % tiles
    at, f = row * n, tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    cool = 1 / tl.load(heats + row)
    payload, grad, out = payload + at * features, grad + at * features, out + at * features
    weights, ints, floats = weights + at, ints + at, floats + at
    sums += row * tiles * 2 * features + f
    kind: tl.constexpr = payload.dtype.element_ty
    sources: tl.constexpr = OF == _KEYS  # thresholds
    i = tile * NODES + tl.arange(0, NODES)
    inside, some = i < n, f < features
    # The tiles of sources from the first node to the last; at least one.
    starts = ints + (size if OF == _KEYS else 2 * size)
    low = tile * NODES - (1 if OF == _PLACES else 0)
    high = tl.minimum(tile * NODES + NODES, n) - 1
    begin = tl.minimum(tl.load(starts + low, mask=low >= 0, other=0) // NODES, tiles - 1)
    end = tl.maximum(tl.minimum(tl.cdiv(tl.load(starts + high), NODES), tiles), begin + 1)
    y, u = _place(i, n, size, floats, not sources)
    x, t = y, u
    if OF == _PLACES:
        x, t = _place(i - 1, n, size, floats, True)
        x = tl.where(i > 0, x, -_NOWHERE)
    x, t, y, u = x[:, None], t[:, None], y[:, None], u[:, None]
    moved, spread = tl.zeros((NODES, FEATURES), kind), tl.zeros((NODES, FEATURES), kind)
    for side in tl.static_range(2):
        last = begin if side == 0 else end - 1
        v, s = _place(begin * NODES - 1 if side == 0 else end * NODES, n, size, floats, sources)
        share, half = _shares(x, t, y, u, v, s, cool, OF)
        if OF == _KEYS and side == 1:
            # All but half of an exponential: the steps behind are the gradient where they begin.
            share -= 1
            g = grad + (end * NODES).to(tl.int64) * features + f
            moved += tl.load(g, mask=some & (end * NODES < n), other=0.0)[None, :]
        total = tl.load(sums + (2 * last + side) * features, mask=some, other=0.0)[None, :]
        moved += share.to(kind) * total
        spread += half.to(kind) * total
    for near in range(begin, end):
        j = near * NODES + tl.arange(0, NODES)
        z, r = _place(j, n, size, floats, sources)
        rows, w = _rows(j, f, n, features, payload, grad, weights, ints, sources, WEIGHTED)
        shares, halves = _shares(x, t, y, u, z[None, :], r[None, :], cool, OF)
        if OF != _THRESHOLDS:
            moved += tl.dot((shares * w[None, :]).to(kind), rows, input_precision="ieee")
        if OF != _PLACES:
            spread += tl.dot((halves * w[None, :]).to(kind), rows, input_precision="ieee")
    place = tl.load(ints + i, mask=inside, other=0) if OF == _KEYS else i
    to = out + place.to(tl.int64)[:, None] * features + f[None, :]
    wanted = inside[:, None] & some[None, :]
    if OF == _PLACES:
        tl.store(to, moved, mask=wanted)
    else:
        rows, w = _rows(i, f, n, features, payload, grad, weights, ints, not sources, WEIGHTED)
        if OF == _KEYS:
            tl.store(to, moved * w.to(kind)[:, None], mask=wanted)
        tl.store(parts + tl.program_id(1) * size + at + i, tl.sum(rows * spread, 1), mask=inside)
