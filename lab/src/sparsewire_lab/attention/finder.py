"""A network that points at a thing in an image: a source for glimpses, beside the paper's."""

import torch
from torch import Tensor, nn

from sparsewire.annotations import Float
from sparsewire.checks import check_count, check_range
from sparsewire.nn.source_network import REDUCTION, WIDTH, conv_features
from sparsewire_lab.attention.convnet import FusedPair


class Finder(nn.Module):
    """The convolutions of the paper's `ConvNet`, with a pointer in place of its linear layers.

    Every cell of what the convolutions found gets a score, and counts by the softmax of the scores.
    The mean place of the cells is where glimpses go; their mean features tell how large each is,
    and how far it lies from there, in boxes. What finds a thing in one place thus finds it
    everywhere, in images of any size, and no wish that all images share can move all boxes at once:
    scores count only beside each other.

    It returns changes of boxes that cover `cover` of the image, for a `Glimpse` with
    `bound="none"`. Before training they are zero, and the convolutions are drawn after He et al.,
    so that what they find varies with the image.

    Args:
        channels: Channels of the image.
        glimpses: Number of glimpses, which all go to the same thing.
        cover: Share of the image's sides that boxes cover before training, as in `Glimpse`. With
            None it returns only places, how far down and right of the middle each glimpse lies.

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
        """Return the numbers of all boxes (top, left, bottom, right), or places, of each image."""
        if min(x.shape[-2:]) < REDUCTION:
            raise ValueError(
                f"x must have at least {REDUCTION} rows and columns; got {tuple(x.shape)}"
            )
        found = self.features(x)
        # Positions in an image need more digits than the half precision of autocast has.
        with torch.autocast(x.device.type, enabled=False):
            found = found.to(self.scores.weight.dtype)
            share = self.scores(found).flatten(2).softmax(-1)
            pointed = (share.transpose(1, 2) * self._places(x, found)).sum(-2)
            mean = (share * found.flatten(2)).sum(-1)
            # Divided, so that a step of Adam moves weights and bias alike.
            told = self.boxes(self.norm(mean) / WIDTH**0.5).unflatten(-1, (self.glimpses, -1))
            pointed = pointed.unsqueeze(1)
            if self.cover is None:
                return (pointed + told).flatten(1)
            # In boxes: one that becomes small comes closer, however far it went while it was large.
            centre = pointed + told[..., :2] * self.cover * torch.exp(told[..., 2:])
            growth = self.cover / 2 * torch.expm1(told[..., 2:])
            return torch.cat([centre - growth, centre + growth], dim=-1).flatten(1)

    @staticmethod
    def _places(x: Tensor, found: Tensor) -> Tensor:
        """How far the cells are from their middle, (down, right) in shares of the image."""
        sides = [
            (torch.arange(n, device=x.device, dtype=found.dtype) - (n - 1) / 2) * (REDUCTION / side)
            for n, side in zip(found.shape[-2:], x.shape[-2:], strict=True)
        ]
        return torch.stack(torch.meshgrid(*sides, indexing="ij"), dim=-1).flatten(0, 1)
