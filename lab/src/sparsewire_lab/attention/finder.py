"""A network that points at an object in an image: another source of glimpses than the paper's."""

import torch
from torch import Tensor, nn

from sparsewire.annotations import Float
from sparsewire.checks import check_count, check_range
from sparsewire.nn.source_network import REDUCTION, WIDTH, conv_features
from sparsewire_lab.attention.convnet import FusedPair


class Finder(nn.Module):
    """The convolutions of the paper's `ConvNet`, with a pointer in place of its linear layers.

    A softmax over the scores of all cells of the feature map gives weights. Glimpses go to the
    weighted mean position of the cells; the weighted mean of their features gives the size of each
    glimpse and its offset from there, in units of its box. An object is thus detected alike at any
    position, in images of any size, and a bias that all images share cannot move all boxes at once:
    scores count only relative to each other.

    It returns changes of boxes that cover `cover` of the image, for a `Glimpse` with
    `bound="none"`. Before training they are zero, and the convolutions are initialised after He et
    al., so that their features vary with the image.

    Args:
        channels: Channels of the image.
        glimpses: Number of glimpses, which all go to the same object.
        cover: Share of the image's sides that boxes cover before training, as in `Glimpse`. With
            None it returns only positions, (down, right) from the middle, of each glimpse.

    Examples:
        >>> find = Finder(channels=1, glimpses=2)
        >>> find(torch.rand(3, 1, 28, 28)).shape, find(torch.rand(3, 1, 60, 40)).shape
        (torch.Size([3, 8]), torch.Size([3, 8]))
    """

    def __init__(self, channels: int, glimpses: int = 1, *, cover: float | None = 0.8) -> None:
        super().__init__()
        check_count("channels", channels, least=1)
        self.glimpses = check_count("glimpses", glimpses, least=1)
        self.cover = None if cover is None else check_range("cover", cover, 1e-3, 1 - 1e-3)
        self.features = conv_features(channels, FusedPair)
        self.scores = nn.Conv2d(WIDTH, 1, 1, bias=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.boxes = nn.Linear(WIDTH, glimpses * (2 if cover is None else 4))
        for layer in self.features.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)  # pyright: ignore[reportArgumentType]
        for parameter in (self.scores.weight, self.boxes.weight, self.boxes.bias):
            nn.init.zeros_(parameter)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b n"]:
        """Return the boxes (top, left, bottom, right), or the positions, for each image."""
        if min(x.shape[-2:]) < REDUCTION:
            raise ValueError(
                f"x must have at least {REDUCTION} rows and columns; got {tuple(x.shape)}"
            )
        features = self.features(x)
        # Positions in an image need more digits than the half precision of autocast has.
        with torch.autocast(x.device.type, enabled=False):
            features = features.to(self.scores.weight.dtype)
            share = self.scores(features).flatten(2).softmax(-1)
            pointed = (share.transpose(1, 2) * self._places(x, features)).sum(-2)
            mean = (share * features.flatten(2)).sum(-1)
            # Divided, so that a step of Adam changes the sum over weights as much as the bias.
            changes = self.boxes(self.norm(mean) / WIDTH**0.5).unflatten(-1, (self.glimpses, -1))
            pointed = pointed.unsqueeze(1)
            if self.cover is None:
                return (pointed + changes).flatten(1)
            # Offsets scale with the box: one that shrinks comes closer, however far it was before.
            centre = pointed + changes[..., :2] * self.cover * torch.exp(changes[..., 2:])
            growth = self.cover / 2 * torch.expm1(changes[..., 2:])
            return torch.cat([centre - growth, centre + growth], dim=-1).flatten(1)

    @staticmethod
    def _places(x: Tensor, features: Tensor) -> Tensor:
        """Return the positions of cells from their middle, (down, right) in shares of the image."""
        sides = [
            (torch.arange(n, device=x.device, dtype=features.dtype) - (n - 1) / 2)
            * (REDUCTION / side)
            for n, side in zip(features.shape[-2:], x.shape[-2:], strict=True)
        ]
        return torch.stack(torch.meshgrid(*sides, indexing="ij"), dim=-1).flatten(0, 1)
