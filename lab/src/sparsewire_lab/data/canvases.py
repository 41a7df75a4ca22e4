"""Cluttered canvases: a digit at a random place among pieces of other digits.

Canvases are made on the device of the digits, by a fixed number of operations on whole batches
without synchronisation, so that a training step that samples canvases can be captured in a CUDA
graph. Pixels are summed as integers: the sum is the same in any order, on any device.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sparsewire.annotations import Int
from sparsewire.checks import check_range
from sparsewire_lab.data.idx import SIDE, Digits

# Pixels of the canvases that `fixed_set` makes at once: 32 MiB while they are added up.
_CHUNK_PIXELS = 2**23


@dataclass(frozen=True)
class Canvas:
    """How canvases are made.

    Args:
        size: Height and width in pixels, at least 28.
        distractors: Number of pieces of digits on a canvas.
        patch: Height and width of a piece, 1 to 28.
    """

    size: int = 100
    distractors: int = 8
    patch: int = 8

    def __post_init__(self) -> None:
        if self.size < SIDE:
            raise ValueError(f"size must be at least {SIDE}, that of a digit; got {self.size}")
        if self.distractors < 0:
            raise ValueError(f"distractors must be 0 or more; got {self.distractors}")
        if not 1 <= self.patch <= SIDE:
            raise ValueError(f"patch must be 1 to {SIDE}; got {self.patch}")


CANVAS_60 = Canvas(60, 4, 8)
CANVAS_100 = Canvas(100, 8, 8)
CANVAS_400 = Canvas(400, 128, 8)
CANVASES = {canvas.size: canvas for canvas in (CANVAS_60, CANVAS_100, CANVAS_400)}
"""The canvases of the experiments, by size."""


class Scene(NamedTuple):
    """Canvases, and where the digit is on each."""

    images: Tensor
    """(b, 1, size, size) float32, 0 to 1."""
    corners: Tensor
    """(b, 2) int64: row and column of the digit's top left pixel."""


def clutter(
    digits: Digits,
    which: Int[Tensor, "b"],
    canvas: Canvas = CANVAS_100,
    generator: torch.Generator | None = None,
    central: Tensor | float | None = None,
) -> Scene:
    """Place each digit on a canvas of its own, among pieces of other digits.

    Pieces are windows of digits sampled with replacement, at places sampled uniformly; they are
    summed and clamped to 1. The digit is added last, at a place sampled uniformly, and the sum is
    clamped again. Temporary memory grows with b · (size² + distractors · patch²).

    Args:
        digits: The digits to place, and to take pieces of.
        which: Index of the digit of each canvas. It is checked on the device, not on the host.
        canvas: How canvases are made.
        generator: Source of randomness; torch's own for the device if not given.
        central: Share of the canvas, around its middle, in which the digit is placed, 0 to 1;
            the whole canvas if not given. A tensor may change between replays of a graph.

    Examples:
        >>> digits = Digits(torch.full((3, 28, 28), 255, dtype=torch.uint8), torch.arange(3))
        >>> clutter(digits, torch.tensor([2, 0]), CANVAS_60).images.shape
        torch.Size([2, 1, 60, 60])
    """
    pixels, corners = _paint(digits, which, canvas, generator, central)
    return Scene(pixels.float().div_(255), corners)


def sample_canvases(
    digits: Digits,
    batch: int,
    canvas: Canvas = CANVAS_100,
    generator: torch.Generator | None = None,
    central: Tensor | float | None = None,
) -> tuple[Scene, Tensor]:
    """Return canvases of digits sampled uniformly, and their labels; arguments as in `clutter`."""
    if batch < 1:
        raise ValueError(f"batch must be at least 1; got {batch}")
    _check(digits)
    device = digits.images.device
    which = torch.randint(len(digits.images), (batch,), device=device, generator=generator)
    return clutter(digits, which, canvas, generator, central), digits.labels.index_select(0, which)


def fixed_set(digits: Digits, canvas: Canvas, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return canvases for evaluation: the same ones for the same seed and kind of device.

    Args:
        digits: The digits to place. Each is used once, in order, if `count` is their number; if
            not, they are shuffled, and all are used equally often, up to one.
        canvas: How canvases are made.
        count: Number of canvases.
        seed: Of a generator of their own; torch's own is not used.

    Returns:
        Images, (count, 1, size, size) uint8, a quarter of the memory: `images.float() / 255` are
        exactly those of `clutter`. And labels, (count,).
    """
    if count < 1:
        raise ValueError(f"count must be at least 1; got {count}")
    _check(digits)
    number, device = len(digits.images), digits.images.device
    generator = torch.Generator(device).manual_seed(seed)
    if count == number:
        which = torch.arange(number, device=device)
    else:
        passes = range(-(-count // number))
        orders = [torch.randperm(number, generator=generator, device=device) for _ in passes]
        which = torch.cat(orders)[:count]
    size = canvas.size
    images = torch.empty((count, 1, size, size), dtype=torch.uint8, device=device)
    for some in _chunks(count, max(1, _CHUNK_PIXELS // size**2)):
        images[some] = _paint(digits, which[some], canvas, generator)[0]
    return images, digits.labels.index_select(0, which)


def _chunks(count: int, most: int) -> Iterator[slice]:
    return (slice(start, min(start + most, count)) for start in range(0, count, most))


def _paint(
    digits: Digits,
    which: Tensor,
    canvas: Canvas,
    generator: torch.Generator | None,
    central: Tensor | float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return canvases in integers, (b, 1, size, size) from 0 to 255, and the digits' corners."""
    _check(digits)
    size, patch, batch = canvas.size, canvas.patch, len(which)
    device, images = digits.images.device, digits.images

    def sample(most: int, *shape: int) -> Tensor:
        return torch.randint(most, shape, device=device, generator=generator)

    # In this order, so that a seed gives the same canvases in every version.
    pieces = (batch, canvas.distractors)
    others = sample(len(images), *pieces)
    sources = sample(SIDE - patch + 1, *pieces, 2)
    targets = sample(size - patch + 1, *pieces, 2)
    corners = sample(size - SIDE + 1, batch, 2)
    if central is not None:
        if not isinstance(central, Tensor):
            check_range("central", central, 0.0, 1.0)
        middle = (size - SIDE) / 2
        corners = (middle + (corners - middle) * central).round().long()

    flat = torch.zeros(batch * size * size, dtype=torch.int32, device=device)
    own = torch.arange(batch, device=device)
    if canvas.distractors:
        read = _windows(others, sources, patch, SIDE)
        write = _windows(own[:, None].expand(pieces), targets, patch, size)
        flat.index_add_(0, write, images.reshape(-1).index_select(0, read).int())
        flat.clamp_(max=255)
    whole = images.index_select(0, which).reshape(-1).int()
    flat.index_add_(0, _windows(own, corners, SIDE, size), whole)
    return flat.clamp_(max=255).view(batch, 1, size, size), corners


def _windows(picture: Tensor, corners: Tensor, side: int, size: int) -> Tensor:
    """Return flat indices of the pixels of windows in a batch of size × size pictures.

    Args:
        picture: (…) which picture a window is in.
        corners: (…, 2) row and column of its top left pixel.
        side: Height and width of a window.
        size: Height and width of a picture.

    Returns:
        One axis, ordered by window and row.
    """
    steps = torch.arange(side, device=picture.device)
    inside = (steps[:, None] * size + steps).reshape(-1)
    start = (picture * size + corners[..., 0]) * size + corners[..., 1]
    return (start[..., None] + inside).reshape(-1)


def _check(digits: Digits) -> None:
    """Check shapes and dtypes; a look at values would synchronise with the device."""
    images, labels = digits
    if images.dtype != torch.uint8 or images.shape[1:] != (SIDE, SIDE) or not len(images):
        raise ValueError(
            f"digits.images must be uint8 of shape (n, {SIDE}, {SIDE}), n at least 1; "
            f"got {images.dtype} of shape {tuple(images.shape)}"
        )
    if labels.shape != images.shape[:1]:
        raise ValueError(
            f"digits.labels must be of shape ({len(images)},), as many as there are images; "
            f"got {tuple(labels.shape)}"
        )
