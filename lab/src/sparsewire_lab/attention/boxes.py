"""The boxes of an attention network while they learn where to look: a strip and an animation."""

from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from sparsewire_lab.attention.looks import (
    LARGE,
    Looks,
    draw_image,
    draw_outlines,
    outline,
    read_looks,
)
from sparsewire_lab.figures.arrays import nearest
from sparsewire_lab.figures.films import check_film, film
from sparsewire_lab.figures.save import STYLE, blank, save, tighten

_ROWS, _PANELS = 4, 4  # images in a strip, and in an animation
_MOST_FRAMES = 60


def draw_boxes(looks_path: Path, path: Path) -> Path:
    """Draw boxes on watched images at some steps of a run; return the path.

    A row for each image. The first column is the first step, the last the last, those between are
    as many times later as the one before them.

    Args:
        looks_path: A file of looks.
        path: The picture, of any kind that Matplotlib writes.
    """
    return save(boxes_figure(read_looks(looks_path)), path)


@rc_context(STYLE)
def animate_boxes(looks_path: Path, path: Path, frames_per_second: int = 6) -> Path:
    """Draw a GIF of boxes as they move over watched images, without end; return the path.

    Args:
        looks_path: A file of looks.
        path: The GIF.
        frames_per_second: From 1 to 50, the most that browsers show.
    """
    check_film(path, frames_per_second)
    looks = read_looks(looks_path)
    count = min(looks.watched, _PANELS)
    side = 6.9 / _PANELS
    figure = blank(max(side * count, 2.0), side + 0.3)
    tighten(figure)
    title = figure.suptitle(_step_words(looks, 0), fontsize=10)
    boxes = []
    for axis, image, corners in zip(
        np.ravel(figure.subplots(1, count)), looks.images, looks.corners[0], strict=False
    ):
        draw_image(axis, image)
        boxes.append(draw_outlines(axis, corners))

    def draw(number: int) -> None:
        title.set_text(_step_words(looks, number))
        for outlines, corners in zip(boxes, looks.corners[number], strict=False):
            for box, four in zip(outlines, corners, strict=True):
                box.set_xy(outline(four))

    return film(figure, draw, len(looks.step), path, frames_per_second, _MOST_FRAMES)


def spread_frames(step: np.ndarray, count: int) -> list[int]:
    """Return the numbers of the first frame and of up to `count` − 1 more, evenly in log steps.

    Examples:
        >>> spread_frames(np.array([0, 10, 20, 30, 40, 50, 60, 70, 80]), 5)
        [0, 1, 2, 4, 8]
    """
    later = step[step > step[0]]
    if not len(later):
        return [0]
    goals = step[0] + np.geomspace(later[0] - step[0], later[-1] - step[0], count - 1)
    return nearest(step, [int(step[0]), *goals.round().astype(int).tolist()])


@rc_context(STYLE)
def boxes_figure(looks: Looks) -> Figure:
    """Return the figure of `draw_boxes`."""
    large = max(looks.images.shape[1:]) > LARGE
    chosen = spread_frames(looks.step, 4 if large else 6)
    rows = min(looks.watched, _ROWS)
    side = min(8.0 / len(chosen), 2.6)
    figure = blank(side * len(chosen), side * rows + 0.25)
    tighten(figure)
    panels = figure.subplots(rows, len(chosen), squeeze=False)
    for row, image in zip(range(rows), looks.images, strict=False):
        for column, number in enumerate(chosen):
            axis = panels[row, column]
            draw_image(axis, image)
            draw_outlines(axis, looks.corners[number, row])
            if row == 0:
                axis.set_title(_step_words(looks, number), pad=3)
    return figure


def _step_words(looks: Looks, number: int) -> str:
    return f"step {int(looks.step[number]):,}"
