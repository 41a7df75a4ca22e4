"""Where an attention network looked: the file that a run leaves, and how a look is drawn."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Polygon

from sparsewire_lab.figures.arrays import check_integers, check_shapes, must_hold, read_arrays

# Okabe and Ito's colours as far as they are seen on black, and a grey; lines tell them apart too.
_COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#CC79A7", "#D55E00", "#0072B2", "#A8A8A8")
_LINES = ("-", "-", "-", "-", (0, (2.5, 1)), (0, (2.5, 1)), (0, (2.5, 1)), (0, (2.5, 1)))
MARGIN = 0.015
"""Around an image, as a share of it."""
LARGE = 200
"""Canvases of more pixels on a side need larger panels."""


class Looks(NamedTuple):
    """Looks at f steps of a run, on n watched images; and the last, on these and some mistakes.

    There are g glimpses of k × k points. All positions are in pixels, (down, right), 0 the centre
    of the first.
    """

    step: np.ndarray
    """(f,) integers."""
    corners: np.ndarray
    """(f, n, g, 4, 2): top left, top right, bottom left, bottom right."""
    images: np.ndarray
    """(m, h, w) bytes: the watched images, then mistakes."""
    labels: np.ndarray
    """(m,) integers."""
    predicted: np.ndarray
    """(m,) integers."""
    points: np.ndarray
    """(m, g, k, k, 2): where the glimpses' points are."""
    glimpses: np.ndarray
    """(m, g, k, k): what was read."""
    sampled: np.ndarray | None = None
    """(m, g, k·k, 2) integers: a place drawn for each point; None for a model that draws none."""

    @property
    def watched(self) -> int:
        """Return how many images are watched."""
        return self.corners.shape[1]


def read_looks(path: Path) -> Looks:
    """Return the looks that a run left in a file.

    Raises:
        ValueError: The file has not these arrays, or their shapes do not agree.
    """
    with must_hold(path, "looks"):
        looks = Looks(**read_arrays(path, Looks._fields, optional=("sampled",)))
        _check(looks)
    return looks


def draw_image(axis: Axes, image: np.ndarray) -> None:
    """Draw an image in greys, with a margin in which a line along its edge is seen."""
    axis.imshow(image, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    height, width = image.shape
    margin = 0.5 + MARGIN * width
    axis.set(xlim=(-margin, width - 1 + margin), ylim=(height - 1 + margin, -margin))
    axis.set_axis_off()


def draw_outlines(axis: Axes, corners: np.ndarray, width: float | None = None) -> list[Polygon]:
    """Draw the outline of each frame in its own colour and line; return them.

    Args:
        axis: Where to draw.
        corners: (g, 4, 2), as in `Looks`.
        width: Of the lines, in points; None takes thinner ones for many.
    """
    width = width or (1.4 if len(corners) == 1 else 1.0)
    outlines = [
        Polygon(outline(four), fill=False, lw=width, **look)
        for four, look in zip(corners, looks_of(len(corners)), strict=True)
    ]
    for polygon in outlines:
        axis.add_patch(polygon)
    return outlines


def outline(corners: np.ndarray) -> np.ndarray:
    """Return four corners (down, right) as points (right, down), in the order of a pen."""
    return corners[[0, 1, 3, 2], ::-1]


def looks_of(count: int) -> Iterator[dict[str, Any]]:
    """Give colour and line of so many frames."""
    for number in range(count):
        colour, line = _COLOURS[number % len(_COLOURS)], _LINES[number % len(_LINES)]
        yield {"edgecolor": colour, "linestyle": line}


def _check(looks: Looks) -> None:
    """Refuse arrays that are not of one run."""
    for name, dimensions, words in (
        ("corners", 5, "(frames, watched images, glimpses, 4, 2)"),
        ("images", 3, "(images, height, width)"),
        ("glimpses", 4, "(images, glimpses, k, k)"),
    ):
        array = getattr(looks, name)
        if array.ndim != dimensions or 0 in array.shape:
            raise ValueError(f"its {name} must be of shape {words}; got {array.shape}")
    f, n, g = looks.corners.shape[:3]
    m, h, w = looks.images.shape
    k = looks.glimpses.shape[-1]
    arrays = {name: array for name, array in looks._asdict().items() if array is not None}
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
        f"its corners are of {looks.corners.shape}, its images of {looks.images.shape} and its "
        f"glimpses of {looks.glimpses.shape}"
    )
    check_shapes(arrays, shapes, reason)
    if m < n:
        raise ValueError(f"its images must be at least the {n} of its corners; got {m}")
    if looks.images.dtype != np.uint8:
        raise ValueError(f"its images must be uint8; got {looks.images.dtype}")
    drawn = ("sampled",) if looks.sampled is not None else ()
    check_integers(arrays, ("step", "labels", "predicted", *drawn))
    for name in ("corners", "points", "glimpses"):
        if not np.isfinite(arrays[name]).all():
            raise ValueError(f"its {name} must be finite; got others")
