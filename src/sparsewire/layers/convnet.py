"""The paper's ConvNet: looks at an image and returns numbers."""

from collections.abc import Sequence

from torch import Tensor, nn

from sparsewire._typing import Float
from sparsewire.ops._checks import check_count


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

    def __init__(self, channels: int, outputs: int, grid: Sequence[int] = (12, 12)) -> None:
        super().__init__()
        check_count("channels", channels, least=1)
        check_count("outputs", outputs, least=1)
        rows, cols = (check_count("grid", n, least=1) for n in grid)
        self.features = nn.Sequential(
            *_pair(channels, 32),
            nn.MaxPool2d(4),
            *_pair(32, 64),
            nn.MaxPool2d(2),
            *_pair(64, 128),
            nn.AdaptiveMaxPool2d((rows, cols)),  # changes nothing where the grid fits
            nn.Flatten(),
        )
        self.head = nn.Sequential(
            nn.Linear(128 * rows * cols, 512),
            nn.ReLU(),
            nn.Linear(512, 512),
            nn.ReLU(),
            nn.Linear(512, outputs),
        )

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b n"]:
        """Return the numbers for each image."""
        return self.head(self.features(x))


def _pair(before: int, after: int) -> list[nn.Module]:
    return [
        nn.Conv2d(before, after, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(after, after, 3, padding=1),
        nn.ReLU(),
    ]
