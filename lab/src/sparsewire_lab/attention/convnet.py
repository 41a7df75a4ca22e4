"""The paper's ConvNet with fused blocks: a source of glimpses, and a classifier."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from sparsewire.annotations import Float
from sparsewire.nn.source_network import LARGEST_GRID, ConvPair, SourceNetwork
from sparsewire_lab.kernels import conv_relu, pool_relu


class FusedPair(ConvPair):
    """A `ConvPair` whose bias, activation and pool are one pass over memory each, on a GPU."""

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d i j"]:
        """Return the features of each image."""
        x = conv_relu(x, self.first.weight, _bias(self.first))
        x = F.conv2d(x, self.second.weight, padding=1)
        return pool_relu(x, _bias(self.second), self.pool)


class ConvNet(SourceNetwork):
    """The source network of the attention experiment; with ten outputs, a classifier.

    Args:
        channels: As in `SourceNetwork`.
        outputs: As in `SourceNetwork`.
        grid: As in `SourceNetwork`.

    Examples:
        >>> import torch
        >>> ConvNet(channels=1, outputs=10, grid=(3, 3))(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    def __init__(
        self, channels: int, outputs: int, grid: Sequence[int] = (LARGEST_GRID, LARGEST_GRID)
    ) -> None:
        super().__init__(channels, outputs, grid, pair=FusedPair)


def _bias(conv: nn.Conv2d) -> Tensor:
    assert conv.bias is not None
    return conv.bias
