"""Soft sorts and ranks of numbers, from the keys to the result, where many calls would cost most.

Short rows on a GPU have one kernel each way, see `_short_rows`. On a CPU everything is NumPy's, and
some rows at a time, so that they stay in the cache; `_mixing_numpy` says how arrays lie. For both
the reference is `_soft_order`.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparsewire.ops._engines import chosen
from sparsewire.ops._mixing_numpy import Weights, mix, to_gaps, to_shares, weigh
from sparsewire.ops._short_rows import ShortSort, are_short, soft_again
from sparsewire.ops._soft_order import full_size
from sparsewire.ops._sorting import eager_on_cpu, few_threads, ordered_bits, sorted_places
from sparsewire.ops.halves import Squash

_TINY, _LARGEST = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max
_LEAST = 3  # of a row for NumPy: a pair would be filled up to four
_AT_ONCE = 2**15  # numbers; as many are too few to be shared by threads


def soft_numbers(
    keys: Tensor,
    descending: bool,
    temperature: float | Tensor | None,
    squash: Squash,
    reach: int,
    *,
    ranks: bool,
) -> Tensor | None:
    """Return the keys in soft order, or their soft ranks; None if no engine here is for them."""
    if reach != 2 or squash == "cauchy" or keys.dtype == torch.float64 or not keys.dim():
        return None
    if temperature is not None:
        if not isinstance(temperature, float | int) or not 0 < temperature < np.inf:
            return None
        temperature = max(temperature, _TINY)
    wide = keys.float()
    if are_short(wide, temperature):
        return ShortSort.apply(wide, squash, temperature, descending, ranks)  # pyright: ignore
    if squash == "student" and _are_for_numpy(wide):
        return _SoftNumbers.apply(wide, temperature, descending, ranks)  # pyright: ignore
    return None


def _are_for_numpy(keys: Tensor) -> bool:
    if chosen() not in ("auto", "chunked", "compiled") or not eager_on_cpu(keys):
        return False
    if keys.shape[-1] < _LEAST or not keys.numel():
        return False
    if keys.numel() > _AT_ONCE and not few_threads(keys):
        return False
    looked = keys.detach().numpy()
    return float(looked.max()) - float(looked.min()) <= _LARGEST  # and all are numbers


class _SoftNumbers(torch.autograd.Function):
    """Numbers in soft order, or their ranks."""

    @staticmethod
    def forward(
        ctx: Any, keys: Tensor, temperature: float | None, descending: bool, ranks: bool
    ) -> Tensor:
        ctx.save_for_backward(keys)
        ctx.options = temperature, descending, ranks
        rows = keys.numpy().reshape(-1, keys.shape[-1])
        at_once = max(1, _AT_ONCE // rows.shape[-1])
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
        if torch.is_grad_enabled() or not eager_on_cpu(grad):
            found = soft_again(keys, grad, "student", *ctx.options)
            return (found, None, None, None)
        rows = grad.numpy().reshape(-1, keys.shape[-1])
        found = np.empty(rows.shape, rows.dtype)
        start = 0
        for kept in ctx.kept:
            part = slice(start, start + len(kept.heat))
            to_keys = _backward(rows[part], kept, ranks)
            # The signs of sorted numbers and their keys cancel.
            found[part] = -to_keys if descending and ranks else to_keys
            start = part.stop
        return (torch.from_numpy(found.reshape(keys.shape)), None, None, None)


class _Kept(NamedTuple):
    """What a gradient needs of a pass over some rows; K fours each, 2 K - 1 cuts, 2 K pairs."""

    where: np.ndarray  # each place's element, among those of all rows: (4, K, rows)
    heat: np.ndarray  # temperatures: (rows,)
    weights: Weights
    windows: np.ndarray  # what stood around each cut: (4, cuts, rows)
    apart: np.ndarray  # how far apart pairs were: (2, K, rows)


# A distance over a small temperature may be infinite: then it is far.
@np.errstate(over="ignore")
def _forward(keys: np.ndarray, temperature: float | None, ranks: bool) -> tuple[np.ndarray, _Kept]:
    n = keys.shape[-1]
    # What is filled up is as large as the last, and comes behind it.
    filled = _filled(keys, keys.max(-1, keepdims=True))
    places = sorted_places(ordered_bits(filled))
    places += np.arange(0, filled.size, filled.shape[-1])[:, None]
    where = _by_residue(places)
    values = filled.reshape(-1).take(where)
    heat = _temperature(keys, _at(values, (n - 1) // 2), temperature)
    weights = weigh(_gaps(values, heat, n))
    if ranks:
        values[:] = _by_residue(np.arange(filled.shape[-1])[None])
    windows, apart = mix(values, weights, back=ranks)
    found = _scattered(values, where) if ranks else _by_place(values)
    return found[:, :n], _Kept(where, heat, weights, windows, apart)


@np.errstate(over="ignore")
def _backward(grad: np.ndarray, kept: _Kept, ranks: bool) -> np.ndarray:
    n = grad.shape[-1]
    filled = _filled(grad, 0)
    wish = filled.reshape(-1).take(kept.where) if ranks else _by_residue(filled)
    # To the gradient it is the transpose that mixes; then places and elements change roles.
    wishes, difference = mix(wish, kept.weights, back=not ranks)
    slopes = to_shares(kept.windows, wishes) if ranks else to_shares(wishes, kept.windows)
    gaps = to_gaps(slopes, -difference * kept.apart, kept.weights)
    _at(gaps, n - 1)[:] = 0
    gaps /= kept.heat
    # Ranks begin with the numbers of places, for which there is no gradient.
    found = np.zeros_like(wish) if ranks else wish
    found[1:] += gaps[:3]
    found[:3] -= gaps[:3]
    found[0, 1:] += gaps[3, :-1]
    found[3, :-1] -= gaps[3, :-1]
    return _scattered(found, kept.where)[:, :n]


def _temperature(keys: np.ndarray, medians: np.ndarray, temperature: float | None) -> np.ndarray:
    """The temperature of each row; None as in `sparsewire.ops.quicksort`."""
    if temperature is not None:
        return np.full(len(keys), temperature, keys.dtype)
    n = keys.shape[-1]
    away = keys - medians[:, None]
    np.abs(away, out=away)
    away /= n
    heat = away.sum(-1)
    heat *= 4 / n
    return np.where(heat > 0, np.maximum(heat, heat.dtype.type(_TINY)), heat.dtype.type(1))


def _gaps(inorder: np.ndarray, heat: np.ndarray, n: int) -> np.ndarray:
    """Distances of neighbours over the temperature; behind the last of n there is none."""
    gaps = np.empty_like(inorder)
    np.subtract(inorder[1:], inorder[:3], out=gaps[:3])
    np.subtract(inorder[0, 1:], inorder[3, :-1], out=gaps[3, :-1])
    gaps[3, -1] = 0
    gaps /= heat
    _at(gaps, n - 1)[:] = np.inf
    return gaps


def _at(places: np.ndarray, place: int) -> np.ndarray:
    return places[place % 4, place // 4]


def _filled(rows: np.ndarray, end: np.ndarray | int) -> np.ndarray:
    """Fill rows up to a power of two."""
    n = rows.shape[-1]
    full = full_size(n)
    if full == n:
        return np.ascontiguousarray(rows)
    filled = np.empty((len(rows), full), rows.dtype)
    filled[:, :n], filled[:, n:] = rows, end
    return filled


def _by_residue(rows: np.ndarray) -> np.ndarray:
    """From (rows, places) to (4, places / 4, rows)."""
    return np.ascontiguousarray(rows.reshape(len(rows), -1, 4).transpose(2, 1, 0))


def _by_place(places: np.ndarray) -> np.ndarray:
    """The other way."""
    return places.transpose(2, 1, 0).reshape(places.shape[2], -1)


def _scattered(places: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Bring what stands in order to where the elements were: (rows, elements)."""
    found = np.empty(places.size, places.dtype)
    found[where] = places
    return found.reshape(places.shape[2], -1)
