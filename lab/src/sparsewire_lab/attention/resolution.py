"""A penalty for glimpses whose points are far apart: pixels between them are not read."""

import torch
from torch import Tensor

from sparsewire.annotations import Float


class ResolutionPenalty:
    """A penalty on the pixels between the points of glimpses, for images classified with success.

    The penalty of an image is the logarithm of the number of pixels from one point to the next, all
    glimpses taken together; zero where every pixel is read. Its weight is by how much the
    probability of the right class is above chance: a glimpse far from the digit stays wide.

    Args:
        weight: Factor of the penalty, which is added to the cross-entropy.
        side: Pixels of an image's side.
        classes: Number of classes.
    """

    def __init__(self, weight: float, side: int, classes: int = 10) -> None:
        self.weight, self.side, self.classes = weight, side, classes
        self.points: Tensor | None = None

    def on_points(self, points: Float[Tensor, "b g k l 2"]) -> None:
        """Store the points of a pass, in shares of the image; given to `Glimpse.on_points`."""
        self.points = points

    def loss(self, losses: Float[Tensor, " b"]) -> Float[Tensor, ""]:
        """Return the penalty of the last pass.

        Args:
            losses: The cross-entropy of each of its images.
        """
        assert self.points is not None, "a pass comes first"
        success = (torch.exp(-losses.detach()) - 1 / self.classes).relu()
        gaps, self.points = pixel_gaps(self.points, self.side), None
        return self.weight * (success * gaps.clamp(min=1).log().mean(-1)).mean()


def pixel_gaps(points: Float[Tensor, "b g k l 2"], side: int) -> Float[Tensor, "b n"]:
    """Return the distances of neighbouring points, down and right, in each glimpse of an image.

    g glimpses count as one with as many points as all of them: at the same place, shifted by parts
    of a pixel, they divide distances by √g.

    Args:
        points: Where glimpses look, in shares of the image.
        side: Pixels of an image's side.
    """
    glimpses, rows, cols = points.shape[-4:-1]
    first, below, beside = points[..., 0, 0, :], points[..., -1, 0, :], points[..., 0, -1, :]
    sides = [(below - first, rows), (beside - first, cols)]
    # The square root of zero has no gradient.
    gaps = [way.square().sum(-1).clamp(min=1e-12).sqrt() / max(1, n - 1) for way, n in sides]
    return torch.cat(gaps, dim=-1) * ((side - 1) / glimpses**0.5)
