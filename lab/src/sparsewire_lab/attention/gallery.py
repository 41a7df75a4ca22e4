"""Figures of glimpses: a gallery of what was read, a strip and an animation of the boxes."""

import math
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from sparsewire_lab.attention.frames import (
    LARGE,
    MARGIN,
    GlimpseFrames,
    draw_image,
    draw_outlines,
    outline,
    styles_of,
)
from sparsewire_lab.figures.arrays import nearest
from sparsewire_lab.figures.films import check_film, film
from sparsewire_lab.figures.save import STYLE, blank, tighten

_WIDTH = 8.0  # inches
_TITLE, _CAPTION = 0.2, 0.4  # inches above each row, and below all
_SPACE = 0.08  # between examples, as a share of an image
_GAP = 0.08  # between glimpses, as a share of one
_WRONG = "#C00000"
_ROWS, _PANELS = 4, 4  # images in a strip, and in an animation
_MOST_FRAMES = 60


@rc_context(STYLE)
def gallery_figure(frames: GlimpseFrames, count: int | None = None) -> Figure:
    """Return what the trained model read on tracked images and on mistakes.

    Args:
        frames: The frames of glimpses of a run.
        count: Number of images at most, up to a third of them mistakes; None takes 12, and 6 of
            large ones.
    """
    if count is not None and count < 1:
        raise ValueError(f"count must be at least 1; got {count}")
    large = max(frames.images.shape[1:]) > LARGE
    chosen = chosen_images(frames, count or (6 if large else 12))
    glimpses = frames.glimpses.shape[1]
    mosaic_width, mosaic_height = _mosaic_sides(glimpses)
    # Several boxes on one digit can be distinguished only when enlarged.
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
        _draw_answer(axes[0], frames, number, 72 * side)
        if glimpses > 1:
            _draw_enlarged(axes[1], frames, number, 72 * side)
        draw_mosaic(axes[-1], frames.glimpses[number])
    figure.supxlabel(_caption(frames), fontsize=9)
    return figure


def chosen_images(frames: GlimpseFrames, count: int) -> list[int]:
    """Return the numbers of tracked images, then of mistakes, at most a third of all."""
    mistakes = min(len(frames.images) - frames.tracked, count // 3)
    tracked = min(frames.tracked, count - mistakes)
    return [*range(tracked), *range(frames.tracked, frames.tracked + mistakes)]


def mosaic_shape(count: int) -> tuple[int, int]:
    """Return columns and rows for this number of glimpses, about twice as many rows as columns.

    Examples:
        >>> mosaic_shape(1), mosaic_shape(4), mosaic_shape(8)
        ((1, 1), (2, 2), (2, 4))
    """
    columns = math.ceil(count / math.ceil(math.sqrt(2 * count)))
    return columns, math.ceil(count / columns)


def _draw_answer(axis: Axes, frames: GlimpseFrames, number: int, points: float) -> None:
    """Draw an image with what was read of it, and truth and answer above.

    The panel is `points` points wide, so that dots are as large as pixels.
    """
    _draw_read(axis, frames, number, points / frames.images.shape[2])
    truth, answer = int(frames.labels[number]), int(frames.predicted[number])
    if truth == answer:
        axis.set_title(f"{truth} → {answer}", pad=3)
    else:
        words = f"{truth} → {answer}  ✗ wrong"
        axis.set_title(words, color=_WRONG, fontweight="bold", pad=3)


def _draw_enlarged(axis: Axes, frames: GlimpseFrames, number: int, points: float) -> None:
    """Draw the part of an image in which all boxes lie, as `_draw_answer` draws the whole."""
    corners = frames.last_corners[number].reshape(-1, 2)
    centre = (corners.min(0) + corners.max(0)) / 2
    half = max(0.56 * float((corners.max(0) - corners.min(0)).max()), 4.0)
    _draw_read(axis, frames, number, points / (2 * half))
    axis.set(xlim=(centre[1] - half, centre[1] + half), ylim=(centre[0] + half, centre[0] - half))


def _draw_read(axis: Axes, frames: GlimpseFrames, number: int, pixel: float) -> None:
    """Draw image, dots and outlines, where a pixel is `pixel` points wide."""
    grids = frames.points[number]
    places = grids.reshape(len(grids), -1, 2) if frames.sampled is None else frames.sampled[number]
    draw_image(axis, frames.images[number])
    size = min(max(0.55 * pixel, 0.5), 3.0) ** 2
    for spots, style in zip(places, styles_of(len(places)), strict=True):
        colour = style["edgecolor"]
        axis.scatter(spots[:, 1], spots[:, 0], s=size, color=colour, alpha=0.45, linewidths=0)
    draw_outlines(axis, frames.last_corners[number])


def _mosaic_sides(count: int) -> tuple[float, float]:
    """Return width and height of a mosaic, with its gaps, where a glimpse is 1 wide."""
    columns, rows = mosaic_shape(count)
    return columns * (1 + _GAP) - _GAP, rows * (1 + _GAP) - _GAP


def draw_mosaic(axis: Axes, glimpses: np.ndarray) -> None:
    """Draw glimpses side by side, each in a border like its box.

    Args:
        axis: The panel.
        glimpses: (g, k, k) what was read, in which 0 is black and 1 white.
    """
    _, rows = mosaic_shape(len(glimpses))
    for number, (glimpse, style) in enumerate(zip(glimpses, styles_of(len(glimpses)), strict=True)):
        # Column after column, so that a glimpse below another is the next.
        column, row = divmod(number, rows)
        left, top = column * (1 + _GAP), row * (1 + _GAP)
        greys = {"cmap": "gray", "vmin": 0, "vmax": 1, "interpolation": "nearest"}
        axis.imshow(glimpse, extent=(left, left + 1, top + 1, top), **greys)
        axis.add_patch(Rectangle((left, top), 1, 1, fill=False, lw=1.6, clip_on=False, **style))
    width, height = _mosaic_sides(len(glimpses))
    margin = MARGIN * height  # as around the image next to it
    axis.set(xlim=(-margin, width + margin), ylim=(height + margin, -margin))
    axis.set_axis_off()


def _caption(frames: GlimpseFrames) -> str:
    """Return what the figure shows, in words."""
    dots = "the points that are read" if frames.sampled is None else "one sample of the places read"
    if frames.glimpses.shape[1] == 1:
        return f"above: true → predicted digit; outline: the box; dots: {dots}; right: the glimpse"
    return (
        f"above: true → predicted digit; outlines: the boxes; dots: {dots}\n"
        "right: the same, enlarged; then the glimpses, each with the border of its box"
    )


@rc_context(STYLE)
def animate_boxes(frames: GlimpseFrames, path: Path, frames_per_second: int = 6) -> Path:
    """Draw a GIF of boxes as they move over tracked images, in a loop; return the path.

    Args:
        frames: The frames of glimpses of a run.
        path: The GIF.
        frames_per_second: From 1 to 50, the most that browsers show.
    """
    check_film(path, frames_per_second)
    count = min(frames.tracked, _PANELS)
    side = 6.9 / _PANELS
    figure = blank(max(side * count, 2.0), side + 0.3)
    tighten(figure)
    title = figure.suptitle(_step_words(frames, 0), fontsize=10)
    boxes = []
    for number, axis in enumerate(np.ravel(figure.subplots(1, count))):
        draw_image(axis, frames.images[number])
        boxes.append(draw_outlines(axis, frames.corners[0, number]))

    def draw(number: int) -> None:
        title.set_text(_step_words(frames, number))
        for outlines, corners in zip(boxes, frames.corners[number], strict=False):
            for box, four in zip(outlines, corners, strict=True):
                box.set_xy(outline(four))

    return film(figure, draw, len(frames.step), path, frames_per_second, _MOST_FRAMES)


def log_spaced(step: np.ndarray, count: int) -> list[int]:
    """Return the numbers of the first frame and of up to `count` − 1 more, evenly in log steps.

    Examples:
        >>> log_spaced(np.array([0, 10, 20, 30, 40, 50, 60, 70, 80]), 5)
        [0, 1, 2, 4, 8]
    """
    later = step[step > step[0]]
    if not len(later):
        return [0]
    goals = step[0] + np.geomspace(later[0] - step[0], later[-1] - step[0], count - 1)
    return nearest(step, [int(step[0]), *goals.round().astype(int).tolist()])


@rc_context(STYLE)
def boxes_figure(frames: GlimpseFrames) -> Figure:
    """Return boxes on tracked images at some steps of a run, a row for each image.

    The first column is the first step, the last the last; the steps between are spaced evenly in
    their logarithm.
    """
    large = max(frames.images.shape[1:]) > LARGE
    chosen = log_spaced(frames.step, 4 if large else 6)
    rows = min(frames.tracked, _ROWS)
    side = min(8.0 / len(chosen), 2.6)
    figure = blank(side * len(chosen), side * rows + 0.25)
    tighten(figure)
    panels = figure.subplots(rows, len(chosen), squeeze=False)
    for row, image in zip(range(rows), frames.images, strict=False):
        for column, number in enumerate(chosen):
            axis = panels[row, column]
            draw_image(axis, image)
            draw_outlines(axis, frames.corners[number, row])
            if row == 0:
                axis.set_title(_step_words(frames, number), pad=3)
    return figure


def _step_words(frames: GlimpseFrames, number: int) -> str:
    return f"step {int(frames.step[number]):,}"
