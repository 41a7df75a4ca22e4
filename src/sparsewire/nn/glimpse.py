"""Glimpse attention: a network chooses where in an image to look, and only that is read."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparsewire.annotations import Float
from sparsewire.checks import check_choice, check_count, check_open_shape
from sparsewire.nn.frames import (
    COUNTS,
    FRAMES,
    Bound,
    Frame,
    corners_of,
    frame_points,
    start_of_all,
)
from sparsewire.nn.frozen import FrozenLayer
from sparsewire.nn.hyper import HyperLayer, Mode
from sparsewire.nn.layout import fan_in
from sparsewire.nn.source_network import REDUCTION, SourceNetwork, grid_for
from sparsewire.nn.wiring import Wiring, reads_input

_REGION = 20  # the paper's, for 100 × 100 images


class Glimpse(nn.Module):
    """Small pictures cut out of an image, at places that a source network chooses.

    For every glimpse the source returns the numbers of a frame. The points of an even grid in that
    frame are the means of the tuples: each output reads one place of the image, in its own channel.
    All tuples of a glimpse share one variance and one value, which are learned. All glimpses
    together are one sparse tensor, sampled and read in one call.

    Args:
        image: Channels, height and width; `None` for sizes that may change between calls.
        size: Side of a glimpse, or its rows and columns.
        glimpses: Number of glimpses.
        source: Module that returns the numbers of all frames, (b, glimpses · numbers), for images
            (b, channels, height, width). If its `forward` takes no argument it returns
            (1, glimpses · numbers), for all images alike. If not given, a `SourceNetwork` with the
            layers of the paper, for images of at least 8 × 8 pixels.
        frame: `"box"` (4 numbers: two corners), `"affine"` (6) or `"quadrangle"` (8).
        bound: Where a sigmoid bounds the frame to the image: at its `"corners"`, with an even grid
            between them; at each of its `"points"`, as the paper words it; or `"none"`, for a
            source that returns positions. See `sparsewire.nn.frames.frame_points`.
        cover: Share of the image's sides that the frames cover before training, when the source
            returns zeros: most of it, so that there is something to see and to learn from. Several
            frames start a fraction of a grid step apart, and together see more than one.
        region: Sizes of the local region; 20 as in the paper, at most the image, if not given.
        **options: More of `HyperLayer`: `evaluation`, `window`, `variance_floor`, `density`, …

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
        bound: Bound = "corners",
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
        sides = tuple(size) if isinstance(size, Sequence) else (size, size)
        if len(sides) != 2:
            raise ValueError(f"size must be a side, or rows and columns; got {sides}")
        rows, cols = (check_count("size", n, least=1) for n in sides)
        self.size, self.glimpses = (rows, cols), check_count("glimpses", glimpses, least=1)
        known = [n for n in shape[1:] if n is not None]
        if region is None:
            region = min([_REGION, *known])
        channels = shape[0]
        check_choice("frame", frame, FRAMES)
        if source is None:
            if min(known, default=REDUCTION) < REDUCTION:
                raise ValueError(
                    f"image must have at least {REDUCTION} rows and columns for the default "
                    f"source; got {shape}. Pass a source= for smaller images"
                )
            source = SourceNetwork(channels, glimpses * COUNTS[frame], grid_for(shape[1:]))
        out_shape = (glimpses, channels, rows, cols)
        template = fan_in(out_shape, shape)
        template[:, 4] = template[:, 1]  # each output reads its own channel
        self.layer = HyperLayer(
            _FrameSource(source, frame, bound, cover, out_shape),
            in_shape=shape,
            out_shape=out_shape,
            template=template,
            edge="sigmoid" if bound == "points" else "clamp",
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
        """Return the glimpses of a batch of images, with the options of `HyperLayer.forward`."""
        return self.layer(x, mode=mode, generator=generator)

    def wiring(self, x: Float[Tensor, "*b c h w"]) -> Wiring:
        """Return the position of every point of every glimpse, with its variance and value."""
        return self.layer.wiring(x)

    def corners(self, x: Float[Tensor, "*b c h w"]) -> Float[Tensor, "*b g 4 2"]:
        """Return the corners of each frame in pixels: top left and right, bottom left and right."""
        return corners_of(self.points(x))

    def points(self, x: Float[Tensor, "*b c h w"]) -> Float[Tensor, "*b g k l 2"]:
        """Return where each glimpse reads, (down, right) in pixels, before rounding."""
        points = self.wiring(x).means.unflatten(-2, (self.glimpses, -1, *self.size))
        return points[..., 0, :, :, :]  # all channels look at the same places

    def freeze(self, in_shape: Sequence[int] | None = None) -> FrozenLayer:
        """Return the rounded glimpses as a fixed map, as `HyperLayer.freeze` does."""
        return self.layer.freeze(in_shape)

    @property
    def on_points(self) -> Callable[[Tensor], None] | None:
        """Called in every pass with the points of all glimpses, for a loss on them; or None.

        They have shape (*b, g, k, l, 2), are measured in shares of the image, and have a gradient.
        """
        return self.layer.source.on_points

    @on_points.setter
    def on_points(self, on_points: Callable[[Tensor], None] | None) -> None:
        self.layer.source.on_points = on_points

    @property
    def places_read(self) -> int:
        """How many numbers of an image all glimpses read together."""
        return math.prod(self.layer.out_shape)


class _FrameSource(nn.Module):
    """Turns the numbers of a source into raw means, with a variance and value for each glimpse."""

    start: Tensor
    on_points: Callable[[Tensor], None] | None = None

    def __init__(
        self, source: nn.Module, frame: Frame, bound: Bound, cover: float, shape: Sequence[int]
    ) -> None:
        super().__init__()
        self.source = source
        self.adaptive = reads_input(source)
        self.frame: Frame = frame
        self.bound: Bound = bound
        self.glimpses, self.channels, *self.size = shape
        start = start_of_all(frame, bound, cover, self.glimpses, *self.size)
        self.register_buffer("start", start, persistent=False)
        self.raw_variances = nn.Parameter(torch.zeros(self.glimpses))
        self.values = nn.Parameter(torch.ones(self.glimpses))

    def forward(
        self, x: Float[Tensor, "*b c h w"] | None = None
    ) -> tuple[Float[Tensor, "*b k 2"], Float[Tensor, "*b k"], Float[Tensor, "*b k"]]:
        """Return raw means, raw variances and values of all tuples."""
        if x is None:
            batch, numbers = (), self.source()
        else:
            batch = x.shape[:-3]
            numbers = self.source(x.flatten(0, -4) if batch else x.unsqueeze(0))
        count, each = math.prod(batch), COUNTS[self.frame]
        if tuple(numbers.shape) != (count, self.glimpses * each):
            raise ValueError(
                f"source must return (b, {self.glimpses * each}), {each} numbers for each of "
                f"{self.glimpses} glimpses, with b = {count}; got {tuple(numbers.shape)}"
            )
        # Positions need more digits than half precision has.
        numbers = numbers.to(torch.promote_types(numbers.dtype, self.start.dtype))
        numbers = self.start + numbers.view(*batch, self.glimpses, each)
        points = frame_points(numbers, self.frame, self.bound, *self.size)
        if self.on_points is not None:
            self.on_points(points.sigmoid() if self.bound == "points" else points)
        points = points.unsqueeze(-4).expand(*points.shape[:-3], self.channels, *points.shape[-3:])
        copies = self.channels * math.prod(self.size)
        expanded = (t.repeat_interleave(copies) for t in (self.raw_variances, self.values))
        variances, values = (t.expand(*batch, -1) for t in expanded)
        return points.flatten(len(batch), -2), variances, values
