"""The frames of glimpses in training: the file that a run writes, and how frames are drawn."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Polygon

from sparsewire_lab.figures.arrays import (
    check_finite,
    check_images,
    check_integers,
    check_shapes,
    read_arrays,
)

# Those of Okabe and Ito's colours that are visible on black, and a grey; lines differ too.
_COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#CC79A7", "#D55E00", "#0072B2", "#A8A8A8")
_LINES = ("-", "-", "-", "-", (0, (2.5, 1)), (0, (2.5, 1)), (0, (2.5, 1)), (0, (2.5, 1)))
MARGIN = 0.015
"""Around an image, as a share of it."""
LARGE = 200
"""Canvases of more pixels on a side need larger panels."""


class GlimpseFrames(NamedTuple):
    """Frames at f steps of a run, on n tracked images; at the last, what was read in them.

    There are g glimpses of k × k points. All positions are in pixels, (down, right), with 0 the
    centre of the first.
    """

    step: np.ndarray
    """(f,) integers."""
    corners: np.ndarray
    """(f, n, g, 4, 2): top left, top right, bottom left, bottom right."""
    images: np.ndarray
    """(m, h, w) bytes: the tracked images, then mistakes."""
    labels: np.ndarray
    """(m,) integers."""
    predicted: np.ndarray
    """(m,) integers."""
    points: np.ndarray
    """(m, g, k, k, 2): the positions of the glimpses' points."""
    glimpses: np.ndarray
    """(m, g, k, k): what was read."""
    sampled: np.ndarray | None = None
    """(m, g, k·k, 2) integers: an index sampled for each point; None for a deterministic model."""

    @property
    def tracked(self) -> int:
        """Return the number of tracked images."""
        return self.corners.shape[1]

    @property
    def last_corners(self) -> np.ndarray:
        """Return the corners of the last frames, (m, g, 4, 2): the outer points of the grids."""
        return self.points[:, :, [0, 0, -1, -1], [0, -1, 0, -1]]


def read_frames(path: Path) -> GlimpseFrames:
    """Return the frames that a run left in a file; errors are those of `read_arrays`."""
    return read_arrays(path, GlimpseFrames, "glimpse frames", _check)


def draw_image(axis: Axes, image: np.ndarray) -> None:
    """Draw an image in greys, with a margin in which a line along its edge is visible."""
    axis.imshow(image, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    height, width = image.shape
    margin = 0.5 + MARGIN * width
    axis.set(xlim=(-margin, width - 1 + margin), ylim=(height - 1 + margin, -margin))
    axis.set_axis_off()


def draw_outlines(axis: Axes, corners: np.ndarray, width: float | None = None) -> list[Polygon]:
    """Draw the outline of each frame in its own colour and line; return them.

    Args:
        axis: Where to draw.
        corners: (g, 4, 2), as in `GlimpseFrames`.
        width: Width of the lines in points; None takes thinner ones for several frames.
    """
    width = width or (1.4 if len(corners) == 1 else 1.0)
    outlines = [
        Polygon(outline(four), fill=False, lw=width, **style)
        for four, style in zip(corners, styles_of(len(corners)), strict=True)
    ]
    for polygon in outlines:
        axis.add_patch(polygon)
    return outlines


def outline(corners: np.ndarray) -> np.ndarray:
    """Return four corners (down, right) as points (right, down) around the frame."""
    return corners[[0, 1, 3, 2], ::-1]


def styles_of(count: int) -> Iterator[dict[str, Any]]:
    """Yield colour and line of this number of frames."""
    for number in range(count):
        colour, line = _COLOURS[number % len(_COLOURS)], _LINES[number % len(_LINES)]
        yield {"edgecolor": colour, "linestyle": line}


def _check(frames: GlimpseFrames) -> None:
    """Refuse arrays that are not of one run."""
    check_images(frames.images, ("images", "height", "width"))
    for name, dimensions, words in (
        ("corners", 5, "(frames, tracked images, glimpses, 4, 2)"),
        ("glimpses", 4, "(images, glimpses, k, k)"),
    ):
        array = getattr(frames, name)
        if array.ndim != dimensions or 0 in array.shape:
            raise ValueError(f"its {name} must be of shape {words}; got {array.shape}")
    f, n, g = frames.corners.shape[:3]
    m, h, w = frames.images.shape
    k = frames.glimpses.shape[-1]
    arrays = {name: array for name, array in frames._asdict().items() if array is not None}
    shapes = {
        "step": (f,),
        "corners": (f, n, g, 4, 2),
        "images": (m, h, w),
        "labels": (m,),
        "predicted": (m,),
        "points": (m, g, k, k, 2),
        "glimpses": (m, g, k, k),
        "sampled": (m, g, k * k, 2),
    }
    reason = (
        f"its corners are of {frames.corners.shape}, its images of {frames.images.shape} and its "
        f"glimpses of {frames.glimpses.shape}"
    )
    check_shapes(arrays, shapes, reason)
    if m < n:
        raise ValueError(f"its images must be at least the {n} of its corners; got {m}")
    check_integers(arrays, {"step", "labels", "predicted", "sampled"} & arrays.keys())
    check_finite(arrays, ("corners", "points", "glimpses"))
