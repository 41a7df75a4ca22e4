"""The wires of a matrix in training: panels, a matrix and an animation."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sparsewire_lab.figures.arrays import (
    check_finite,
    check_integers,
    check_shapes,
    nearest,
    read_arrays,
)
from sparsewire_lab.figures.films import check_film, film
from sparsewire_lab.figures.save import STYLE, blank

_WIRE, _SAMPLE = "#0072B2", "0.82"
_LEGEND = 0.5  # inches beneath the panels
_MOST_FRAMES = 120
# A dense matrix of more elements is more memory than a picture is worth.
_MOST_ELEMENTS = 2**24


class Frames(NamedTuple):
    """Wirings at f steps of a run: k tuples over r index axes, m integer tuples of one pass."""

    step: np.ndarray
    """(f,) integers."""
    means: np.ndarray
    """(f, k, r)."""
    variances: np.ndarray
    """(f, k, r)."""
    values: np.ndarray
    """(f, k)."""
    indices: np.ndarray
    """(f, m, r) integers, repeats among them."""
    shape: np.ndarray
    """(r,) integers: the sizes of the index axes."""


def read_wiring(path: Path) -> Frames:
    """Return the wirings that a run left in a file; errors are those of `read_arrays`."""
    return read_arrays(path, Frames, "wirings", _check)


def read_matrix(path: Path) -> Frames:
    """Return the wirings of a matrix that a run left in a file.

    Raises:
        ValueError: As `read_wiring`, or the wirings are of a tensor with other than 2 axes.
    """
    frames = read_wiring(path)
    if len(frames.shape) != 2:
        raise ValueError(
            f"{path} must hold wirings of a matrix to be drawn, with 2 index axes; "
            f"got {len(frames.shape)}"
        )
    return frames


@rc_context(STYLE)
def animate_wiring(frames: Frames, path: Path, frames_per_second: int = 8) -> Path:
    """Draw a GIF of the wires as they move, in a loop; return the path.

    Args:
        frames: The wirings of a matrix.
        path: The GIF.
        frames_per_second: From 1 to 50, the most that browsers show.
    """
    check_film(path, frames_per_second)
    figure = blank(5.6, _height(frames, 5.6) + _LEGEND)
    axis = figure.add_subplot()
    _add_legend(figure, ())

    def draw(number: int) -> None:
        axis.clear()
        draw_wires(axis, frames, number, 4.6)

    return film(figure, draw, len(frames.step), path, frames_per_second, _MOST_FRAMES)


def rounded_matrix(frames: Frames, number: int = -1) -> np.ndarray:
    """Return the dense matrix of a frame: every value at its nearest index, summed."""
    if np.prod(frames.shape, dtype=float) > _MOST_ELEMENTS:
        raise ValueError(
            f"a matrix must have at most {_MOST_ELEMENTS:,} elements to be drawn; got shape "
            f"{tuple(frames.shape.tolist())}"
        )
    places = np.rint(frames.means[number]).astype(int).clip(0, frames.shape - 1)
    matrix = np.zeros(frames.shape, dtype=np.float32)
    np.add.at(matrix, tuple(places.T), frames.values[number])
    return matrix


@rc_context(STYLE)
def wiring_figure(frames: Frames, steps: Sequence[int]) -> Figure:
    """Return the wires at some steps of a run, up to three panels in a row.

    Args:
        frames: The wirings of a matrix.
        steps: The steps; the nearest frame of each is taken, and none twice.
    """
    chosen = nearest(frames.step, steps)
    columns = 2 if len(chosen) == 4 else min(len(chosen), 3)
    rows = -(-len(chosen) // columns)
    side = 8.0 / columns if columns > 1 else 5.6
    below = _LEGEND if rows * columns == len(chosen) else 0.0
    figure = blank(side * columns, _height(frames, side) * rows + below)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for place, (axis, number) in enumerate(zip(axes, chosen, strict=False)):
        draw_wires(axis, frames, number, 0.75 * side)
        if place % columns:
            axis.set_ylabel("")  # the first panel of the row has it
    _add_legend(figure, axes[len(chosen) :].tolist())
    return figure


@rc_context(STYLE)
def matrix_figure(frames: Frames) -> Figure:
    """Return the wires before and after training, and the rounded matrix."""
    matrix = rounded_matrix(frames)
    limit = float(np.abs(matrix).max()) or 1.0
    figure = blank(8.6, _height(frames, 2.7) + _LEGEND)
    before, after, last = figure.subplots(1, 3)
    draw_wires(before, frames, 0, 2.2)
    draw_wires(after, frames, -1, 2.2)
    before.set_title("before training")
    after.set_title(f"after {after.get_title()}")
    after.set_ylabel("")
    image = last.imshow(matrix, cmap="RdBu", vmin=-limit, vmax=limit, interpolation="nearest")
    last.set(title="the rounded matrix", xlabel="input index", anchor="N")
    scale = {"shrink": 0.75, "label": "weight", "ticks": [-limit, 0, limit], "panchor": False}
    figure.colorbar(image, ax=last, **scale)
    _add_legend(figure, ())
    return figure


def draw_wires(axis: Axes, frames: Frames, number: int, inches: float) -> None:
    """Draw means as points in an ellipse of one standard deviation, samples as diamonds behind.

    Args:
        axis: Where to draw.
        frames: The wirings of a matrix.
        number: Which of them.
        inches: About how wide the panel is, for markers that fit between its indices.
    """
    rows, cols = frames.shape.tolist()
    cell = 72 * inches / max(rows, cols)
    spots = np.unique(frames.indices[number], axis=0)
    means, sds = frames.means[number], np.sqrt(frames.variances[number])
    diamond, dot = min(max(0.55 * cell, 0.8), 9.0), min(max(0.8 * cell, 1.5), 7.0)
    axis.scatter(*spots.T[::-1], marker="D", s=diamond**2, color=_SAMPLE, linewidths=0)
    place = {"units": "xy", "offsets": means[:, ::-1], "offset_transform": axis.transData}
    style = {"facecolors": _WIRE, "alpha": 0.13, "linewidths": 0, "zorder": 2}
    sizes = 2 * sds[:, 1], 2 * sds[:, 0], np.zeros(len(sds))
    axis.add_collection(EllipseCollection(*sizes, **place, **style))
    axis.scatter(*means.T[::-1], s=dot**2, color=_WIRE, linewidths=0, zorder=3)
    step = int(frames.step[number])
    axis.set(title=f"{step:,} batch{'' if step == 1 else 'es'}", aspect="equal")
    # At the top of its cell, where the layout expects the title.
    axis.set(xlabel="input index", ylabel="output index", anchor="N")
    axis.set(xlim=(-0.5, cols - 0.5), ylim=(rows - 0.5, -0.5))


def _height(frames: Frames, width: float) -> float:
    """Return the height in inches of a panel of this width, with its labels."""
    rows, cols = frames.shape.tolist()
    return (width - 0.6) * min(max(rows / cols, 0.3), 1.0) + 0.95


def _add_legend(figure: Figure, empty: Sequence[Axes]) -> None:
    """Add the legend to the first empty panel, or below all panels."""
    disc = {"marker": "o", "markersize": 15, "markeredgewidth": 0, "color": _WIRE, "alpha": 0.25}
    styles = {
        "mean of a wire": {"marker": "o", "markersize": 6, "color": _WIRE},
        "its variance: a radius of\none standard deviation": disc,
        "integer tuples sampled\nin one pass": {"marker": "D", "markersize": 6, "color": _SAMPLE},
    }
    handles = [Line2D([], [], linestyle="none", label=name, **styles[name]) for name in styles]
    for axis in empty:
        axis.axis("off")
    if len(empty):
        empty[0].legend(handles=handles, loc="center", frameon=False, labelspacing=1.6)
    else:
        place = {"loc": "outside lower center", "ncols": 3, "columnspacing": 1.2}
        figure.legend(handles=handles, frameon=False, **place)


def _check(frames: Frames) -> None:
    """Refuse arrays that are not of one run."""
    if frames.means.ndim != 3 or 0 in frames.means.shape:
        raise ValueError(
            f"its means must be of shape (frames, tuples, axes); got {frames.means.shape}"
        )
    f, k, r = frames.means.shape
    m = frames.indices.shape[1] if frames.indices.ndim == 3 else "m"
    sizes = (f,), (f, k, r), (f, k, r), (f, k), (f, m, r), (r,)
    shapes = dict(zip(Frames._fields, sizes, strict=True))
    arrays = frames._asdict()
    check_shapes(arrays, shapes, f"its means are of {frames.means.shape}")
    check_integers(arrays, ("step", "indices", "shape"))
    check_finite(arrays, ("means", "variances", "values"))
    if (frames.variances < 0).any() or (frames.shape < 1).any():
        raise ValueError("its variances must not be negative and its sizes at least 1; got others")
