"""Models that look before they classify: the paper's, and two baselines for it."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sparsewire.annotations import Float
from sparsewire.checks import check_choice, check_count, check_range, constant
from sparsewire.nn.frames import COUNTS, FRAMES, Bound, Frame, frame_points, start_numbers
from sparsewire.nn.glimpse import Glimpse
from sparsewire.nn.hyper import Mode
from sparsewire.nn.source_network import grid_for
from sparsewire_lab.attention.convnet import ConvNet

Head = Literal["mlp", "conv"]
HEADS: tuple[Head, ...] = get_args(Head)


class GlimpseClassifier(nn.Module):
    """The paper's attention model: what glimpses read is classified by two linear layers.

    Args:
        look: The glimpses.
        head: Options of `make_head`.

    Examples:
        >>> model = GlimpseClassifier(Glimpse(image=(1, 28, 28), size=6, glimpses=2))
        >>> model(torch.rand(3, 1, 28, 28)).shape
        torch.Size([3, 10])
    """

    def __init__(self, look: Glimpse, **head: Any) -> None:
        super().__init__()
        self.look = look
        self.head = make_head(look.layer.out_shape, **head)

    def forward(
        self, x: Float[Tensor, "b c h w"], mode: Mode | None = None
    ) -> Float[Tensor, "b n"]:
        """Return a score for each class; `mode` as in `HyperLayer.forward`."""
        return self.head(self.look(x, mode=mode))


class SpatialTransformer(nn.Module):
    """The dense way to look: a frame, chosen by the same network, read by interpolation.

    The last layer of the source starts at zero, so that training begins with a frame over `cover`
    of the image, upright and in the middle; without that it does not leave chance.

    Args:
        image: Channels, height and width.
        size: Side of what is read.
        frame: As in `Glimpse`; an affine one as in the paper on spatial transformers.
        bound: As in `Glimpse`, `"corners"` or `"none"`.
        cover: Share of the image's sides that the frame covers before training.
        source: Module that returns the numbers of a frame for an image; the paper's `ConvNet` if
            not given. If its last part is a linear layer, that starts at zero.
        head: Options of `make_head`.

    Attributes:
        on_points: As in `Glimpse`.

    Examples:
        >>> model = SpatialTransformer(image=(1, 28, 28), size=6)
        >>> model(torch.rand(3, 1, 28, 28)).shape, model.read(torch.rand(3, 1, 28, 28)).shape
        (torch.Size([3, 10]), torch.Size([3, 1, 6, 6]))
    """

    start: Tensor
    on_points: Callable[[Tensor], None] | None = None

    def __init__(
        self,
        image: tuple[int, int, int],
        size: int,
        *,
        frame: Frame = "affine",
        bound: Bound = "corners",
        cover: float = 0.8,
        source: nn.Module | None = None,
        **head: Any,
    ) -> None:
        super().__init__()
        channels = image[0]
        self.size = check_count("size", size, least=1)
        self.frame: Frame = check_choice("frame", frame, FRAMES)
        self.bound: Bound = check_choice("bound", bound, ("corners", "none"))
        self.source = _default_source(image, COUNTS[frame]) if source is None else source
        last = list(self.source.modules())[-1]
        if isinstance(last, nn.Linear):
            for parameter in last.parameters():
                nn.init.zeros_(parameter)
        self.register_buffer("start", start_numbers(frame, bound, cover), persistent=False)
        self.head = make_head((1, channels, size, size), **head)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b n"]:
        """Return a score for each class."""
        return self.head(self.read(x).unsqueeze(1))

    def read(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c k k"]:
        """Return what is in the frame, between pixels by bilinear interpolation."""
        # As grid_sample has it: right, down, from −1 to 1. Beyond the image is its border; cut off
        # here, where numbers that are none stay so.
        grid = 2 * self._points(x).clamp(0, 1).flip(-1) - 1
        with torch.autocast(x.device.type, enabled=False):
            return F.grid_sample(x, grid.to(x.dtype), align_corners=True)

    def points(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b 1 k k 2"]:
        """Return where it reads, (down, right) in pixels."""
        return (self._points(x) * _ends(x)).unsqueeze(1)

    def _points(self, x: Tensor) -> Tensor:
        numbers = self.start + self.source(x).to(self.start.dtype)
        points = frame_points(numbers, self.frame, self.bound, self.size, self.size)
        if self.on_points is not None:
            self.on_points(points.unsqueeze(1))
        return points


class ReinforceGlimpse(nn.Module):
    """The older way to look: glimpses of a fixed size, their places learned by REINFORCE.

    As in recurrent attention models, without the recurrence: the same network that chooses boxes
    for `Glimpse` chooses the centre of each glimpse. In training the centre is drawn from
    a normal distribution around that, and the log-probability of the draw has the gradient.
    What is read are pixels as they are, as many as the glimpse has.

    Args:
        image: Channels, height and width, each at least `size`.
        size: Side of a glimpse.
        glimpses: Number of glimpses.
        deviation: Standard deviation of a drawn centre, in shares of the image's sides.
        bounded: Whether a sigmoid maps the source's numbers into the image; if not, they are
            distances from the middle, as `Finder` returns them.
        source: Module that returns 2 numbers for each glimpse; the paper's `ConvNet` if not given.
        head: Options of `make_head`.

    Examples:
        >>> model = ReinforceGlimpse(image=(1, 28, 28), size=6, glimpses=2)
        >>> scores, log_probability = model(torch.rand(3, 1, 28, 28))
        >>> scores.shape, log_probability.shape
        (torch.Size([3, 10]), torch.Size([3]))
    """

    def __init__(
        self,
        image: tuple[int, int, int],
        size: int,
        glimpses: int = 1,
        *,
        deviation: float = 0.1,
        bounded: bool = True,
        source: nn.Module | None = None,
        **head: Any,
    ) -> None:
        super().__init__()
        channels, *sides = image
        self.size = check_count("size", size, least=1)
        if size > min(sides):
            raise ValueError(f"size must be at most {min(sides)}, the image's side; got {size}")
        self.glimpses = check_count("glimpses", glimpses, least=1)
        self.deviation = check_range("deviation", deviation, 1e-6, 1.0)
        self.bounded = bounded
        self.source = _default_source(image, 2 * glimpses) if source is None else source
        self.head = make_head((glimpses, channels, size, size), **head)

    def forward(
        self, x: Float[Tensor, "b c h w"], mode: Mode | None = None
    ) -> tuple[Float[Tensor, "b n"], Float[Tensor, " b"]]:
        """Return a score for each class, and the log-probability of where it looked.

        Args:
            x: The images.
            mode: `"sampled"`, as in training, or `"rounded"`, as in evaluation.
        """
        means = self._means(x)
        centres = means.detach()
        if mode == "sampled" or (mode is None and self.training):
            centres = centres + self.deviation * torch.randn_like(centres)
        away = (centres - means) / self.deviation
        norm = math.log(self.deviation * math.sqrt(2 * math.pi))
        log_probability = (-0.5 * away.square() - norm).sum((-2, -1))
        return self.head(self._read(x, self._places(x, centres))), log_probability

    def read(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b g c k k"]:
        """Return what it reads in evaluation."""
        return self._read(x, self._places(x, self._means(x)))

    def points(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b g k k 2"]:
        """Return where it reads in evaluation, (down, right) in pixels."""
        return self._places(x, self._means(x)).to(x.dtype)

    def _means(self, x: Tensor) -> Tensor:
        numbers = self.source(x).float().unflatten(-1, (self.glimpses, 2))
        return numbers.sigmoid() if self.bounded else numbers + 0.5

    def _places(self, x: Tensor, centres: Tensor) -> Tensor:
        """Pixels of windows around the centres, moved so that they are inside."""
        corners = (centres * _ends(x) - (self.size - 1) / 2).round()
        most = _ends(x) - (self.size - 1)
        corners = torch.minimum(corners.clamp(min=0), most).long()
        steps = torch.arange(self.size, device=x.device)
        inside = torch.stack(torch.meshgrid(steps, steps, indexing="ij"), dim=-1)
        return corners[..., None, None, :] + inside

    def _read(self, x: Tensor, places: Tensor) -> Tensor:
        flat = (places[..., 0] * x.shape[-1] + places[..., 1]).flatten(1)
        flat = flat.unsqueeze(1).expand(-1, x.shape[1], -1)
        read = x.flatten(2).gather(2, flat)
        return read.unflatten(2, (self.glimpses, self.size, self.size)).transpose(1, 2)


def make_head(
    shape: Sequence[int],
    classes: int = 10,
    hidden: int = 128,
    head: Head = "mlp",
    dropout: float = 0.0,
    width: int = 32,
) -> nn.Sequential:
    """Return what classifies glimpses.

    Args:
        shape: Of the glimpses of an image: glimpses, channels, rows, columns.
        classes: Number of classes.
        hidden: Width of the layer between.
        head: `"mlp"`, the paper's two linear layers, or `"conv"`: four convolutions before
            them, for which glimpses are channels, all normalised.
        dropout: Share of the hidden layer that is dropped in training.
        width: Channels of the first two convolutions; the others have twice as many.
    """
    check_choice("head", head, HEADS)
    check_range("dropout", dropout, 0.0, 1.0)
    check_count("width", width, least=1)
    glimpses, channels, rows, cols = shape
    parts, inputs = [], math.prod(shape)
    between: list[nn.Module] = [nn.ReLU()]
    if head == "conv":
        parts = [nn.Flatten(1, 2), *_convs(glimpses * channels, width), *_convs(width, 2 * width)]
        inputs = 2 * width * (rows // 4) * (cols // 4)
        if not inputs:
            raise ValueError(f"size must be at least 4 for a conv head; got {rows} × {cols}")
        between = [nn.BatchNorm1d(hidden), nn.ReLU()]
    if dropout:
        between.append(nn.Dropout(dropout))
    return nn.Sequential(
        *parts, nn.Flatten(), nn.Linear(inputs, hidden), *between, nn.Linear(hidden, classes)
    )


def _convs(before: int, after: int) -> list[nn.Module]:
    """Two convolutions and a pool.

    Without normalising, units fall silent while glimpses show nothing of use, and stay so.
    """
    parts: list[nn.Module] = []
    for inputs in (before, after):
        conv = nn.Conv2d(inputs, after, 3, padding=1, bias=False)
        parts += [conv, nn.BatchNorm2d(after), nn.ReLU()]
    return [*parts, nn.MaxPool2d(2)]


def _default_source(image: Sequence[int], outputs: int) -> ConvNet:
    return ConvNet(image[0], outputs, grid_for(image[1:]))


def _ends(x: Tensor) -> Tensor:
    """The largest row and column."""
    return constant([n - 1 for n in x.shape[-2:]], torch.float32, x.device)
