"""The paper's networks, and the baselines that experiments are measured against."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparsewire._typing import Float
from sparsewire.layers.convnet import ConvNet
from sparsewire.layers.frames import frame_points, start_numbers
from sparsewire.layers.glimpse import Glimpse
from sparsewire.layers.hyper import Mode
from sparsewire.layers.sparse import SparseLayer
from sparsewire.ops import contract, rounded
from sparsewire.ops._checks import check_count


class ReinforceLayer(nn.Module):
    """The paper's baseline for `SparseLayer`: the same parameters, trained by REINFORCE.

    A pass draws one continuous index tuple from N(mean, variance) for each tuple, rounds it, and
    multiplies by the matrix that has the tuples' values there. The draw has no gradient; its
    log-probability has, and a loss is multiplied by that.

    Args:
        in_shape: Sizes of the input axes.
        out_shape: Sizes of the output axes.
        tuples: Number of continuous tuples.
        wirings: Draws for a batch, each for an equal share of it; at most one for each instance.
        values: What the values start from; drawn from N(0, 1) if not given.
        learn_values: Whether values are learned; their gradient is exact.
        seed: Seed of the initialisation.

    Examples:
        >>> layer = ReinforceLayer((8,), (8,), tuples=8, wirings=4)
        >>> y, log_probability = layer(torch.randn(32, 8))
        >>> y.shape, log_probability.shape
        (torch.Size([4, 8, 8]), torch.Size([4]))
    """

    def __init__(
        self,
        in_shape: tuple[int, ...],
        out_shape: tuple[int, ...],
        tuples: int,
        *,
        wirings: int = 1,
        values: float | None = None,
        learn_values: bool = True,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.wirings = check_count("wirings", wirings, least=1)
        self.sparse = SparseLayer(
            in_shape,
            out_shape,
            tuples,
            values=values,
            learn_values=learn_values,
            seed=seed,
            local_samples=0,  # it draws in its own way
            global_samples=0,
        )

    def forward(
        self, x: Float[Tensor, "b *x"]
    ) -> tuple[Float[Tensor, "w g *y"], Float[Tensor, " w"]]:
        """Return the outputs by draw, (w, b / w, *out_shape), and the draws' log-probabilities."""
        draws = max(1, min(self.wirings, len(x)))
        if len(x) % draws:
            raise ValueError(f"x must hold a multiple of {draws} instances; got {len(x)}")
        means, variances, values = self.sparse.wiring()
        with torch.no_grad():
            noise = torch.randn(draws, *means.shape, device=x.device, dtype=means.dtype)
            drawn = means + variances.sqrt() * noise
            outs = self.sparse.out_shape
            indices = rounded(drawn, (*outs, *x.shape[1:]))
        log_density = -0.5 * (
            (drawn - means).square() / variances + variances.log() + math.log(2 * math.pi)
        )
        grouped = x.reshape(draws, len(x) // draws, *x.shape[1:])
        y = contract(indices, values.expand(draws, -1), grouped, outs)
        return y, log_density.sum((-2, -1))


class GlimpseClassifier(nn.Module):
    """The paper's attention model: what glimpses read is classified by two linear layers.

    Args:
        look: The glimpses.
        classes: Number of classes.
        hidden: Width of the layer between.

    Examples:
        >>> model = GlimpseClassifier(Glimpse(image=(1, 28, 28), size=6, glimpses=2))
        >>> model(torch.rand(3, 1, 28, 28)).shape
        torch.Size([3, 10])
    """

    def __init__(self, look: Glimpse, classes: int = 10, hidden: int = 128) -> None:
        super().__init__()
        self.look = look
        self.head = _head(look.places_read, hidden, classes)

    def forward(
        self, x: Float[Tensor, "b c h w"], mode: Mode | None = None
    ) -> Float[Tensor, "b n"]:
        """Return a score for each class; `mode` as in `HyperLayer.forward`."""
        return self.head(self.look(x, mode=mode))


class SpatialTransformer(nn.Module):
    """The dense way to look: an affine frame, chosen by the same network, read by interpolation.

    The last layer of the source starts at zero, so that training begins with a frame over `cover`
    of the image, upright and in the middle; without that it does not leave chance.

    Args:
        image: Channels, height and width.
        size: Side of what is read.
        cover: Share of the image's sides that the frame covers before training.
        classes: Number of classes.
        hidden: Width of the layer between.
        source: Module that returns 6 numbers for an image; the paper's `ConvNet` if not given.

    Examples:
        >>> model = SpatialTransformer(image=(1, 28, 28), size=6)
        >>> model(torch.rand(3, 1, 28, 28)).shape, model.read(torch.rand(3, 1, 28, 28)).shape
        (torch.Size([3, 10]), torch.Size([3, 1, 6, 6]))
    """

    start: Tensor

    def __init__(
        self,
        image: tuple[int, int, int],
        size: int,
        *,
        cover: float = 0.8,
        classes: int = 10,
        hidden: int = 128,
        source: nn.Module | None = None,
    ) -> None:
        super().__init__()
        channels, *sides = image
        self.size = check_count("size", size, least=1)
        if source is None:
            source = ConvNet(channels, 6, [max(1, min(n // 8, 12)) for n in sides])
            for parameter in source.head[-1].parameters():
                nn.init.zeros_(parameter)
        self.source = source
        self.register_buffer("start", start_numbers("affine", "corners", cover), persistent=False)
        self.head = _head(channels * size * size, hidden, classes)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b n"]:
        """Return a score for each class."""
        return self.head(self.read(x))

    def read(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c k k"]:
        """Return what is in the frame, between pixels by bilinear interpolation."""
        numbers = self.start + self.source(x).to(self.start.dtype)
        points = frame_points(numbers, "affine", "corners", self.size, self.size)
        grid = 2 * points.flip(-1) - 1  # as grid_sample wants it: right and down, from −1 to 1
        return F.grid_sample(x, grid.to(x.dtype), align_corners=True)


def _head(inputs: int, hidden: int, classes: int) -> nn.Sequential:
    """The paper's: one layer of ReLU between."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes)
    )
