"""Stage 3, mark repeats: which integer tuples occurred earlier in their context."""

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from sparsewire.annotations import Bool, Int
from sparsewire.checks import check_dims, check_integer, check_shape
from sparsewire.engines import Engine, concrete, dispatch

Number = TypeVar("Number", Tensor, int)

# The kernel compares contexts of up to this size pair by pair; larger ones are sorted.
_PAIRWISE = 2**14

# Elements of the index space for each tuple, up to which marking all of them is fastest.
_GRID_CELLS = 8


def flat_index(indices: Int[Tensor, "*b r"], shape: Sequence[int]) -> Int[Tensor, "*b"]:
    """Number index tuples as row-major flattening does: an exact int64 for each tuple.

    flat = Σ_d index[d] · Π_{e > d} shape[e]

    Indices are assumed to lie inside `shape`: a check would make the host wait.

    Examples:
        >>> flat_index(torch.tensor([[0, 0, 0], [1, 2, 3]]), (2, 3, 4))
        tensor([ 0, 23])
    """
    check_integer("indices", indices)
    sizes = check_shape("shape", shape)
    check_dims("indices", indices, (len(sizes),), "(*b, r)")
    if not sizes:
        return indices.new_zeros(indices.shape[:-1])
    return flat_columns(indices.unbind(-1), sizes)


def flat_columns(columns: Sequence[Number], sizes: Sequence[int]) -> Number:
    """Compute `flat_index` from columns that need only broadcast with each other."""
    flat = columns[0]
    for column, size in zip(columns[1:], sizes[1:], strict=True):
        flat = flat * size + column
    return flat


def mark_repeats(indices: Int[Tensor, "*b m r"], shape: Sequence[int]) -> Bool[Tensor, "*b m"]:
    """Mark every tuple that occurred earlier in its context; the first occurrence stays unmarked.

    Each (m, r) matrix is a context; its indices are assumed to lie inside `shape`. Equality is
    exact: tuples are compared by `flat_index`, in O(m log m).

    Examples:
        >>> mark_repeats(torch.tensor([[2, 1], [0, 3], [2, 1], [2, 1], [1, 2]]), (4, 4))
        tensor([False, False,  True,  True, False])
    """
    check_integer("indices", indices)
    sizes = check_shape("shape", shape)
    check_dims("indices", indices, (None, len(sizes)), "(*b, m, r)")
    return dispatch(ENGINES, indices.device, indices, sizes)


def _by_sorting(indices: Tensor, sizes: tuple[int, ...]) -> Tensor:
    flat = flat_index(indices, sizes)
    ordered, order = flat.sort(dim=-1, stable=True)
    repeated = torch.zeros_like(flat, dtype=torch.bool)
    same = ordered[..., 1:] == ordered[..., :-1]
    return repeated.scatter(-1, order[..., 1:], same)


def _on_grid(indices: Tensor, sizes: tuple[int, ...]) -> Tensor:
    flat, m = flat_index(indices, sizes), indices.shape[-2]
    place = torch.arange(m, device=flat.device)
    cells = flat.new_full((*flat.shape[:-1], math.prod(sizes)), m)
    cells.scatter_reduce_(-1, flat, place.expand_as(flat), "amin")
    return cells.gather(-1, flat) != place


def _by_numpy(indices: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Sort numbers that have the place in their last bits: several times faster than both apart."""
    m = indices.shape[-2]
    numbers = flat_index(indices, sizes).long() << (bits := m.bit_length()) | torch.arange(m)
    numbers.numpy().sort(-1)
    flat, place = numbers >> bits, numbers & (1 << bits) - 1
    repeated = torch.zeros_like(flat, dtype=torch.bool)
    torch.eq(flat[..., 1:], flat[..., :-1], out=repeated[..., 1:])
    return torch.empty_like(repeated).scatter_(-1, place, repeated)


def _is_small(indices: Tensor, sizes: tuple[int, ...]) -> bool:
    cells = math.prod(sizes)
    return indices.device.type == "cpu" and cells <= _GRID_CELLS * indices.shape[-2]


def _is_packable(indices: Tensor, sizes: tuple[int, ...]) -> bool:
    short = math.prod(sizes) << indices.shape[-2].bit_length() < 2**63
    return short and indices.device.type == "cpu" and concrete(indices)


def _fused(indices: Tensor, sizes: tuple[int, ...]) -> Tensor:
    from sparsewire.ops.repeats import _triton

    *prefix, m, r = indices.shape
    contexts = indices.reshape(math.prod(prefix), m, r)
    return _triton.mark_repeats(contexts, sizes).view(*prefix, m)


ENGINES = (
    Engine(
        "triton",
        _fused,
        takes=lambda indices, sizes: bool(sizes) and indices.shape[-2] <= _PAIRWISE,
    ),
    Engine("grid", _on_grid, takes=_is_small),
    Engine("numpy", _by_numpy, takes=_is_packable),
    Engine("reference", _by_sorting),
)
