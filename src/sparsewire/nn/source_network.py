"""The default source of `Glimpse`: a plain convolutional network that maps an image to numbers."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparsewire.annotations import Float
from sparsewire.checks import check_count

LARGEST_GRID = 12
REDUCTION = 8  # the factor by which the pools reduce each side of an image
WIDTH = 128  # channels after the last convolution


class ConvPair(nn.Module):
    """Two 3 × 3 convolutions with ReLU, from `before` to `after` channels, and a max pool."""

    def __init__(self, before: int, after: int, pool: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, padding=1)
        self.second = nn.Conv2d(after, after, 3, padding=1)
        self.pool = pool

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d i j"]:
        """Return the features of each image."""
        x = self.second(F.relu(self.first(x)))
        # ReLU is monotone, so it commutes with the pool: applied after it, it has less to do.
        return F.relu(F.max_pool2d(x, self.pool) if self.pool > 1 else x)


class SourceNetwork(nn.Module):
    """Six convolutions and three linear layers, as in the paper's table "source architecture".

    Conv 32, 32, pool 4, conv 64, 64, pool 2, conv 128, 128, linear 512, 512, `outputs`, with ReLU
    in between, for images of `channels` channels.

    Args:
        grid: Rows and columns of the input of the first linear layer; the paper's 100 × 100 images
            give 12 × 12. Larger feature maps are pooled to this grid, so images of any size are
            accepted.
        pair: Class of the three pairs of convolutions.

    Examples:
        >>> net = SourceNetwork(channels=1, outputs=4, grid=(3, 3))
        >>> net(torch.zeros(2, 1, 28, 28)).shape, net(torch.zeros(2, 1, 60, 40)).shape
        (torch.Size([2, 4]), torch.Size([2, 4]))
    """

    def __init__(
        self,
        channels: int,
        outputs: int,
        grid: Sequence[int] = (LARGEST_GRID, LARGEST_GRID),
        *,
        pair: type[ConvPair] = ConvPair,
    ) -> None:
        super().__init__()
        check_count("channels", channels, least=1)
        check_count("outputs", outputs, least=1)
        rows, cols = self.grid = tuple(check_count("grid", n, least=1) for n in grid)
        self.features = conv_features(channels, pair)
        self.head = nn.Sequential(
            nn.Linear(WIDTH * rows * cols, 512),
            nn.ReLU(),
            nn.Linear(512, 512),
            nn.ReLU(),
            nn.Linear(512, outputs),
        )

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b n"]:
        """Return the numbers for each image."""
        if min(sides := tuple(x.shape[-2:])) < REDUCTION:
            raise ValueError(f"x must have at least {REDUCTION} rows and columns; got {sides}")
        features = self.features(x)
        if features.shape[-2:] != self.grid:
            features = F.adaptive_max_pool2d(features, self.grid)
        hidden = self.head[:-1](features.flatten(1))
        # Positions in an image need more digits than the half precision of autocast has.
        with torch.autocast(x.device.type, enabled=False):
            last = self.head[-1]
            return last(hidden.to(last.weight.dtype))


def conv_features(channels: int, pair: type[ConvPair] = ConvPair) -> nn.Sequential:
    """Return the six convolutions, which reduce an image by `REDUCTION` to `WIDTH` channels."""
    return nn.Sequential(pair(channels, 32, pool=4), pair(32, 64, pool=2), pair(64, WIDTH))


def grid_for(sides: Sequence[int | None]) -> list[int]:
    """Return the size of the feature map of an image, at most that of the paper's images."""
    return [LARGEST_GRID if n is None else max(1, min(n // REDUCTION, LARGEST_GRID)) for n in sides]
