"""The scan of `_scan` in NumPy for light tails, with its gradient in closed form: two more scans.

The gradient of a key is a sum over levels, Σ_k v_k e^{−|b_k − x_i| / T}: with y and z as in
`_scan`, these are L and R of the terms v_k z_k at the key above b_k, and v_k y_k at the key below.
A threshold moves with a key by ∂b_k/∂x_i = w_i f(b_k − x_i) / S'(b_k), where f is the density.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparsewire.engines import concrete
from sparsewire.kernels import again, last_pass
from sparsewire.sorting._rows import ordered_bits, sorted_places
from sparsewire.sorting.soft_sort._call import Call
from sparsewire.sorting.soft_sort._scan import STEEP, TINY, by_scan

Array = np.ndarray
_AT_ONCE = 2**17  # numbers of one array
_SIZE, _CUT = 16, 37.0  # of a block, and the largest gap in it: e^(15 · 37) is a number
_LONGEST = 512  # elements that may be one block, where they are near
_FARTHEST = 1e-260


def by_numpy(call: Call) -> Tensor:
    """Compute a call, some rows at a time."""
    return _Scan.apply(call.keys, call.payload, call.temperature, call)  # pyright: ignore[reportReturnType]


def takes(call: Call) -> bool:
    """Whether all is on the CPU, weights and levels constant, and nothing is transformed."""
    fixed = not any(t is not None and t.requires_grad for t in (call.weights, call.levels))
    if call.tails != "light" or not fixed or call.keys.device.type != "cpu":
        return False
    if torch.compiler.is_compiling():
        return True
    return not runs_forward() and all(concrete(t) for t in call if isinstance(t, Tensor))


def runs_forward() -> bool:
    """Whether derivatives run forward."""
    return torch.autograd.forward_ad._current_level >= 0


class _Blocks(NamedTuple):
    """Blocks of sorted keys, (…, m, s): what multiplies terms, their sums, and what is carried."""

    up: Array  # e^(distance to the first key of the block)
    down: Array  # 1 / up
    rise: Array  # (…, m − 1, s), decays from the last key of the block before
    fall: Array  # (…, m − 1, s), decays from the first key of the block after
    ends: list["_Blocks"]  # of these keys; in the second row mirrored, so that all sums rise


class Rows(NamedTuple):
    """Sorted rows, and what their gradient needs."""

    place: Array  # (c, n), where each sorted element was among c · n
    keys: Array  # (c, n)
    features: Array  # (f, c, n), the weights and the weighted payload
    heat: Array  # (c, 1)
    decays: Array  # (c, n), to the key above
    blocks: _Blocks
    ones: bool  # whether all weights are 1
    saved: tuple[Array, ...] = ()


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, keys: Tensor, payload: Tensor | None, heat: Tensor, call: Call) -> Tensor:
        width = 1 if payload is None else 1 + payload.shape[-1] // 4
        step = max(1, _AT_ONCE // (keys.shape[-1] * width))
        parts = [slice(start, start + step) for start in range(0, len(keys), step)]
        done = [forward(_slice(call, part)) for part in parts]
        ctx.save_for_backward(keys, payload, heat)
        ctx.step, ctx.call = step, call._replace(keys=keys[:0], payload=None, temperature=heat[:0])
        ctx.rows = [rows for _, rows in done] if any(ctx.needs_input_grad) else []
        return _joined([found for found, _ in done])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        keys, payload, heat = ctx.saved_tensors
        if not last_pass(grad):
            call = ctx.call._replace(keys=keys, payload=payload, temperature=heat)
            return *_again(call, grad), None
        given = [each.numpy() for each in grad.split(ctx.step)]
        grads = [backward(*pair) for pair in zip(ctx.rows, given, strict=True)]
        of_keys, of_heat, of_payload = (list(each) for each in zip(*grads, strict=True))
        return (
            _joined(of_keys).to(keys.dtype),
            None if payload is None else _joined(of_payload).to(payload.dtype),
            _joined(of_heat).to(heat.dtype),
            None,
        )


def _joined(parts: list[Array]) -> Tensor:
    return torch.from_numpy(parts[0] if len(parts) == 1 else np.concatenate(parts))


def _slice(call: Call, part: slice) -> Call:
    parts = (t[part].detach() if isinstance(t, Tensor) else t for t in call)
    return Call(*parts)  # pyright: ignore[reportArgumentType]


def _again(call: Call, grad: Tensor) -> list[Tensor | None]:
    """Differentiate the scan in PyTorch, so that the gradient can be differentiated."""

    def function(keys: Tensor, heat: Tensor, *payload: Tensor) -> tuple[Tensor]:
        given = payload[0] if payload else None
        return (by_scan(call._replace(keys=keys, payload=given, temperature=heat)),)

    inputs = [t for t in (call.keys, call.temperature, call.payload) if t is not None]
    keys, heat, *payload = again(function, inputs, [grad])
    return [keys, *(payload or [None]), heat]


def forward(call: Call) -> tuple[Array, Rows]:
    rows = _sorted(call)
    low, high = _sums(rows, rows.features, rows.features)
    weights = rows.features[0]
    at_keys = high[0] - low[0]
    at_keys -= weights
    at_keys *= 0.5
    at_keys += _cumulative(weights)  # S(x)
    if call.operation != "rank":
        return _at_levels(call, rows, low, high, at_keys)
    at_keys -= weights * 0.5
    found = _unsorted(rows, at_keys).astype(call.keys.numpy().dtype, copy=False)
    return found, rows._replace(saved=(_others(rows, low[0], high[0]),))


def _sorted(call: Call) -> Rows:
    c, n = call.keys.shape
    if call.keys.dtype == torch.float32:
        place = sorted_places(ordered_bits(call.keys.numpy()))
    else:
        place = call.keys.argsort(dim=-1).numpy()
    place += np.arange(0, c * n, n).reshape(-1, 1)
    x, heat = _taken(call.keys.numpy(), place), call.temperature.double().numpy()
    width = 0 if call.payload is None else call.payload.shape[-1]
    features = np.ones((1 + width, c, n))
    if call.payload is not None:
        for f in range(width):
            features[1 + f] = _taken(call.payload[..., f].numpy(), place)
    if call.weights is not None:
        features *= _taken(call.weights.numpy(), place)
    with np.errstate(over="ignore"):
        far = x / heat
    decays = np.empty_like(far)
    np.subtract(far[:, :-1], far[:, 1:], out=decays[:, :-1])
    decays[:, -1] = 0
    np.exp(decays, out=decays)
    return Rows(place, x, features, heat, decays, _blocks(far), call.weights is None)


def _taken(numbers: Array, place: Array) -> Array:
    return numbers.ravel().take(place).astype(np.float64, copy=False)


def _cumulative(terms: Array) -> Array:
    return torch.from_numpy(terms).cumsum(-1).numpy()


def _padded(t: Array, size: int) -> Array:
    """Divide the last dimension into blocks, the last of which repeats its last element."""
    *rest, n = t.shape
    m = -(-n // size)
    if n % size:
        t = np.concatenate([t, t[..., -1:].repeat(m * size - n, -1)], -1)
    return t.reshape(*rest, m, size)


def _blocks(far: Array, rising: bool = False) -> _Blocks:
    near = far.shape[-1] <= _LONGEST and (far[..., -1] - far[..., 0]).max() < _SIZE * _CUT
    far = _padded(far, far.shape[-1] if near else _SIZE)
    up = np.zeros_like(far)
    np.subtract(far[..., 1:], far[..., :-1], out=up[..., 1:])
    up = _cumulative(np.minimum(up, _CUT, out=up))
    np.exp(up, out=up)
    down = 1 / up
    if far.shape[-2] == 1:
        return _Blocks(up, down, up, up, [])
    between = np.exp(far[..., :-1, -1:] - far[..., 1:, :1])
    rise = between * down[..., 1:, :]
    if rising:
        return _Blocks(up, down, rise, rise, [_blocks(far[..., -1], True)])
    fall = up[..., :-1, :] * (between * down[..., :-1, -1:])
    ends = np.stack([far[..., -1], -far[..., ::-1, 0]])[:, None]
    return _Blocks(up, down, rise, fall, [_blocks(ends, True)])


def _rise(blocks: _Blocks, terms: Array) -> Array:
    """L of terms (2, f, c, n), block by block."""
    sums = _cumulative(_padded(terms, blocks.up.shape[-1]) * blocks.up)
    sums *= blocks.down
    for ends in blocks.ends:
        sums[..., 1:, :] += blocks.rise * _rise(ends, sums[..., -1])[..., :-1, None]
    return sums.reshape(*sums.shape[:3], -1)[..., : terms.shape[-1]]


def _sums(rows: Rows, rising: Array, falling: Array) -> tuple[Array, Array]:
    """L of some terms and R of others, (f, c, n)."""
    blocks, (f, c, n), size = rows.blocks, rising.shape, rows.blocks.up.shape[-1]
    low, high = _padded(rising, size) * blocks.up, _padded(falling, size) * blocks.down
    if n % size:
        high[..., -1, n % size :] = 0
    low = _cumulative(low)
    high = _cumulative(high[..., ::-1].copy())[..., ::-1]
    low *= blocks.down
    high *= blocks.up
    for ends in blocks.ends:
        given = np.stack([low[..., -1], high[..., ::-1, 0]])
        before, after = _rise(ends, given)
        low[..., 1:, :] += blocks.rise * before[..., :-1, None]
        high[..., :-1, :] += blocks.fall * after[..., -2::-1, None]
    return low.reshape(f, c, -1)[..., :n], high.reshape(f, c, -1)[..., :n]


def _others(rows: Rows, low: Array, high: Array) -> Array:
    """L + R without the element itself: the sums of its neighbours, decayed."""
    both = np.zeros_like(low)
    decays = rows.decays[:, :-1]
    np.multiply(decays, low[:, :-1], out=both[:, 1:])
    both[:, :-1] += decays * high[:, 1:]
    return both


def _unsorted(rows: Rows, found: Array) -> Array:
    given = np.empty(found.size, found.dtype)
    given[rows.place] = found
    return given.reshape(found.shape)


def _at_levels(
    call: Call, rows: Rows, low: Array, high: Array, at_keys: Array
) -> tuple[Array, Rows]:
    c, n = at_keys.shape
    total = _cumulative(rows.features)
    levels = np.arange(n + 1.0)[None] if call.levels is None else call.levels.numpy()
    levels = np.minimum(levels, total[0, :, -1:])
    slots = _slots(at_keys, levels, call.levels is None)
    # The keys on both sides; there is none before the first and none after the last.
    starts = np.arange(0, c * n, n).reshape(-1, 1)
    below, above = np.maximum(slots - 1, 0) + starts, np.minimum(slots, n - 1) + starts
    inner, outer = slots > 0, slots < n
    left = [each.ravel().take(below) for each in low]
    right = [each.ravel().take(above) for each in high]
    left[0] *= inner
    right[0] *= outer
    under = slots if rows.ones else total[0].ravel().take(below) * inner
    y, z, up = _solve(left[0], right[0], rows.decays.ravel().take(below), levels - under)
    y *= inner
    z *= outer
    density = left[0] * y
    density += right[0] * z
    pace = 1 / np.maximum(density, STEEP, out=density)
    saved = slots, inner, y, z, pace
    if call.operation == "threshold":
        x = rows.keys.ravel()
        far = [np.log(np.maximum(each, TINY)) * rows.heat for each in (y, z)]
        at = np.where(up, x.take(above) + far[1], x.take(below) - far[0])
        return at, rows._replace(saved=(*saved, at))
    mixed = np.empty((len(left) - 1, *slots.shape))
    means = np.empty_like(mixed)
    for f, (a, b) in enumerate(zip(left[1:], right[1:], strict=True)):
        a *= y
        b *= z
        np.multiply(a + b, pace, out=means[f])
        b -= a
        b *= 0.5
        np.add(b, total[f + 1].ravel().take(below) * inner, out=mixed[f])
    assert call.payload is not None
    found = np.diff(mixed, axis=-1).astype(call.payload.numpy().dtype, copy=False)
    return np.moveaxis(found, 0, -1), rows._replace(saved=(*saved, means))


def _slots(at_keys: Array, levels: Array, whole: bool) -> Array:
    """Count the keys that are not above each level: for all whole levels without a search."""
    (c, n), count = at_keys.shape, levels.shape[-1]
    if not whole:
        given = torch.from_numpy(at_keys), torch.from_numpy(levels)
        return torch.searchsorted(*given, right=True).numpy()
    first = np.minimum(np.ceil(at_keys), n).astype(np.int64)
    first += np.arange(0, c * count, count).reshape(-1, 1)
    counts = torch.from_numpy(first.ravel()).bincount(minlength=c * count).view(c, count)
    slots = counts.cumsum(-1).numpy()
    slots[levels >= levels[:, -1:]] = n
    return slots


def _solve(low: Array, high: Array, decay: Array, excess: Array) -> tuple[Array, Array, Array]:
    """As `_scan.solve`, with decays that z can be computed from."""
    decay = np.maximum(decay, _FARTHEST)
    up = excess > 0
    up |= low == 0
    high = high * decay
    root = low * high
    root += excess * excess
    np.sqrt(root, out=root)
    root += np.abs(excess)
    y = np.where(up, high, root)
    y /= np.maximum(np.where(up, root, low), TINY)
    np.maximum(y, _FARTHEST, out=y)
    return y, np.divide(decay, y, out=decay), up


def backward(rows: Rows, grad: Array) -> tuple[Array, Array, Array | None]:
    """Return the gradients of the keys, the temperature and the payload."""
    return (_of_ranks if len(rows.saved) == 1 else _of_levels)(rows, grad)


def _of_ranks(rows: Rows, grad: Array) -> tuple[Array, Array, None]:
    given = _taken(grad, rows.place)
    low, high = _sums(rows, given[None], given[None])
    others = _others(rows, low[0], high[0])
    others *= rows.features[0]
    of_keys = given * rows.saved[0]
    of_keys -= others
    of_keys *= 0.5 / rows.heat
    return *_of_keys(rows, of_keys, 0.0), None


def _of_keys(rows: Rows, grad: Array, scaled: Array | float) -> tuple[Array, Array]:
    """The gradients of keys and temperature, by Euler's identity for homogeneous functions.

    These are of degree 0, or of degree 1 and the gradient times the results is `scaled`.
    """
    moved = np.einsum("cn,cn->c", grad, rows.keys - _centre(rows)).reshape(-1, 1)
    return _unsorted(rows, grad), (scaled - moved) / rows.heat


def _centre(rows: Rows) -> Array:
    return rows.keys.mean(-1, keepdims=True)


def _of_levels(rows: Rows, grad: Array) -> tuple[Array, Array, Array | None]:
    slots, inner, y, z, pace, known = rows.saved
    scaled: Array | float = 0.0
    if known.ndim == 2:  # thresholds
        levels = (2 * rows.heat * pace * grad)[None]
        moved = np.where(pace < 1 / STEEP, grad * (known - _centre(rows)), 0)
        scaled = moved.sum(-1, keepdims=True)
    else:
        levels = np.zeros((1 + grad.shape[-1], *y.shape))
        given = np.moveaxis(grad, -1, 0)
        levels[1:, :, 1:] = given
        levels[1:, :, :-1] -= given
        np.einsum("fcl,fcl->cl", levels[1:], known, out=levels[0])
    n = rows.keys.shape[-1]
    low, high = _at_keys(slots, n, levels * z)[..., :-1], _at_keys(slots, n, levels * y)[..., 1:]
    low, high = _sums(rows, low, high)
    of_keys = low[0] + high[0]
    if not rows.ones:
        of_keys *= rows.features[0]
    for feature, a, b in zip(rows.features[1:], low[1:], high[1:], strict=True):
        of_keys -= (a + b) * feature
    cold = rows.heat < 1e-9 * np.abs(rows.keys[:, [0, -1]]).max(-1, keepdims=True)
    if cold.any():  # what rounding leaves must not be divided by a tiny temperature
        largest = np.abs(rows.features).max(-1) * np.abs(levels).max(-1)
        of_keys[cold & (np.abs(of_keys) < 1e-14 * largest.sum(0)[:, None])] = 0
    of_keys *= 0.5 / rows.heat
    of_payload = None
    if len(levels) > 1:
        whole = _at_keys(slots, n, levels[1:] * inner)[..., :0:-1]
        whole = _cumulative(whole.copy())[..., ::-1]
        found = low[1:] - high[1:]
        found *= 0.5
        found += whole
        if not rows.ones:
            found *= rows.features[0]
        of_payload = np.stack([_unsorted(rows, each) for each in found], -1)
    return *_of_keys(rows, of_keys, scaled), of_payload


def _at_keys(slots: Array, n: int, terms: Array) -> Array:
    """Add the terms of levels, (f, c, l), in their slots, (f, c, n + 1)."""
    total = torch.zeros(*terms.shape[:-1], n + 1, dtype=torch.float64)
    index = torch.from_numpy(slots).expand(terms.shape)
    return total.scatter_add_(-1, index, torch.from_numpy(terms)).numpy()
