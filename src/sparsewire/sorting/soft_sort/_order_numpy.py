"""Sorted rows in NumPy: where everything was, how likely neighbours change places, and back.

`sparsewire.sorting.soft_sort._mixing_numpy` says how arrays lie.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparsewire.engines import Name
from sparsewire.sorting._rows import concrete_on_cpu, ordered_bits, sorted_places
from sparsewire.sorting.soft_sort._mixing_numpy import Weights, weigh
from sparsewire.sorting.soft_sort._soft_order import full_size

AT_ONCE = 2**15  # numbers that stay in the cache, too few to share among threads
LEAST = 3  # elements of a row: a pair would be filled up to four
_TINY, _LARGEST = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max


class Order(NamedTuple):
    """The order of some rows; a row has n elements, filled up to K fours."""

    n: int
    where: np.ndarray  # each place's element, among those of all filled rows: (4, K, rows)
    heat: np.ndarray  # temperatures: (rows,)
    weights: Weights


def within_range(keys: Tensor) -> bool:
    """Whether keys in float32 are finite, and so are all of their distances."""
    numbers = keys.detach().numpy()
    return float(numbers.max()) - float(numbers.min()) <= _LARGEST


def torch_engine(keys: Tensor) -> Name:
    """The engine for what NumPy does not compute: gradients of gradients."""
    return "chunked" if concrete_on_cpu(keys) else "reference"


# A distance over a small temperature may be infinite: then it is far.
@np.errstate(over="ignore")
def order_of(keys: np.ndarray, temperature: float | None) -> tuple[Order, np.ndarray]:
    """Sort rows; also return them in order."""
    n = keys.shape[-1]
    # What is filled up is as large as the last, and comes behind it.
    full = filled(keys, keys.max(-1, keepdims=True))
    places = sorted_places(ordered_bits(full))
    places += np.arange(0, full.size, full.shape[-1])[:, None]
    where = by_residue(places)
    inorder = full.reshape(-1).take(where)
    heat = _temperature(keys, _at(inorder, (n - 1) // 2), temperature)
    return Order(n, where, heat, weigh(_gaps(inorder, heat, n))), inorder


@np.errstate(over="ignore")
def add_slopes(found: np.ndarray, to_gaps: np.ndarray, order: Order) -> None:
    """Add to the gradient of numbers in order what comes from that of distances, which is lost."""
    _at(to_gaps, order.n - 1)[:] = 0
    to_gaps /= order.heat
    found[1:] += to_gaps[:3]
    found[:3] -= to_gaps[:3]
    found[0, 1:] += to_gaps[3, :-1]
    found[3, :-1] -= to_gaps[3, :-1]


def scattered(inorder: np.ndarray, order: Order) -> np.ndarray:
    """Bring numbers in order to where the elements were: (rows, n)."""
    found = np.empty(inorder.size, inorder.dtype)
    found[order.where] = inorder
    return found.reshape(inorder.shape[2], -1)[:, : order.n]


def _temperature(keys: np.ndarray, medians: np.ndarray, temperature: float | None) -> np.ndarray:
    """The temperature of each row; None as in `sparsewire.sorting.soft_sort`."""
    if temperature is not None:
        return np.full(len(keys), max(temperature, _TINY), keys.dtype)
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


def filled(rows: np.ndarray, end: np.ndarray | int) -> np.ndarray:
    """Fill rows up to a power of two."""
    n = rows.shape[1]
    full = full_size(n)
    if full == n:
        return np.ascontiguousarray(rows)
    found = np.empty((len(rows), full, *rows.shape[2:]), rows.dtype)
    found[:, :n], found[:, n:] = rows, end
    return found


def by_residue(rows: np.ndarray) -> np.ndarray:
    """From (rows, places, …) to (4, places / 4, rows, …)."""
    fours = rows.reshape(len(rows), -1, 4, *rows.shape[2:])
    return np.ascontiguousarray(fours.swapaxes(0, 2))


def by_place(places: np.ndarray) -> np.ndarray:
    """The other way."""
    return places.swapaxes(0, 2).reshape(places.shape[2], -1, *places.shape[3:])
