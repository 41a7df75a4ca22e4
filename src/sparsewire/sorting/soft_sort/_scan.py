"""Sums of Laplace distributions over sorted keys by cumulative sums, O(n) after the sort.

With sorted keys x and temperature T let a_j = e^{−(x_j − x_{j−1})/T} ≤ 1, and

    L_j = Σ_{i ≤ j} w_i e^{−(x_j − x_i)/T} = w_j + a_j L_{j−1},     R_j = w_j + a_{j+1} R_{j+1}.

Then S(x_j) = Σ_{i ≤ j} w_i − L_j / 2 + (R_j − w_j) / 2, and for a threshold b between x_j and
x_{j+1}, with y = e^{−(b − x_j)/T}, z = e^{−(x_{j+1} − b)/T}, y z = a_{j+1},

    S(b) = Σ_{i ≤ j} w_i − y L_j / 2 + z R_{j+1} / 2,

a quadratic equation in y. G(b) is the same with w p for w. Everything is in float64: a sum of n
weights leaves few digits of float32 for the fraction. The idea is LapSum's: Struski, Bednarczyk,
Podolak, Tabor: LapSum – One Method to Differentiate Them All: Ranking, Sorting and Top-k
Selection, ICML 2025.

Axes: `k` the Laplace distributions of the tails, `f` features (the weights first), `b` rows, `n`
keys, `l` levels. A level has a *slot*: the number of keys that are not above it.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsewire.engines import concrete
from sparsewire.sorting._rows import sort_rows
from sparsewire.sorting.soft_sort._call import TAILS, Call, Tails

_SIZE, _CUT = 16, 37.0  # of a block, and the largest gap in it: e^(15 · 37) is a number
TINY, STEEP = 1e-300, 1e-100
_STEPS = 40  # of Newton's method, at most


class Sums(NamedTuple):
    """Sorted rows, and what the recurrences make of them."""

    order: Tensor  # (b, n), from sorted to given
    keys: Tensor  # (b, n)
    features: Tensor  # (f, b, n), the weights and the weighted payload
    heats: Tensor  # (k, b, 1)
    decays: Tensor  # (k, b, n − 1), a
    rising: Tensor  # (k, f, b, n), L
    falling: Tensor  # (k, f, b, n), R
    total: Tensor  # (f, b, n), cumulative features


class Around(NamedTuple):
    """Sums at the two keys around each level."""

    slots: Tensor  # (b, l)
    left: Tensor  # (b, l), the key below
    right: Tensor  # (b, l), the key above
    decay: Tensor  # (k, b, l), between both
    below: Tensor  # (k, f, b, l), L at the left key
    above: Tensor  # (k, f, b, l), R at the right key
    total: Tensor  # (f, b, l), cumulative features at the left key


def rise(far: Tensor, terms: Tensor) -> Tensor:
    """Return L of terms (…, f, b, n) at sorted keys, (…, b, n) in temperatures.

    In a block L_j = e^{−t_j} Σ_i w_i e^{t_i}, with t the distance to its first key, in which gaps
    are cut where nothing passes them; the last values of blocks are the same sum over blocks.
    """
    n = far.shape[-1]
    m = -(-n // _SIZE)
    padding = far[..., -1:].expand(*far.shape[:-1], m * _SIZE - n)
    far = torch.cat([far, padding], -1).unflatten(-1, (m, _SIZE))
    terms = F.pad(terms, (0, m * _SIZE - n)).unflatten(-1, (m, _SIZE))
    steps = far.diff(dim=-1).clamp(max=_CUT).cumsum(-1)
    up = torch.exp(F.pad(steps, (1, 0))).unsqueeze(-4)
    sums = (terms * up).cumsum(-1) / up
    if m > 1:
        between = torch.exp(far[..., :-1, -1:] - far[..., 1:, :1]).unsqueeze(-4)
        before = rise(far[..., -1], sums[..., -1])[..., :-1].unsqueeze(-1)
        sums = sums + F.pad(between / up[..., 1:, :] * before, (0, 0, 1, 0))
    return sums.flatten(-2)[..., :n]


def two_sided(far: Tensor, terms: Tensor) -> tuple[Tensor, Tensor]:
    """Return L and R of terms (f, b, n), (k, f, b, n) each, for keys (k, b, n)."""
    both = torch.stack([far, -far.flip(-1)]), torch.stack([terms, terms.flip(-1)]).unsqueeze(1)
    low, high = rise(*both).unbind(0)
    return low, high.flip(-1)


def coefficients(tails: Tails, like: Tensor) -> Tensor:
    """Return the coefficients of the Laplace distributions, (k, 1, 1)."""
    return torch.stack([like.new_full((1, 1), c) for c, _ in TAILS[tails]])


def sums(call: Call) -> Sums:
    """Sort the keys of a call, and sum over them."""
    _, order = sort_rows(call.keys.detach())
    keys, heat = call.keys.gather(-1, order).double(), call.temperature.double()
    heats = torch.stack([heat * factor for _, factor in TAILS[call.tails]])
    far = keys / heats
    decays = torch.exp(far[..., :-1] - far[..., 1:])
    if call.weights is None:
        weights = torch.ones_like(keys)
    else:
        weights = call.weights.gather(-1, order).double()
    features = weights.unsqueeze(0)
    if call.payload is not None:
        payload = call.payload.movedim(-1, 0)
        payload = payload.gather(-1, order.expand_as(payload)).double()
        features = torch.cat([features, weights * payload])
    rising, falling = two_sided(far, features)
    return Sums(order, keys, features, heats, decays, rising, falling, features.cumsum(-1))


def ranks(s: Sums, tails: Tails) -> Tensor:
    """Return S(x) − w / 2 at the sorted keys, (b, n)."""
    apart = (coefficients(tails, s.keys) * (s.falling[:, 0] - s.rising[:, 0])).sum(0)
    return s.total[0] + (apart - s.features[0] * 2) / 2


def around(s: Sums, call: Call) -> tuple[Tensor, Around]:
    """Return the levels, (b, l), not above the sum of weights, and the sums around them."""
    b, n = s.keys.shape
    at_keys = (ranks(s, call.tails) + s.features[0] / 2).detach()
    if call.levels is None:
        levels = torch.arange(n + 1, dtype=torch.float64, device=s.keys.device).expand(b, -1)
    else:
        levels = call.levels.expand(b, -1)
    levels = torch.minimum(levels, s.total[0, :, -1:])
    slots = torch.searchsorted(at_keys.contiguous(), levels.detach().contiguous(), right=True)

    def at(padded: Tensor, index: Tensor = slots) -> Tensor:
        return padded.gather(-1, index.expand(*padded.shape[:-1], -1))

    keys = torch.cat([s.keys[:, :1], s.keys, s.keys[:, -1:]], -1)
    near = Around(
        slots,
        at(keys),
        at(keys, slots + 1),
        at(F.pad(s.decays, (1, 1), value=1.0)),
        at(F.pad(s.rising, (1, 0))),
        at(F.pad(s.falling, (0, 1))),
        at(F.pad(s.total, (1, 0))),
    )
    return levels, near


def solve(levels: Tensor, near: Around) -> tuple[Tensor, Tensor]:
    """Return y and z, (1, b, l), of one Laplace distribution, in closed form.

    low · y² + 2 excess · y = high · decay and z = decay / y, without cancellation.
    """
    low, high, excess = near.below[:, 0], near.above[:, 0], levels - near.total[0]
    root = (excess.square() + low * high * near.decay).sqrt() + excess.abs()
    up = _is_up(levels, near)
    first = (root / torch.where(up, high, low).clamp(min=TINY)).clamp(max=1)
    second = (near.decay / first.clamp(min=TINY)).clamp(max=1)
    return torch.where(up, second, first), torch.where(up, first, second)


def _is_up(levels: Tensor, near: Around) -> Tensor:
    """Whether a threshold is computed from the key above it."""
    return (levels > near.total[0]) | (near.below[0, 0] == 0)


def distances(at: Tensor, near: Around, heats: Tensor) -> tuple[Tensor, Tensor]:
    """Return y and z, (k, b, l), of thresholds."""
    y = torch.exp((near.left - at).clamp(max=0) / heats)
    return y, torch.exp((at - near.right).clamp(max=0) / heats)


def evaluate(y: Tensor, z: Tensor, near: Around, c: Tensor) -> Tensor:
    """Return S and G, (f, b, l), at thresholds."""
    c = c.unsqueeze(1)
    apart = c * (near.above * z.unsqueeze(1) - near.below * y.unsqueeze(1))
    return near.total + apart.sum(0) / 2


def densities(y: Tensor, z: Tensor, near: Around, slopes: Tensor) -> Tensor:
    """Return the derivatives of S and G, (f, b, l), at thresholds, for c / (2 heats)."""
    each = near.above * z.unsqueeze(1) + near.below * y.unsqueeze(1)
    return (slopes.unsqueeze(1) * each).sum(0)


def thresholds(levels: Tensor, near: Around, s: Sums, tails: Tails) -> Tensor:
    """Solve S(b) = u; without derivatives."""
    if tails == "light":
        y, z = (t[0].clamp(min=TINY).log() * s.heats[0] for t in solve(levels, near))
        return torch.where(_is_up(levels, near), near.right + z, near.left - y)
    c, n = coefficients(tails, s.keys), s.keys.shape[-1]
    # Beyond the ends S falls at least as fast as the widest part, at most as the narrowest.
    whole = (c * (near.below[:, 0] + near.above[:, 0])).sum(0).clamp(min=TINY) / 2
    left = (levels - near.total[0]).abs() / whole
    far = left.clamp(TINY, 1).log() * s.heats[[0, -1]]
    first, last = near.slots == 0, near.slots == n
    low = torch.where(first, near.right + far[1], torch.where(last, near.left - far[0], near.left))
    high = torch.where(
        last, near.left - far[1], torch.where(first, near.right + far[0], near.right)
    )
    at, early = (low + high) / 2, concrete(s.keys) and s.keys.device.type == "cpu"
    for _ in range(_STEPS):
        y, z = distances(at, near, s.heats)
        excess = evaluate(y, z, near, c)[0] - levels
        low, high = torch.where(excess < 0, at, low), torch.where(excess < 0, high, at)
        step = at - excess / densities(y, z, near, c / (2 * s.heats))[0].clamp(min=TINY)
        after = torch.where((step >= low) & (step <= high), step, (low + high) / 2)
        at, done = after, (after - at).abs() <= 1e-14 * (s.heats[0] + at.abs())
        if early and bool((done | ((first | last) & (left == 0))).all()):
            break
    return at


def by_scan(call: Call) -> Tensor:
    """Compute a call in differentiable operations, which can be traced and transformed."""
    s = sums(call)
    if call.operation == "rank":
        found = ranks(s, call.tails)
        return torch.zeros_like(found).scatter(-1, s.order, found).to(call.keys.dtype)
    levels, near = around(s, call)
    with torch.no_grad():
        at = thresholds(levels, near, s, call.tails)
    c = coefficients(call.tails, s.keys)
    for _ in range(2):  # steps of Newton's method, for the first and the second derivatives
        y, z = distances(at, near, s.heats)
        density = densities(y, z, near, c / (2 * s.heats))[0]
        steep = density > STEEP
        excess = evaluate(y, z, near, c)[0] - levels
        at = at - torch.where(steep, excess, 0) / torch.where(steep, density, 1)
    if call.operation == "threshold":
        return at
    assert call.payload is not None
    y, z = distances(at, near, s.heats)
    inner = (levels > 0) & (levels < s.total[0, :, -1:])
    y, z = (torch.where(inner, t, 0) for t in (y, z))
    mixed = evaluate(y, z, near, c)[1:].diff(dim=-1)
    return mixed.movedim(0, -1).to(call.payload.dtype)
