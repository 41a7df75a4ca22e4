"""Things of several numbers in the soft order of their keys, on a CPU, as `_soft_numbers` has it.

A thing's numbers stand beside each other, as if in rows of their own, and are mixed alike.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparsewire.sorting._rows import eager_on_cpu
from sparsewire.sorting.halves import Distribution
from sparsewire.sorting.soft_sort._mixing_numpy import Weights, mix, to_gaps, to_shares
from sparsewire.sorting.soft_sort._order_numpy import (
    AT_ONCE,
    Order,
    add_slopes,
    are_for_numpy,
    by_place,
    by_residue,
    filled,
    is_default,
    is_plain,
    order_of,
    scattered,
)
from sparsewire.sorting.soft_sort._soft_order import SoftOrder

_MOST = 64  # numbers of a thing; the windows of larger ones are sooner multiplied as matrices


def soft_things(
    keys: Tensor,
    things: Tensor,
    descending: bool,
    temperature: float | Tensor | None,
    distribution: Distribution,
    reach: int,
) -> Tensor | None:
    """Return things (*b, n, f) in the soft order of their keys (*b, n); None if not from here."""
    if not is_default(reach) or distribution != "student" or not is_plain(temperature):
        return None
    if not eager_on_cpu(things) or not 0 < things.shape[-1] <= _MOST:
        return None
    if torch.float64 in (keys.dtype, things.dtype):
        return None
    wide, things = keys.float(), things.float()
    if not are_for_numpy(wide, things.numel()):
        return None
    return _SoftThings.apply(wide, things, temperature, descending)  # pyright: ignore


def soft_matrix(
    keys: Tensor,
    descending: bool,
    temperature: float | Tensor | None,
    distribution: Distribution,
    reach: int,
) -> Tensor | None:
    """Return the matrix that sorts the keys (*b, n) softly, (*b, n, n); None if not from here."""
    n = keys.shape[-1]
    if n > _MOST or keys.device.type != "cpu":
        return None
    each = torch.eye(n, dtype=keys.dtype).expand(*keys.shape, n)
    return soft_things(keys, each, descending, temperature, distribution, reach)


class _SoftThings(torch.autograd.Function):
    """Things in the soft order of their keys."""

    @staticmethod
    def forward(
        ctx: Any, keys: Tensor, things: Tensor, temperature: float | None, descending: bool
    ) -> Tensor:
        ctx.save_for_backward(keys, things)
        ctx.options, ctx.kept = (temperature, descending), []
        n, features = things.shape[-2:]
        rows, values = keys.numpy().reshape(-1, n), things.numpy().reshape(-1, n, features)
        at_once = max(1, AT_ONCE // (n * features))
        found = np.empty(values.shape, values.dtype)
        for start in range(0, len(rows), at_once):
            part = slice(start, start + at_once)
            some = -rows[part] if descending else rows[part]
            found[part], kept = _forward(some, values[part], temperature)
            ctx.kept.append(kept)
        return torch.from_numpy(found.reshape(things.shape))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (keys, things) = grads, ctx.saved_tensors
        if torch.is_grad_enabled() or not eager_on_cpu(grad):
            return (*_again(keys, things, grad, *ctx.options), None, None)
        n, features = things.shape[-2:]
        wishes = grad.numpy().reshape(-1, n, features)
        to_keys = np.empty((len(wishes), n), wishes.dtype)
        to_things = np.empty(wishes.shape, wishes.dtype)
        start = 0
        for kept in ctx.kept:
            part = slice(start, start + len(kept.order.heat))
            to_keys[part], to_things[part] = _backward(wishes[part], kept)
            start = part.stop
        if ctx.options[1]:
            np.negative(to_keys, out=to_keys)
        found = torch.from_numpy(to_keys.reshape(keys.shape))
        return (found, torch.from_numpy(to_things.reshape(things.shape)), None, None)


def _again(
    keys: Tensor, things: Tensor, grad: Tensor, temperature: float | None, descending: bool
) -> tuple[Tensor | None, ...]:
    """The gradients by the reference, which can be differentiated."""
    with torch.enable_grad():
        inputs = [t.view_as(t) for t in (keys, things)]
        order = SoftOrder(inputs[0], descending, temperature, "student", reach=2)
        soft = order.mixed(order.things(inputs[1]))
        wanted = [t for t in inputs if t.requires_grad]
        found = iter(torch.autograd.grad(soft, wanted, grad, create_graph=True))
    return tuple(next(found) if t.requires_grad else None for t in inputs)


class _Kept(NamedTuple):
    """What a gradient needs of a pass over some rows; see `_soft_numbers`."""

    order: Order
    weights: Weights  # those of the order, for each number of a thing
    taken: np.ndarray  # each place's thing, among those of all rows: (4, K, rows)
    windows: np.ndarray  # (4, cuts, rows · f)
    apart: np.ndarray  # (2, K, rows · f)


def _forward(
    keys: np.ndarray, things: np.ndarray, temperature: float | None
) -> tuple[np.ndarray, _Kept]:
    order, _ = order_of(keys, temperature)
    n, features = things.shape[1:]
    weights, index = _for_each(order.weights, features), order.where
    full = 4 * index.shape[1]
    if full > n:
        row, column = np.divmod(index, full)
        index = row * n + np.minimum(column, n - 1)
    values = things.reshape(-1, features).take(index, axis=0)
    if full > n:
        values[_is_filled(order)] = 0
    windows, apart = mix(values.reshape(*values.shape[:2], -1), weights, back=False)
    return by_place(values)[:, :n], _Kept(order, weights, index, windows, apart)


def _backward(grad: np.ndarray, kept: _Kept) -> tuple[np.ndarray, np.ndarray]:
    order, features = kept.order, grad.shape[-1]
    wish = by_residue(filled(grad, 0))
    wishes, difference = mix(wish.reshape(*wish.shape[:2], -1), kept.weights, back=True)
    slopes = _over_features(to_shares(wishes, kept.windows), features)
    difference *= kept.apart
    to_swaps = -_over_features(difference, features)
    to_keys = np.zeros(order.where.shape, grad.dtype)
    add_slopes(to_keys, to_gaps(slopes, to_swaps, order.weights), order)
    to_things = np.empty((grad.shape[0] * grad.shape[1], features), grad.dtype)
    if wish[..., 0].size > len(to_things):
        there = ~_is_filled(order)
        to_things[kept.taken[there]] = wish[there]
    else:
        to_things[kept.taken] = wish
    return scattered(to_keys, order), to_things.reshape(grad.shape)


def _for_each(weights: Weights, features: int) -> Weights:
    """Weights for each number of things; what only the keys' gradient needs stays as it is."""
    shares, swaps = (np.repeat(x, features, axis=-1) for x in (weights.shares, weights.swaps))
    return weights._replace(shares=shares, swaps=swaps)


def _over_features(x: np.ndarray, features: int) -> np.ndarray:
    # A product is much faster than the sum of few at a time.
    return x.reshape(*x.shape[:-1], -1, features) @ np.ones(features, x.dtype)


def _is_filled(order: Order) -> np.ndarray:
    """Which places are only there to fill up: (4, K)."""
    places = np.arange(4 * order.where.shape[1])
    return (places >= order.n).reshape(-1, 4).T
