"""Random affine changes of pictures of digits."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsewire.annotations import Float
from sparsewire.precision import without_autocast


def sample_changes(
    count: int,
    strength: float = 1.0,
    device: torch.device | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "b 6"]:
    """Sample how `augment` changes pictures.

    At strength 1 it turns them by up to 12 degrees, scales them by up to 12 %, shears them by up to
    0.2 and shifts them by up to 2 of 28 pixels, each uniformly.

    Args:
        count: Number of pictures.
        strength: Factor of all changes.
        device: Where the pictures are.
        generator: Source of randomness; torch's own for the device if not given.
    """
    numbers = torch.rand(6, count, device=device, generator=generator) * 2 - 1
    return (numbers * strength).T


def augment(
    images: Float[Tensor, "b c h w"], changes: Float[Tensor, "b 6"]
) -> Float[Tensor, "b c h w"]:
    """Turn, scale, shear and shift each picture, as if written again.

    Args:
        images: The pictures.
        changes: What `sample_changes` returned.

    Examples:
        >>> images = torch.rand(2, 1, 28, 28)
        >>> augment(images, sample_changes(2, strength=0.5)).shape
        torch.Size([2, 1, 28, 28])
    """
    count, device = len(images), images.device
    angle, tall, wide, shear, down, right = changes.T
    angle = angle * math.radians(12)
    tall, wide = 1 + 0.12 * tall, 1 + 0.12 * wide
    shear, down, right = 0.2 * shear, down * 2 / 14, right * 2 / 14
    cos, sin = angle.cos(), angle.sin()
    first = torch.stack([cos * wide, shear - sin * tall, right], dim=-1)
    second = torch.stack([sin * wide, cos * tall, down], dim=-1)
    # The same as `affine_grid`, which multiplies matrices and takes longer.
    rows, cols = (_centres(n, device) for n in images.shape[-2:])
    grid = images.new_empty((count, len(rows), len(cols), 2))
    for slopes, plane in zip((first, second), grid.unbind(-1), strict=True):
        along, down, start = slopes[:, :, None, None].unbind(1)
        torch.add(cols * along, rows[:, None] * down + start, out=plane)
    with without_autocast(images):
        return F.grid_sample(images, grid, align_corners=False)


def _centres(count: int, device: torch.device) -> Float[Tensor, " n"]:
    """Where pixels are, from −1 to 1 at the edges of the picture."""
    return (torch.arange(count, device=device) * 2 + 1) / count - 1
