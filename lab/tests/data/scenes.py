"""Digits to test with, canvases made slowly, and what samples are checked with."""

from typing import Any

import scipy.stats
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sparsewire_lab.data import Canvas, Digits


def some_digits(count: int = 7) -> Digits:
    images = torch.randint(256, (count, 28, 28), dtype=torch.uint8)
    images[torch.rand(images.shape) < 0.5] = 0
    return Digits(images, torch.randint(10, (count,)))


def slowly(digits: Digits, which: Tensor, canvas: Canvas, seed: int) -> tuple[Tensor, Tensor]:
    """The rules, piece by piece, with the same random numbers."""
    generator = torch.Generator().manual_seed(seed)
    size, patch, pieces = canvas.size, canvas.patch, (len(which), canvas.distractors)
    others = torch.randint(len(digits.images), pieces, generator=generator)
    sources = torch.randint(28 - patch + 1, (*pieces, 2), generator=generator).tolist()
    targets = torch.randint(size - patch + 1, (*pieces, 2), generator=generator).tolist()
    corners = torch.randint(size - 28 + 1, (len(which), 2), generator=generator)
    canvases = torch.zeros(len(which), 1, size, size)
    for instance, ((picture,), digit, (row, column)) in enumerate(
        zip(canvases, digits.images[which], corners.tolist(), strict=True)
    ):
        for piece, image in enumerate(digits.images[others[instance]]):
            (top, left), (down, right) = sources[instance][piece], targets[instance][piece]
            part = image[top : top + patch, left : left + patch]
            picture[down : down + patch, right : right + patch] += part
        picture.clamp_(max=255)
        picture[row : row + 28, column : column + 28] += digit
        picture.clamp_(max=255)
    return canvases / 255, corners


def is_uniform(values: Tensor, size: int) -> bool:
    """Whether counts of 0 … size − 1 are what chance explains, at a level of 0.001."""
    counts = values.flatten().bincount(minlength=size)
    assert len(counts) == size
    return scipy.stats.chisquare(counts.numpy()).pvalue > 0.001


class Operations(TorchDispatchMode):
    """Notes the operations that run while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))
