"""Pictures of digits, changed a little: no two steps see the same."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsewire.annotations import Float
from sparsewire.precision import without_autocast


def jitter(
    images: Float[Tensor, "b c h w"],
    strength: float = 1.0,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "b c h w"]:
    """Turn, scale, shear and shift each picture at random, as if written again.

    At strength 1: by up to 12 degrees, 12 %, 0.2, and 2 of 28 pixels, each drawn uniformly.

    Args:
        images: The pictures.
        strength: Factor of all of them.
        generator: Where random numbers come from, torch's own for the device if not given.
    """
    count, device = len(images), images.device
    drawn = torch.rand(6, count, device=device, generator=generator) * 2 - 1
    angle, tall, wide, shear, down, right = drawn * strength
    angle = angle * math.radians(12)
    tall, wide = 1 + 0.12 * tall, 1 + 0.12 * wide
    shear, down, right = 0.2 * shear, down * 2 / 14, right * 2 / 14
    cos, sin = angle.cos(), angle.sin()
    first = torch.stack([cos * wide, shear - sin * tall, right], dim=-1)
    second = torch.stack([sin * wide, cos * tall, down], dim=-1)
    # `affine_grid` makes the same by a product of matrices, which takes longer.
    rows, cols = (_centres(n, device) for n in images.shape[-2:])
    grid = images.new_empty((count, len(rows), len(cols), 2))
    for slopes, plane in zip((first, second), grid.unbind(-1), strict=True):
        along, down, start = slopes[:, :, None, None].unbind(1)
        # A number for each picture that grows evenly along its columns and rows.
        torch.add(cols * along, rows[:, None] * down + start, out=plane)
    with without_autocast(images):
        return F.grid_sample(images, grid, align_corners=False)


def _centres(count: int, device: torch.device) -> Float[Tensor, " n"]:
    """Where pixels are, from −1 to 1 at the edges of the picture."""
    return (torch.arange(count, device=device) * 2 + 1) / count - 1
