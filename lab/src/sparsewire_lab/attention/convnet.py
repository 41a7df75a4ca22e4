"""The paper's ConvNet: looks at an image and returns numbers."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparsewire.annotations import Float
from sparsewire.checks import check_count
from sparsewire_lab.kernels import conv_relu, pool_relu

_LARGEST = 12
REDUCED = 8  # by how much the pools reduce an image
WIDTH = 128  # channels of what the convolutions find


class ConvNet(nn.Module):
    """Six convolutions and three linear layers, as in the paper's table "source architecture".

    Conv 32, 32, pool 4, conv 64, 64, pool 2, conv 128, 128, linear 512, 512, `outputs`, with ReLU
    between. The source network of the attention experiment, and with ten outputs a classifier.

    Args:
        channels: Channels of the image.
        outputs: How many numbers it returns.
        grid: Rows and columns of what the first linear layer reads; the paper's 100 × 100 images
            give 12 × 12. Images that give more are pooled to that, so that every size is taken.

    Examples:
        >>> net = ConvNet(channels=1, outputs=4, grid=(3, 3))
        >>> net(torch.zeros(2, 1, 28, 28)).shape, net(torch.zeros(2, 1, 60, 40)).shape
        (torch.Size([2, 4]), torch.Size([2, 4]))
    """

    def __init__(
        self, channels: int, outputs: int, grid: Sequence[int] = (_LARGEST, _LARGEST)
    ) -> None:
        super().__init__()
        check_count("channels", channels, least=1)
        check_count("outputs", outputs, least=1)
        rows, cols = (check_count("grid", n, least=1) for n in grid)
        self.grid = (rows, cols)
        self.features = conv_features(channels)
        self.head = nn.Sequential(
            nn.Linear(WIDTH * rows * cols, 512),
            nn.ReLU(),
            nn.Linear(512, 512),
            nn.ReLU(),
            nn.Linear(512, outputs),
        )

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b n"]:
        """Return the numbers for each image."""
        found = self.features(x)
        if found.shape[-2:] != self.grid:
            found = F.adaptive_max_pool2d(found, self.grid)
        hidden = self.head[:-1](found.flatten(1))
        # Positions in an image need more digits than the half precision of autocast has.
        with torch.autocast(x.device.type, enabled=False):
            last = self.head[-1]
            return last(hidden.to(last.weight.dtype))


def conv_features(channels: int) -> nn.Sequential:
    """Return the six convolutions, which reduce an image by `REDUCED` to `WIDTH` channels."""
    return nn.Sequential(
        ConvPair(channels, 32, pool=4), ConvPair(32, 64, pool=2), ConvPair(64, WIDTH)
    )


def grid_for(sides: Sequence[int | None]) -> list[int]:
    """Return what the convolutions leave of an image, and no more than of the paper's."""
    return [_LARGEST if n is None else max(1, min(n // REDUCED, _LARGEST)) for n in sides]


class ConvPair(nn.Module):
    """Two 3 × 3 convolutions with ReLU, and a pool after the second.

    Args:
        before: Channels of the input.
        after: Channels of both convolutions.
        pool: Side of the squares of which the largest is kept.
    """

    def __init__(self, before: int, after: int, pool: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, padding=1)
        self.second = nn.Conv2d(after, after, 3, padding=1)
        self.pool = pool

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d i j"]:
        """Return what was found."""
        x = conv_relu(x, self.first.weight, _bias(self.first))
        x = F.conv2d(x, self.second.weight, padding=1)
        return pool_relu(x, _bias(self.second), self.pool)


def _bias(conv: nn.Conv2d) -> Tensor:
    assert conv.bias is not None
    return conv.bias
