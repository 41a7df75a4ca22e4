"""What an attention network looked at: images, the points that were read, and the glimpses."""

import math
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from sparsewire_lab.attention.looks import (
    LARGE,
    MARGIN,
    Looks,
    draw_image,
    draw_outlines,
    looks_of,
    read_looks,
)
from sparsewire_lab.figures.save import STYLE, blank, save, tighten

_WIDTH = 8.0  # inches
_TITLE, _CAPTION = 0.2, 0.4  # inches above each row, and below all
_SPACE = 0.08  # between examples, as a share of an image
_GAP = 0.08  # between glimpses, as a share of one
_RIGHT, _WRONG = "black", "#C00000"


def draw_glimpses(looks_path: Path, path: Path, count: int | None = None) -> Path:
    """Draw what the finished model looked at, on watched images and on mistakes; return the path.

    Args:
        looks_path: A file of looks.
        path: The picture, of any kind that Matplotlib writes.
        count: How many images at most, up to a third of them mistakes; None takes 12, and 6 of
            large ones.
    """
    if count is not None and count < 1:
        raise ValueError(f"count must be at least 1; got {count}")
    return save(gallery_figure(read_looks(looks_path), count), path)


@rc_context(STYLE)
def gallery_figure(looks: Looks, count: int | None = None) -> Figure:
    """Return the figure of `draw_glimpses`."""
    large = max(looks.images.shape[1:]) > LARGE
    chosen = chosen_images(looks, count or (6 if large else 12))
    glimpses = looks.glimpses.shape[1]
    mosaic_width, mosaic_height = _mosaic_sides(glimpses)
    # Several boxes on one digit are told apart only when they are enlarged.
    ratios = [1.0, *([1.0] if glimpses > 1 else []), mosaic_width / mosaic_height]
    across = min(2 if large or glimpses > 1 else 3, len(chosen))
    panels = [*ratios, _SPACE] * (across - 1) + ratios
    side = min(_WIDTH / sum(panels), 2.0)
    down = math.ceil(len(chosen) / across)
    figure = blank(side * sum(panels), (side + _TITLE) * down + _CAPTION)
    tighten(figure)
    grid = figure.add_gridspec(down, len(panels), width_ratios=panels)
    for place, number in enumerate(chosen):
        row, column = divmod(place, across)
        first = column * (len(ratios) + 1)
        axes = [figure.add_subplot(grid[row, first + i]) for i in range(len(ratios))]
        draw_look(axes[0], looks, number, 72 * side)
        if glimpses > 1:
            draw_enlarged(axes[1], looks, number, 72 * side)
        draw_mosaic(axes[-1], looks.glimpses[number])
    figure.supxlabel(_caption(looks), fontsize=9)
    return figure


def chosen_images(looks: Looks, count: int) -> list[int]:
    """Return the numbers of watched images, then of mistakes, at most a third of all."""
    mistakes = min(len(looks.images) - looks.watched, count // 3)
    watched = min(looks.watched, count - mistakes)
    return [*range(watched), *range(looks.watched, looks.watched + mistakes)]


def mosaic_shape(count: int) -> tuple[int, int]:
    """Return columns and rows for so many glimpses, about twice as many rows as columns.

    Examples:
        >>> mosaic_shape(1), mosaic_shape(4), mosaic_shape(8)
        ((1, 1), (2, 2), (2, 4))
    """
    columns = math.ceil(count / math.ceil(math.sqrt(2 * count)))
    return columns, math.ceil(count / columns)


def draw_look(axis: Axes, looks: Looks, number: int, points: float) -> None:
    """Draw an image with what was read of it, and the truth and the answer above.

    Args:
        axis: Where to draw.
        looks: The looks of a run.
        number: Which image.
        points: About how wide the panel is, in points, for dots as large as pixels.
    """
    _draw_read(axis, looks, number, points / looks.images.shape[2])
    truth, answer = int(looks.labels[number]), int(looks.predicted[number])
    right = truth == answer
    axis.set_title(
        f"{truth} → {answer}" if right else f"{truth} → {answer}  ✗ wrong",
        color=_RIGHT if right else _WRONG,
        fontweight="normal" if right else "bold",
        pad=3,
    )


def draw_enlarged(axis: Axes, looks: Looks, number: int, points: float) -> None:
    """Draw the same, but only the part in which all boxes are; the arguments are the same."""
    corners = _corners(looks, number).reshape(-1, 2)
    centre = (corners.min(0) + corners.max(0)) / 2
    half = max(0.56 * float((corners.max(0) - corners.min(0)).max()), 4.0)
    _draw_read(axis, looks, number, points / (2 * half))
    axis.set(xlim=(centre[1] - half, centre[1] + half), ylim=(centre[0] + half, centre[0] - half))


def _draw_read(axis: Axes, looks: Looks, number: int, pixel: float) -> None:
    """Image, dots and outlines, where a pixel is so many points wide."""
    grids = looks.points[number]
    places = grids.reshape(len(grids), -1, 2) if looks.sampled is None else looks.sampled[number]
    draw_image(axis, looks.images[number])
    size = min(max(0.55 * pixel, 0.5), 3.0) ** 2
    for spots, look in zip(places, looks_of(len(places)), strict=True):
        colour = look["edgecolor"]
        axis.scatter(spots[:, 1], spots[:, 0], s=size, color=colour, alpha=0.45, linewidths=0)
    draw_outlines(axis, _corners(looks, number))


def _corners(looks: Looks, number: int) -> np.ndarray:
    """The outer points of the grids, which are the corners of the frames."""
    return looks.points[number][:, [0, 0, -1, -1], [0, -1, 0, -1]]


def _mosaic_sides(count: int) -> tuple[float, float]:
    """Width and height of a mosaic, with its gaps, where a glimpse is 1 wide."""
    columns, rows = mosaic_shape(count)
    return columns * (1 + _GAP) - _GAP, rows * (1 + _GAP) - _GAP


def draw_mosaic(axis: Axes, glimpses: np.ndarray) -> None:
    """Draw glimpses side by side, each in a border like its box.

    Args:
        axis: Where to draw.
        glimpses: (g, k, k) what was read, in which 0 is black and 1 white.
    """
    _, rows = mosaic_shape(len(glimpses))
    for number, (glimpse, look) in enumerate(zip(glimpses, looks_of(len(glimpses)), strict=True)):
        # Column after column, so that a glimpse below another is the next.
        column, row = divmod(number, rows)
        left, top = column * (1 + _GAP), row * (1 + _GAP)
        axis.imshow(
            glimpse,
            cmap="gray",
            vmin=0,
            vmax=1,
            interpolation="nearest",
            extent=(left, left + 1, top + 1, top),
        )
        axis.add_patch(Rectangle((left, top), 1, 1, fill=False, lw=1.6, clip_on=False, **look))
    width, height = _mosaic_sides(len(glimpses))
    margin = MARGIN * height  # as around the image beside it
    axis.set(xlim=(-margin, width + margin), ylim=(height + margin, -margin))
    axis.set_axis_off()


def _caption(looks: Looks) -> str:
    """What is seen, in words."""
    dots = "the points that are read" if looks.sampled is None else "one draw of the places read"
    if looks.glimpses.shape[1] == 1:
        return f"above: true → predicted digit; outline: the box; dots: {dots}; beside: the glimpse"
    return (
        f"above: true → predicted digit; outlines: the boxes; dots: {dots}\n"
        "beside: the same, enlarged; then the glimpses, each with the border of its box"
    )
