"""Digits to test with, canvases made slowly, and an eye on what operations cost."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sparsewire_lab.data import Canvas, Digits


def some_digits(count: int = 7) -> Digits:
    images = torch.randint(256, (count, 28, 28), dtype=torch.uint8)
    images[torch.rand(images.shape) < 0.5] = 0
    return Digits(images, torch.randint(10, (count,)))


def slowly(digits: Digits, which: Tensor, canvas: Canvas, seed: int) -> tuple[Tensor, Tensor]:
    """The rules, pixel by pixel, with the same random numbers."""
    generator = torch.Generator().manual_seed(seed)
    size, patch, pieces = canvas.size, canvas.patch, (len(which), canvas.distractors)
    others = torch.randint(len(digits.images), pieces, generator=generator).tolist()
    sources = torch.randint(28 - patch + 1, (*pieces, 2), generator=generator).tolist()
    targets = torch.randint(size - patch + 1, (*pieces, 2), generator=generator).tolist()
    corners = torch.randint(size - 28 + 1, (len(which), 2), generator=generator).tolist()
    images = digits.images.tolist()
    canvases = []
    for instance, digit in enumerate(which.tolist()):
        picture = [[0] * size for _ in range(size)]
        for piece in range(canvas.distractors):
            image = images[others[instance][piece]]
            (top, left), (down, right) = sources[instance][piece], targets[instance][piece]
            for i in range(patch):
                for j in range(patch):
                    picture[down + i][right + j] += image[top + i][left + j]
        picture = [[min(pixel, 255) for pixel in row] for row in picture]
        down, right = corners[instance]
        for i in range(28):
            for j in range(28):
                both = picture[down + i][right + j] + images[digit][i][j]
                picture[down + i][right + j] = min(both, 255)
        canvases.append([picture])
    return torch.tensor(canvases, dtype=torch.float32) / 255, torch.tensor(corners)


class Watch(TorchDispatchMode):
    """Notes the operations that run, and the largest tensor that they make."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operations.append(str(func))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.largest = max(self.largest, leaf.numel())
        return result
