"""Which tuples share the places of a stronger one."""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sparsewire.annotations import Float, Int
from sparsewire.checks import constant
from sparsewire.rewire.places import number_places

# Tuples of different places that are nearer than this share both places; settled ones are 1 apart.
_TOO_NEAR = 0.7


def find_keepers(
    means: Float[Tensor, "k r"],
    held: Int[Tensor, "k r"],
    strength: Float[Tensor, " k"],
    space: Sequence[int],
    groups: Int[Tensor, " k"] | None = None,
) -> Int[Tensor, " k"]:
    """Return, for each tuple, a stronger one that holds its place or is too near; or itself.

    A place is `held` by the strongest of the tuples whose means round to it. Tuples of neighbouring
    places are too near below a distance of 0.7: they mix, often with values of opposite sign, and
    would add up to one. A tuple that is another's keeper has none itself. With `groups`, tuples
    have keepers of their own group only.

    Examples:
        >>> means = torch.tensor([[3.0], [3.1], [7.0], [3.6]])
        >>> find_keepers(means, means.round().long(), torch.tensor([0.5, 1.0, 1.0, 0.2]), (9,))
        tensor([1, 1, 2, 1])
    """
    places = number_places(held, space, groups)
    strongest = strength.argsort(descending=True, stable=True)
    ordered, by_place = places[strongest].sort(stable=True)
    order = strongest[by_place]  # by place, and the strongest first in each
    myself = torch.arange(len(places), device=places.device)
    rank = torch.empty_like(order).scatter(0, strongest, myself)
    keeper, nearest = myself.clone(), torch.full_like(strength, math.inf)
    last = constant([n - 1 for n in space], torch.int64, held.device)
    for offset in itertools.product((0, -1, 1), repeat=len(space)):
        neighbour = held + constant(offset, torch.int64, held.device)
        at = number_places(neighbour.clamp_(min=0).minimum(last), space, groups)
        first = torch.searchsorted(ordered, at).clamp(max=len(ordered) - 1)
        other = order[first]
        distance = (means - means[other]).square().sum(-1).sqrt()
        distance = torch.where(at == places, 0.0, distance)  # of the same place
        better = (ordered[first] == at) & (rank[other] < rank) & (distance < nearest)
        better &= distance < _TOO_NEAR
        keeper = torch.where(better, other, keeper)
        nearest = torch.where(better, distance, nearest)
    return torch.where(keeper[keeper] == keeper, keeper, myself)
