"""Soft sorts and ranks of numbers on a CPU, in NumPy, as many rows at a time as fit in the cache.

`_mixing_numpy` describes the layout of the arrays. The reference is `_soft_order`.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparsewire.sorting._rows import concrete_on_cpu
from sparsewire.sorting.soft_sort._mixing_numpy import mix, to_gaps, to_shares
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
from sparsewire.sorting.soft_sort._short_rows import soft_again


class SoftNumbers(torch.autograd.Function):
    """Numbers in soft order, or their ranks."""

    @staticmethod
    def forward(
        ctx: Any, keys: Tensor, temperature: float | None, descending: bool, ranks: bool
    ) -> Tensor:
        ctx.save_for_backward(keys)
        ctx.options = temperature, descending, ranks
        rows = keys.numpy().reshape(-1, keys.shape[-1])
        at_once = max(1, AT_ONCE // rows.shape[-1])
        found = np.empty(rows.shape, rows.dtype)
        ctx.kept = []
        for start in range(0, len(rows), at_once):
            part = rows[start : start + at_once]
            soft, kept = _forward(-part if descending else part, temperature, ranks)
            found[start : start + at_once] = -soft if descending and not ranks else soft
            ctx.kept.append(kept)
        return torch.from_numpy(found.reshape(keys.shape))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (keys,) = grads, ctx.saved_tensors
        _, descending, ranks = ctx.options
        if torch.is_grad_enabled() or not concrete_on_cpu(grad):
            found = soft_again(torch_engine(keys), keys, grad, "student", *ctx.options)
            return (found, None, None, None)
        rows = grad.numpy().reshape(-1, keys.shape[-1])
        found = np.empty(rows.shape, rows.dtype)
        start = 0
        for kept in ctx.kept:
            part = slice(start, start + len(kept.order.heat))
            to_keys = _backward(rows[part], kept, ranks)
            # The signs of sorted numbers and their keys cancel.
            found[part] = -to_keys if descending and ranks else to_keys
            start = part.stop
        return (torch.from_numpy(found.reshape(keys.shape)), None, None, None)


class _Kept(NamedTuple):
    """What a gradient needs of a pass over some rows; K fours each, 2 K - 1 cuts, 2 K pairs."""

    order: Order
    windows: np.ndarray  # what stood around each cut: (4, cuts, rows)
    apart: np.ndarray  # how far apart pairs were: (2, K, rows)


def _forward(keys: np.ndarray, temperature: float | None, ranks: bool) -> tuple[np.ndarray, _Kept]:
    order, values = order_of(keys, temperature)
    if ranks:
        values[:] = by_residue(np.arange(4 * values.shape[1])[None])
    windows, apart = mix(values, order.weights, back=ranks)
    found = scattered(values, order) if ranks else by_place(values)[:, : order.n]
    return found, _Kept(order, windows, apart)


def _backward(grad: np.ndarray, kept: _Kept, ranks: bool) -> np.ndarray:
    order, full = kept.order, filled(grad, 0)
    wish = full.reshape(-1).take(order.where) if ranks else by_residue(full)
    # To the gradient it is the transpose that mixes; then places and elements change roles.
    wishes, difference = mix(wish, order.weights, back=not ranks)
    slopes = to_shares(kept.windows, wishes) if ranks else to_shares(wishes, kept.windows)
    # Ranks begin with the numbers of places, for which there is no gradient.
    found = np.zeros_like(wish) if ranks else wish
    add_slopes(found, to_gaps(slopes, -difference * kept.apart, order.weights), order)
    return scattered(found, order)
