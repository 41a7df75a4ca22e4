"""What else sorts softly, each with the options it has by default.

An engine takes keys (b, n) and what is given beside them, as `sparsewire_lab.bench.sorting_problems`
has it. Most peers make a matrix P, of which rows are places and columns elements; it is applied to
the values, and its transpose to the places. Where an order is known, the loss of a matrix is the
cross-entropy of its rows, that of ranks their squared error.
"""

import functools
import importlib
import importlib.util
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import sparsewire as sw
from sparsewire_lab.bench.case import OURS
from sparsewire_lab.bench.sorting_cases import (
    HARD,
    LIST_MLE,
    NEIGHBOURS,
    NETWORKS,
    PACKAGES,
    TORCHSORT,
    VALUES,
)
from sparsewire_lab.sorting import peers as sorters

Engine = Callable[[Tensor, Tensor], Tensor]
Matrix = Callable[[Tensor], Tensor]

_STEEPNESS = 10.0
_LEAST = 1e-20  # of a probability, where its logarithm is taken


def absent() -> list[str]:
    """Return the engines whose package is not installed."""
    return [name for name, (module, _) in PACKAGES.items() if not _is_installed(module)]


def sorting_engine(case: str, name: str) -> Engine:
    """Return an engine of a case.

    Raises:
        ValueError: There is none of this name.
    """
    if name in _OTHERS and case in _OTHERS[name]:
        return _OTHERS[name][case]
    if name in MATRIX_OF:
        return functools.partial(_BY_MATRIX[case], MATRIX_OF[name])
    raise ValueError(f"engine must be one that does {case}; got {name!r}")


def bitonic_values(keys: Tensor, steepness: float = _STEEPNESS) -> Tensor:
    """Sort numbers by a bitonic network as `models.sorters` has it, but without a matrix."""
    n, block = keys.shape[-1], 2
    while block <= n:
        apart = block // 2
        while apart:
            a, b = keys.unflatten(-1, (-1, 2, apart)).unbind(-2)
            starts = torch.arange(0, n, 2 * apart, device=keys.device)
            sign = torch.where((starts & block) == 0, steepness, -steepness).to(keys.dtype)
            swap = 0.5 - torch.atan(sign.unsqueeze(-1) * (b - a)) / math.pi
            moved = swap * (b - a)
            keys = torch.stack([a + moved, b - moved], dim=-2).flatten(-3)
            apart //= 2
        block *= 2
    return keys


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _places(keys: Tensor) -> Tensor:
    return torch.arange(keys.shape[-1], dtype=keys.dtype, device=keys.device)


def _sort_by_matrix(matrix: Matrix, keys: Tensor, given: Tensor) -> Tensor:
    return (matrix(keys) @ keys.unsqueeze(-1)).squeeze(-1)


def _rank_by_matrix(matrix: Matrix, keys: Tensor, given: Tensor) -> Tensor:
    return _places(keys) @ matrix(keys)


def _payload_by_matrix(matrix: Matrix, keys: Tensor, given: Tensor) -> Tensor:
    return (matrix(keys) @ given.flatten(2)).view_as(given)


def _loss_by_matrix(matrix: Matrix, keys: Tensor, given: Tensor) -> Tensor:
    order = given.argsort(dim=-1, stable=True).unsqueeze(-1)
    return -matrix(keys).gather(-1, order).clamp_min(_LEAST).log().sum((-1, -2))


def _hard_ranks(keys: Tensor, given: Tensor) -> Tensor:
    index = keys.argsort(dim=-1)
    # Zeros that hang on the keys: there is a backward pass to be timed.
    return torch.empty_like(keys).scatter(-1, index, _places(keys).expand_as(keys)) + keys * 0


def _hard_payload(keys: Tensor, given: Tensor) -> Tensor:
    index = keys.argsort(dim=-1).unsqueeze(-1)
    flat = given.flatten(2)
    return flat.gather(1, index.expand_as(flat)).view_as(given) + keys.sum() * 0


def _list_mle(keys: Tensor, given: Tensor) -> Tensor:
    inorder = keys.gather(-1, given.argsort(dim=-1, stable=True))
    return (inorder.logcumsumexp(-1) - inorder).sum(-1)


def _our_loss(reach: int | None, keys: Tensor, given: Tensor) -> Tensor:
    return sw.order_loss(keys, given, reach=reach, reduction="none")


def _torchsort(name: str, keys: Tensor) -> Tensor:
    module: Any = importlib.import_module("torchsort")
    return getattr(module, name)(keys)


def _torchsort_loss(keys: Tensor, given: Tensor) -> Tensor:
    # Its ranks begin with 1.
    right = given.argsort(dim=-1, stable=True).argsort(dim=-1) + 1
    return (_torchsort("soft_rank", keys) - right).square().sum(-1)


def _diffsort(network: str, keys: Tensor) -> Tensor:
    return _network(network, keys.shape[-1], str(keys.device))(keys)[1].mT


@functools.lru_cache(maxsize=1)
def _network(network: str, n: int, device: str) -> Any:
    return importlib.import_module("diffsort").DiffSortNet(network, n, device=device)


_BY_MATRIX: dict[str, Callable[[Matrix, Tensor, Tensor], Tensor]] = {
    "soft_sort": _sort_by_matrix,
    "soft_rank": _rank_by_matrix,
    "sort_by": _payload_by_matrix,
    "order_loss": _loss_by_matrix,
}
MATRIX_OF: dict[str, Matrix] = {
    "softsort": sorters.soft_sort_matrix,
    "neuralsort": sorters.neural_sort,
    "sinkhorn": sorters.sinkhorn_sort,
    "odd-even": functools.partial(sorters.network_sort, network="odd_even"),
    "bitonic": functools.partial(sorters.network_sort, network="bitonic"),
    **{name: functools.partial(_diffsort, network) for name, network in NETWORKS.items()},
}
_OTHERS: dict[str, dict[str, Engine]] = {
    OURS: {
        "soft_sort": lambda keys, _: sw.soft_sort(keys),
        "soft_rank": lambda keys, _: sw.soft_rank(keys),
        "sort_by": lambda keys, given: sw.sort_by(keys, given),
        "order_loss": functools.partial(_our_loss, None),
    },
    NEIGHBOURS: {"order_loss": functools.partial(_our_loss, 1)},
    HARD: {
        "soft_sort": lambda keys, _: keys.sort(dim=-1).values,
        "soft_rank": _hard_ranks,
        "sort_by": _hard_payload,
    },
    VALUES: {"soft_sort": lambda keys, _: bitonic_values(keys)},
    LIST_MLE: {"order_loss": _list_mle},
    TORCHSORT: {
        "soft_sort": lambda keys, _: _torchsort("soft_sort", keys),
        "soft_rank": lambda keys, _: _torchsort("soft_rank", keys),
        "order_loss": _torchsort_loss,
    },
}
