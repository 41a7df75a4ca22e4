"""Places by number, and who takes which."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, distributed

from sparsewire.annotations import Bool, Int
from sparsewire.ops import flat_index


def number_places(
    indices: Int[Tensor, "k r"], space: Sequence[int], groups: Int[Tensor, " k"] | None = None
) -> Int[Tensor, " k"]:
    """Number index tuples by `flat_index`; those of different groups have different numbers.

    Examples:
        >>> number_places(torch.tensor([[0, 1], [0, 1]]), (2, 3), torch.tensor([0, 1]))
        tensor([1, 7])
    """
    flat = flat_index(indices, space)
    return flat if groups is None else groups * math.prod(space) + flat


def unflatten(flat: Int[Tensor, " k"], space: tuple[int, ...]) -> Int[Tensor, "k r"]:
    """Return index tuples from their numbers: the inverse of `flat_index`."""
    columns = []
    for size in reversed(space):
        columns.append(flat % size)
        flat = flat.div(size, rounding_mode="floor")
    return torch.stack(columns[::-1], dim=-1)


def is_in(places: Int[Tensor, " p"], holds: Int[Tensor, " k"]) -> Bool[Tensor, " p"]:
    """Mark places that are held: `torch.isin`, which would make the host wait."""
    ordered = holds.sort().values
    at = torch.searchsorted(ordered, places).clamp(max=len(ordered) - 1)
    return ordered[at] == places


def match(
    asking: Bool[Tensor, " k"],
    groups: Int[Tensor, " k"],
    free: Bool[Tensor, " p"],
    groups_of: Int[Tensor, " p"],
    count: int,
) -> tuple[Bool[Tensor, " k"], Int[Tensor, " k"]]:
    """Give the n-th asking tuple of each of `count` groups the n-th free place of its group.

    Returns which tuples get a place, and the number of the place.

    Examples:
        >>> asking, groups = torch.tensor([True, False, True, True]), torch.tensor([0, 0, 0, 1])
        >>> free, groups_of = torch.tensor([True, True, False]), torch.tensor([1, 0, 0])
        >>> gets, which = match(asking, groups, free, groups_of, 2)
        >>> gets, which[gets]
        (tensor([ True, False, False,  True]), tensor([1, 0]))
    """
    # What does not take part is a group of its own, behind all others.
    mine, order = torch.where(asking, groups, count).sort(stable=True)
    turn = torch.arange(len(mine), device=mine.device) - torch.searchsorted(mine, mine)
    turn = torch.empty_like(turn).scatter(0, order, turn)
    theirs, by_group = torch.where(free, groups_of, count).sort(stable=True)
    at = torch.searchsorted(theirs, groups) + turn
    inside = at.clamp(max=len(theirs) - 1)
    gets = asking & (at < len(theirs)) & (theirs[inside] == groups)
    return gets, by_group[inside]


def pooled(tensor: Tensor) -> Tensor:
    """Return the tensors of all processes in one, in the order of their ranks."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return tensor
    parts = [torch.empty_like(tensor) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, tensor)
    return torch.cat(parts)
