"""Glimpse attention: a network chooses where in an image to look, and only that is read."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparsewire.annotations import Float
from sparsewire.checks import check_choice, check_count, check_open_shape
from sparsewire.nn.frames import (
    COUNTS,
    FRAMES,
    SQUASHES,
    Frame,
    Squash,
    corners_of,
    frame_points,
    start_of_all,
)
from sparsewire.nn.hyper import HyperLayer, Mode
from sparsewire.nn.wiring import Wiring
from sparsewire_lab.attention.convnet import ConvNet, grid_for

_REGION = 20  # the paper's, for 100 × 100 images


class Glimpse(nn.Module):
    """Small pictures cut out of an image, at places that a source network chooses.

    For every glimpse the source gives the numbers of a frame. The points of an even grid in that
    frame are the means of the tuples: each output reads one place of the image, in its own channel.
    All tuples of a glimpse share one variance and one value, which are learned. The glimpses are
    one sparse tensor, drawn and read in one call.

    Args:
        image: Channels, height and width; `None` for sizes that may change between calls.
        size: Side of a glimpse, or its rows and columns.
        glimpses: Number of glimpses.
        source: Module that returns the numbers of all frames, (b, glimpses · numbers), for images
            (b, channels, height, width); the paper's `ConvNet` if not given.
        frame: `"box"` (4 numbers: two corners), `"affine"` (6) or `"quadrangle"` (8).
        squash: What is brought into the image: the `"corners"`, with an even grid between them;
            the `"points"`, as the paper words it; or `"none"`, for a source such as `Finder` that
            tells positions itself. See `sparsewire.nn.frames.frame_points`.
        cover: Share of the image's sides that the frames cover before training, when the source
            returns zeros: most of it, so that there is something to see and to learn from. Several
            start a part of a pixel apart, and together see more than one.
        local_samples: Integer tuples drawn around each point, the paper's a_l.
        global_samples: Integer tuples drawn from everywhere, the paper's a_g.
        region: Sizes of the local region; 20 as in the paper, cut to the image, if not given.
        **options: More of `HyperLayer`: `evaluation`, `window`, `variance_floor`, `density`, …

    Attributes:
        watch: Called in every pass with where the glimpses look, (*b, g, k, l, 2), in shares of
            the image and with their gradient: for a loss on that. None is called at first.

    Examples:
        >>> import sparsewire as sw
        >>> look = sw.Glimpse(image=(1, 28, 28), size=8, glimpses=2)
        >>> images = torch.rand(3, 1, 28, 28)
        >>> look(images).shape  # glimpses, channels, rows, columns
        torch.Size([3, 2, 1, 8, 8])
        >>> look.corners(images).shape  # of each glimpse: four corners, (down, right) in pixels
        torch.Size([3, 2, 4, 2])
    """

    def __init__(
        self,
        image: Sequence[int | None],
        size: int | Sequence[int],
        glimpses: int = 1,
        *,
        source: nn.Module | None = None,
        frame: Frame = "box",
        squash: Squash = "corners",
        cover: float = 0.8,
        local_samples: int = 32,
        global_samples: int = 16,
        region: int | Sequence[int] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        shape = check_open_shape("image", image)
        if len(shape) != 3 or shape[0] is None:
            raise ValueError(f"image must be (channels, height, width); got {tuple(image)}")
        sides = (size, size) if isinstance(size, int) else tuple(size)
        if len(sides) != 2:
            raise ValueError(f"size must be a side, or rows and columns; got {sides}")
        rows, cols = (check_count("size", n, least=1) for n in sides)
        check_count("glimpses", glimpses, least=1)
        if region is None:
            known = [n for n in shape[1:] if n is not None]
            region = min(_REGION, *known) if known else _REGION
        channels = shape[0]
        check_choice("frame", frame, FRAMES)
        if source is None:
            source = ConvNet(channels, glimpses * COUNTS[frame], grid_for(shape[1:]))
        self.size, self.glimpses = (rows, cols), glimpses
        places = torch.ones(glimpses, channels, rows, cols).nonzero()
        learned = torch.full((len(places), 2), -1)
        self.layer = HyperLayer(
            _Look(source, frame, check_choice("squash", squash, SQUASHES), cover, glimpses, sides),
            in_shape=shape,
            out_shape=(glimpses, channels, rows, cols),
            template=torch.cat([places, places[:, 1:2], learned], dim=1),
            edge="sigmoid" if squash == "points" else "clamp",
            local_samples=local_samples,
            global_samples=global_samples,
            region=region,
            **options,
        )

    def forward(
        self,
        x: Float[Tensor, "*b c h w"],
        *,
        mode: Mode | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*b g c k l"]:
        """Return the glimpses of a batch of images.

        Args:
            x: The images, any batch prefix.
            mode: As in `HyperLayer.forward`.
            generator: As in `HyperLayer.forward`.
        """
        return self.layer(x, mode=mode, generator=generator)

    def wiring(self, x: Float[Tensor, "*b c h w"]) -> Wiring:
        """Return where every point of every glimpse is, with variance and value."""
        return self.layer.wiring(x)

    def corners(self, x: Float[Tensor, "*b c h w"]) -> Float[Tensor, "*b g 4 2"]:
        """Return the corners of each frame in pixels: top left and right, bottom left and right."""
        return corners_of(self.points(x))

    def points(self, x: Float[Tensor, "*b c h w"]) -> Float[Tensor, "*b g k l 2"]:
        """Return where each glimpse reads, (down, right) in pixels, before rounding."""
        points = self.wiring(x).means.unflatten(-2, (self.glimpses, -1, *self.size))
        return points[..., 0, :, :, :]  # all channels look at the same places

    @property
    def watch(self) -> Callable[[Tensor], None] | None:
        """What is called with where the glimpses of a pass look."""
        return self._look.watch

    @watch.setter
    def watch(self, watch: Callable[[Tensor], None] | None) -> None:
        self._look.watch = watch

    @property
    def _look(self) -> "_Look":
        return self.layer.source  # pyright: ignore[reportReturnType]

    @property
    def places_read(self) -> int:
        """How many numbers of an image all glimpses read together."""
        return len(self.layer.layout.table)  # pyright: ignore[reportAttributeAccessIssue]


class _Look(nn.Module):
    """Turns the numbers of a source into raw means, with a variance and value for each glimpse."""

    adaptive = True
    start: Tensor
    watch: Callable[[Tensor], None] | None = None

    def __init__(
        self,
        source: nn.Module,
        frame: Frame,
        squash: Squash,
        cover: float,
        glimpses: int,
        size: Sequence[int],
    ) -> None:
        super().__init__()
        self.source = source
        self.frame: Frame = frame
        self.squash: Squash = squash
        self.glimpses, self.size = glimpses, tuple(size)
        start = start_of_all(frame, squash, cover, glimpses, *self.size)
        self.register_buffer("start", start, persistent=False)
        self.raw_variances = nn.Parameter(torch.zeros(glimpses))
        self.values = nn.Parameter(torch.ones(glimpses))

    def forward(
        self, x: Float[Tensor, "*b c h w"]
    ) -> tuple[Float[Tensor, "*b k 2"], Float[Tensor, "*b k"], Float[Tensor, "*b k"]]:
        """Return raw means, raw variances and values of all tuples."""
        *batch, channels, _, _ = x.shape
        numbers = self.source(x.flatten(0, len(batch) - 1) if batch else x.unsqueeze(0))
        expected = self.glimpses * COUNTS[self.frame]
        if numbers.dim() != 2 or numbers.shape[1] != expected:
            raise ValueError(
                f"source must return (b, {expected}), {COUNTS[self.frame]} numbers for each of "
                f"{self.glimpses} glimpses; got {tuple(numbers.shape)}"
            )
        # Positions need more digits than half precision has.
        numbers = numbers.to(torch.promote_types(numbers.dtype, self.start.dtype))
        numbers = self.start + numbers.view(*batch, self.glimpses, -1)
        points = frame_points(numbers, self.frame, self.squash, *self.size)
        if self.watch is not None:
            self.watch(points.sigmoid() if self.squash == "points" else points)
        points = points.unsqueeze(-4).expand(*points.shape[:-3], channels, *points.shape[-3:])
        count = channels * self.size[0] * self.size[1]
        each = (t.repeat_interleave(count) for t in (self.raw_variances, self.values))
        variances, values = (t.expand(*batch, -1) for t in each)
        return points.flatten(len(batch), -2), variances, values
