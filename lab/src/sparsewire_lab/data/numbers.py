"""Numbers written in handwritten digits, sampled on the device."""

from typing import NamedTuple

import torch
from torch import Tensor

from sparsewire.annotations import Float, Int
from sparsewire.checks import check_count
from sparsewire_lab.data.idx import Digits

LONGEST = 6
"""Most digits of a number."""


class DigitGroups(NamedTuple):
    """Digits in the order of their labels."""

    images: Tensor
    """(m, 28, 28) uint8."""
    starts: Tensor
    """(10,) int64: index of the first picture of each digit."""
    counts: Tensor
    """(10,) int64: number of pictures of each digit."""


class Numbers(NamedTuple):
    """Sets of numbers, and the pictures of their digits."""

    which: Tensor
    """(b, n, places) int64: index of the picture of each digit."""
    values: Tensor
    """(b, n) int64: the numbers."""


def group_by_label(digits: Digits) -> DigitGroups:
    """Sort digits by their labels."""
    order = digits.labels.argsort(stable=True)
    counts = torch.bincount(digits.labels, minlength=10)
    if len(counts) > 10 or not bool(counts.all()):
        raise ValueError(
            f"digits must have a picture of each, 0 to 9, and no others; got {counts.tolist()}"
        )
    return DigitGroups(digits.images[order], counts.cumsum(0) - counts, counts)


def sample_numbers(
    groups: DigitGroups,
    batch: int,
    n: int,
    places: int = 3,
    generator: torch.Generator | None = None,
) -> Numbers:
    """Sample sets of numbers uniformly, and for each digit one of its pictures.

    Args:
        groups: The pictures.
        batch: Number of sets.
        n: Numbers in a set.
        places: Digits of a number, 1 to 6; small numbers begin with zeros.
        generator: Source of randomness; torch's own for the device if not given.

    Examples:
        >>> pictures = torch.zeros(10, 28, 28, dtype=torch.uint8)
        >>> numbers = sample_numbers(
        ...     group_by_label(Digits(pictures, torch.arange(10))), batch=2, n=4
        ... )
        >>> numbers.which.shape, numbers.values.shape
        (torch.Size([2, 4, 3]), torch.Size([2, 4]))
    """
    check_count("batch", batch, least=1)
    check_count("n", n, least=1)
    if check_count("places", places, least=1) > LONGEST:
        raise ValueError(f"places must be 1 to {LONGEST}; got {places}")
    device = groups.images.device
    values = torch.randint(10**places, (batch, n), device=device, generator=generator)
    powers = 10 ** torch.arange(places - 1, -1, -1, device=device)
    labels = values.unsqueeze(-1) // powers % 10
    counts = groups.counts[labels]
    place = torch.rand(labels.shape, device=device, generator=generator) * counts
    which = groups.starts[labels] + torch.minimum(place.long(), counts - 1)
    return Numbers(which, values)


def pictures(groups: DigitGroups, which: Int[Tensor, "*b"]) -> Float[Tensor, "*b 28 28"]:
    """Return the pictures of digits, float32 from 0 to 1."""
    images = groups.images.index_select(0, which.flatten())
    return images.view(*which.shape, *images.shape[1:]).float() / 255
