"""A payload in the soft order of its keys, on a CPU in NumPy, as `_soft_numbers` does it.

The features of an element are stored like rows of their own, which are mixed alike.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparsewire.sorting._rows import concrete_on_cpu
from sparsewire.sorting.soft_sort._mixing_numpy import Weights, mix, to_gaps, to_shares
from sparsewire.sorting.soft_sort._order_numpy import (
    AT_ONCE,
    Order,
    add_slopes,
    by_place,
    by_residue,
    filled,
    order_of,
    scattered,
    torch_engine,
)
from sparsewire.sorting.soft_sort._soft_order import SoftOrder

MOST = 64  # features; the windows of larger payloads are multiplied faster as matrices


class SoftPayload(torch.autograd.Function):
    """A payload in the soft order of its keys."""

    @staticmethod
    def forward(
        ctx: Any, keys: Tensor, payload: Tensor, temperature: float | None, descending: bool
    ) -> Tensor:
        ctx.save_for_backward(keys, payload)
        ctx.options, ctx.kept = (temperature, descending), []
        n, features = payload.shape[-2:]
        rows, values = keys.numpy().reshape(-1, n), payload.numpy().reshape(-1, n, features)
        at_once = max(1, AT_ONCE // (n * features))
        found = np.empty(values.shape, values.dtype)
        for start in range(0, len(rows), at_once):
            part = slice(start, start + at_once)
            some = -rows[part] if descending else rows[part]
            found[part], kept = _forward(some, values[part], temperature)
            ctx.kept.append(kept)
        return torch.from_numpy(found.reshape(payload.shape))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (keys, payload) = grads, ctx.saved_tensors
        if torch.is_grad_enabled() or not concrete_on_cpu(grad):
            return (*_again(keys, payload, grad, *ctx.options), None, None)
        n, features = payload.shape[-2:]
        wishes = grad.numpy().reshape(-1, n, features)
        to_keys = np.empty((len(wishes), n), wishes.dtype)
        to_payload = np.empty(wishes.shape, wishes.dtype)
        start = 0
        for kept in ctx.kept:
            part = slice(start, start + len(kept.order.heat))
            to_keys[part], to_payload[part] = _backward(wishes[part], kept)
            start = part.stop
        if ctx.options[1]:
            np.negative(to_keys, out=to_keys)
        found = torch.from_numpy(to_keys.reshape(keys.shape))
        return (found, torch.from_numpy(to_payload.reshape(payload.shape)), None, None)


def _again(
    keys: Tensor, payload: Tensor, grad: Tensor, temperature: float | None, descending: bool
) -> tuple[Tensor | None, ...]:
    """The gradients by an engine that can be differentiated."""
    with torch.enable_grad():
        inputs = [t.view_as(t) for t in (keys, payload)]
        order = SoftOrder(inputs[0], descending, temperature, "student", 2, torch_engine(keys))
        soft = order.mixed(order.ordered(inputs[1]))
        wanted = [t for t in inputs if t.requires_grad]
        found = iter(torch.autograd.grad(soft, wanted, grad, create_graph=True))
    return tuple(next(found) if t.requires_grad else None for t in inputs)


class _Kept(NamedTuple):
    """What a gradient needs of a pass over some rows; see `_soft_numbers`."""

    order: Order
    weights: Weights  # those of the order, for each feature
    taken: np.ndarray  # each place's element, among those of all rows: (4, K, rows)
    windows: np.ndarray  # (4, cuts, rows · f)
    apart: np.ndarray  # (2, K, rows · f)


def _forward(
    keys: np.ndarray, payload: np.ndarray, temperature: float | None
) -> tuple[np.ndarray, _Kept]:
    order, _ = order_of(keys, temperature)
    n, features = payload.shape[1:]
    weights, index = _for_each(order.weights, features), order.where
    full = 4 * index.shape[1]
    if full > n:
        row, column = np.divmod(index, full)
        index = row * n + np.minimum(column, n - 1)
    values = payload.reshape(-1, features).take(index, axis=0)
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
    to_payload = np.empty((grad.shape[0] * grad.shape[1], features), grad.dtype)
    if wish[..., 0].size > len(to_payload):
        there = ~_is_filled(order)
        to_payload[kept.taken[there]] = wish[there]
    else:
        to_payload[kept.taken] = wish
    return scattered(to_keys, order), to_payload.reshape(grad.shape)


def _for_each(weights: Weights, features: int) -> Weights:
    """Weights for each feature; what only the keys' gradient needs stays as it is."""
    shares, swaps = (np.repeat(x, features, axis=-1) for x in (weights.shares, weights.swaps))
    return weights._replace(shares=shares, swaps=swaps)


def _over_features(x: np.ndarray, features: int) -> np.ndarray:
    # A product is much faster than the sum of few at a time.
    return x.reshape(*x.shape[:-1], -1, features) @ np.ones(features, x.dtype)


def _is_filled(order: Order) -> np.ndarray:
    """Which places are only there to fill up: (4, K)."""
    places = np.arange(4 * order.where.shape[1])
    return (places >= order.n).reshape(-1, 4).T
