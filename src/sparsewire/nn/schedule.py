"""How a layer settles while it is trained: variances fall, and means come to rest."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsewire.annotations import Float
from sparsewire.checks import check_count, check_range, constant
from sparsewire.ops import flat_index

# The share of a run of known length after which variances are at their floor and means at rest.
_SETTLED = 0.7

# How often masses are cut to the share of one tuple, of what the cuts before left.
_CAPS = 8

# Places in a step at first, where values are learned beside the means, and where they are fixed.
_SPEED, _SPEED_ALONE = 0.05, 0.2


@dataclass(frozen=True)
class Schedule:
    """What multiplies the variances above their floor, and the speed of the means, after t steps.

    Without a known end the factor is 1 / (1 + t / steps): it falls for as long as the layer is
    trained, and needs no number of steps in advance. With one it is (1 − t / (0.7 · end))³, and 0
    from there on.

    Args:
        steps: Number of steps after which the factor is a half, if no end is known.
        speed: Places by which a mean moves in one of the first steps (root mean square). If not
            given, 0.05, and 0.2 where values are fixed: then none have to follow.
        end: Number of steps of the whole training, if it is known.

    Examples:
        >>> schedule = Schedule(steps=100)  # half as fast after 100 steps
        >>> [round(schedule.factor(torch.tensor(float(t))).item(), 2) for t in (0, 100, 900)]
        [1.0, 0.5, 0.1]
        >>> Schedule(end=1000).factor(torch.tensor(700.0)).item()
        0.0
    """

    steps: int = 500
    speed: float | None = None
    end: int | None = None

    def __post_init__(self) -> None:
        check_count("steps", self.steps, least=1)
        if self.speed is not None:
            check_range("speed", self.speed, 0.0, 1e3)
        if self.end is not None:
            check_count("end", self.end, least=1)

    def first_speed(self, learn_values: bool) -> float:
        """Return the speed of the first steps, in places."""
        usual = _SPEED if learn_values else _SPEED_ALONE
        return usual if self.speed is None else self.speed

    def factor(self, t: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Return the factor after t steps."""
        if self.end is None:
            return 1 / (1 + t / self.steps)
        return (1 - t / (_SETTLED * self.end)).clamp(min=0) ** 3


def even_start(
    sizes: tuple[int, ...], tuples: int, together: int, generator: torch.Generator | None = None
) -> Float[Tensor, "k r"]:
    """Return fractions of the axes at which tuples start: near places that are spread evenly.

    Each group of `together` consecutive tuples divides the numbered places into as many parts, of
    which every tuple takes one place: none twice, if there are enough. Across the groups, the
    places of a part are taken equally often (a Latin hypercube).

    Examples:
        >>> even_start((4,), 4, 4).mul(3).round().flatten()
        tensor([0., 1., 2., 3.])
    """
    groups, count = tuples // together, math.prod(sizes)
    part = torch.arange(together + 1)
    # Integers: j · count alone may be too large for 64 bits.
    ends = part * (count // together) + part * (count % together) // together
    turn = torch.rand(groups, together, generator=generator).argsort(0)
    inside = (turn + torch.rand(turn.shape, generator=generator, dtype=torch.float64)) / groups
    place = ends[:-1] + (inside * ends.diff()).long().clamp(max=count - 1)
    columns = torch.stack(torch.unravel_index(place.flatten(), sizes), -1)
    last = torch.tensor([n - 1 for n in sizes])
    # Not on the place itself, where the tuples on both sides would be treated differently.
    shift = torch.rand(columns.shape, generator=generator) / 2 - 0.25
    return ((columns + shift) / last.clamp(min=1)).clamp(0, 1)


def start_by_mass(
    start: Float[Tensor, "k r"], mass: Float[Tensor, " n"], sizes: tuple[int, ...], together: int
) -> Float[Tensor, "k r"]:
    """Move an even start to where the mass is: places of equal mass have equally many tuples.

    `mass` has a number ≥ 0 for each place, in row-major order; if all are 0 nothing moves. Groups
    of `together` consecutive tuples still take no place twice.

    Examples:
        >>> start = even_start((4,), 4, 2, torch.Generator().manual_seed(0))
        >>> start_by_mass(start, torch.tensor([0.0, 1.0, 1.0, 0.0]), (4,), 2).mul(3).round().long()
        tensor([[1],
                [2],
                [1],
                [2]])
    """
    spans = constant([max(n - 1, 1) for n in sizes], start.dtype, start.device)
    position, count = start * spans, math.prod(sizes)
    flat, offset = flat_index(position.round().long(), sizes), position - position.round()
    mass = mass.double()
    for _ in range(_CAPS):  # a place takes one tuple of a group
        mass = mass.minimum(mass.sum() / together)
    ends = mass.cumsum(0)
    # Offsets are random, up to a quarter: they tell tuples at one place apart.
    share = (flat + 0.5 + 2 * offset[:, -1]).clamp(0, count) / count
    place = torch.searchsorted(ends, share.double() * ends[-1]).view(-1, together)
    # In a group tuples are in order, and each is behind the one before it.
    turn = torch.arange(together, device=start.device)
    place = ((place - turn).cummax(-1).values + turn).minimum(count - together + turn).clamp(min=0)
    moved = torch.stack(torch.unravel_index(place.flatten(), sizes), -1)
    moved = ((moved + offset) / spans).clamp(0, 1)
    return torch.where(ends[-1] > 0, moved, start)
