"""Numbers written in handwritten digits, to be sorted: composed on the device, fresh every time."""

from typing import NamedTuple

import torch
from torch import Tensor

from sparsewire.annotations import Float, Int
from sparsewire.checks import check_count
from sparsewire_lab.data.idx import Digits

LONGEST = 6
"""Most digits of a number."""


class Shelf(NamedTuple):
    """Digits in the order of their labels, so that one of each kind is found at once."""

    images: Tensor
    """(m, 28, 28) uint8."""
    starts: Tensor
    """(10,) int64: where the pictures of each digit begin."""
    counts: Tensor
    """(10,) int64: how many there are."""


class Numbers(NamedTuple):
    """Sets of numbers, and the pictures of their digits."""

    which: Tensor
    """(b, n, places) int64: which picture of the shelf each digit is."""
    values: Tensor
    """(b, n) int64: the numbers."""


def shelve(digits: Digits) -> Shelf:
    """Put digits in the order of their labels."""
    order = digits.labels.argsort(stable=True)
    counts = torch.bincount(digits.labels, minlength=10)
    if len(counts) > 10 or not bool(counts.all()):
        raise ValueError(
            f"digits must have a picture of each, 0 to 9, and no others; got {counts.tolist()}"
        )
    return Shelf(digits.images[order], counts.cumsum(0) - counts, counts)


def draw_numbers(
    shelf: Shelf, batch: int, n: int, places: int = 3, generator: torch.Generator | None = None
) -> Numbers:
    """Draw sets of numbers uniformly, each digit as a random picture of it.

    Args:
        shelf: The pictures.
        batch: How many sets.
        n: Numbers in a set.
        places: Digits of a number, 1 to 6; small numbers begin with zeros.
        generator: Where random numbers come from, torch's own for the device if not given.

    Examples:
        >>> pictures = torch.zeros(10, 28, 28, dtype=torch.uint8)
        >>> numbers = draw_numbers(shelve(Digits(pictures, torch.arange(10))), batch=2, n=4)
        >>> numbers.which.shape, numbers.values.shape
        (torch.Size([2, 4, 3]), torch.Size([2, 4]))
    """
    check_count("batch", batch, least=1)
    check_count("n", n, least=1)
    if check_count("places", places, least=1) > LONGEST:
        raise ValueError(f"places must be 1 to {LONGEST}; got {places}")
    device = shelf.images.device
    values = torch.randint(10**places, (batch, n), device=device, generator=generator)
    powers = 10 ** torch.arange(places - 1, -1, -1, device=device)
    labels = values.unsqueeze(-1) // powers % 10
    counts = shelf.counts[labels]
    place = torch.rand(labels.shape, device=device, generator=generator) * counts
    which = shelf.starts[labels] + torch.minimum(place.long(), counts - 1)
    return Numbers(which, values)


def pictures(shelf: Shelf, which: Int[Tensor, "*b"]) -> Float[Tensor, "*b 28 28"]:
    """Return the pictures of digits, float32 from 0 to 1."""
    found = shelf.images.index_select(0, which.flatten())
    return found.view(*which.shape, *found.shape[1:]).float() / 255
