"""Why a glimpse should come closer: what lies between its points is not read."""

import torch
from torch import Tensor

from sparsewire.annotations import Float


class Zooming:
    """Makes a model pay for the pixels between the points of its glimpses, once it sees something.

    The price of an image is the logarithm of how many pixels there are from one point to the next,
    glimpses together; none, where every pixel is read. It counts by how much better than chance
    the image is classified: a glimpse that has not found anything is not asked to come closer.

    Args:
        weight: How much the price counts beside the cross-entropy.
        side: Pixels of an image's side.
        classes: Number of classes.
    """

    def __init__(self, weight: float, side: int, classes: int = 10) -> None:
        self.weight, self.side, self.classes = weight, side, classes
        self.points: Tensor | None = None

    def watch(self, points: Float[Tensor, "b g k l 2"]) -> None:
        """Take where the glimpses of a pass look, in shares of the image."""
        self.points = points

    def price(self, losses: Float[Tensor, " b"]) -> Float[Tensor, ""]:
        """Return what the last pass has to pay.

        Args:
            losses: The cross-entropy of each of its images.
        """
        assert self.points is not None, "a pass comes first"
        understood = (torch.exp(-losses.detach()) - 1 / self.classes).relu()
        apart, self.points = pixels_apart(self.points, self.side), None
        return self.weight * (understood * apart.clamp(min=1).log().mean(-1)).mean()


def pixels_apart(points: Float[Tensor, "b g k l 2"], side: int) -> Float[Tensor, "b n"]:
    """Return the distances of neighbouring points, down and right, in each glimpse of an image.

    Several glimpses are taken for one with as many points as all of them: g of them at the same
    place, a part of a pixel apart, halve distances as often as g has a square root.

    Args:
        points: Where glimpses look, in shares of the image.
        side: Pixels of an image's side.
    """
    glimpses, rows, cols = points.shape[-4:-1]
    first, below, beside = points[..., 0, 0, :], points[..., -1, 0, :], points[..., 0, -1, :]
    sides = [(below - first, rows), (beside - first, cols)]
    # Not the root of zero, which has no gradient.
    gaps = [way.square().sum(-1).clamp(min=1e-12).sqrt() / max(1, n - 1) for way, n in sides]
    return torch.cat(gaps, dim=-1) * ((side - 1) / glimpses**0.5)
