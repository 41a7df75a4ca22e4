"""Figures of keys: keys against their numbers, and a set as quicksort moves it by them."""

import math
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sparsewire_lab.figures.arrays import nearest
from sparsewire_lab.figures.save import STYLE, blank
from sparsewire_lab.sorting.keys_file import Keys, misplaced, sort_of, spearman

_POINTS = "#0072B2"
# The layout of steps, in inches.
_WIDTH = 8.0
_LABELS, _MIDDLE, _MARGIN = 0.85, 0.2, 0.08
_SLOT = (_WIDTH - _LABELS - _MIDDLE - _MARGIN) / 2  # of each side
_HEAD, _TITLE, _NUMBERS, _FOOT = 0.3, 0.3, 0.22, 0.45
_TALLEST = 8.6
_LARGEST_DIGIT = 0.45

_SMALLEST, _LARGEST = 6.0, 8.0  # points, of the numbers below columns
_MOST_ABREAST = 24  # digits of a side; of more, those of a number are below each other
_GAP = 0.25  # between rows, as a share of a digit
_CUT, _WRONG = "#E69F00", "#C00000"
_HEADS = ("the set, sorted level by level ↓", "the right order, sent back ↑")


class Layout(NamedTuple):
    """The sizes of the figure's parts; lengths are in inches."""

    numbers: int
    """Columns of each side."""
    high: int
    """Digits above each other in a row."""
    wide: int
    """Digits side by side in a column."""
    levels: int
    digit: float
    side: float
    """The width of a side."""
    rows: float
    """The height of all levels."""
    letters: float
    """The size of the numbers below their columns, in points; 0 if they would be too small."""
    block: float
    """The height of all that belongs to one step of training."""


@rc_context(STYLE)
def keys_figure(keys: Keys) -> Figure:
    """Return keys of held-out numbers against the numbers, at three steps.

    The first, the last, and one between them in log steps. The title gives Spearman's correlation
    of their ranks: it is 1 if sorting by the keys puts all these numbers in order.
    """
    chosen = three_frames(keys.step)
    figure = blank(8.0 if len(chosen) > 1 else 4.0, 3.1)
    panels = np.ravel(figure.subplots(1, len(chosen), squeeze=False))
    for axis, number in zip(panels, chosen, strict=True):
        _draw_keys(axis, keys, number)
    panels[0].set_ylabel("key that the network gives it")
    figure.supxlabel(f"true value of each of {len(keys.values)} held-out numbers", fontsize=9)
    return figure


def three_frames(step: np.ndarray) -> list[int]:
    """Return the numbers of the first frame, one between in log steps, and the last.

    Examples:
        >>> three_frames(np.array([0, 10, 20, 30, 40, 50, 60, 70, 90]))
        [0, 3, 8]
    """
    later = step[step > step[0]] - step[0]
    if not len(later):
        return [0]
    between = step[0] + math.sqrt(float(later[0]) * float(later[-1]))
    return nearest(step, [int(step[0]), round(between), int(step[-1])])


def _draw_keys(axis: Axes, keys: Keys, number: int) -> None:
    """Draw a point for each number; the scale of keys is that of their step."""
    shown = keys.keys[number]
    axis.scatter(keys.values, shown, s=11, color=_POINTS, alpha=0.55, linewidths=0)
    rank = spearman(keys.values, shown)
    words = f"{rank:.3f}" if math.isfinite(rank) else "unknown: all keys are equal"
    axis.set_title(f"step {int(keys.step[number]):,}\nSpearman's ρ {words}")
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.locator_params(axis="x", nbins=5, integer=True)
    axis.grid(True, alpha=0.25)


@rc_context(STYLE)
def steps_figure(keys: Keys) -> Figure:
    """Return how a set is sorted by its keys, early and late in training.

    On the left the pictures as they come and after each half-permutation; on the right those of
    the right order, sent back through the transposes. The paper's intermediate loss compares the
    two, level by level. Numbers below are the order of the keys, in red where it is wrong.

    Args:
        keys: The keys of a run whose method sorts step by step.
    """
    levels, n, places = sort_of(keys, 0).values.shape[:3]
    layout = _layout(n, places, levels)
    frames = three_frames(keys.step)
    most = max(int(_TALLEST / layout.block), 2)
    frames = [frames[0], *frames[len(frames) - most + 1 :]] if len(frames) > most else frames
    height = _HEAD + layout.block * len(frames) + _FOOT
    figure = blank(_WIDTH, height)
    figure.set_layout_engine("none")
    starts = [_LABELS, _LABELS + _SLOT + _MIDDLE]
    for start, words in zip(starts, _HEADS, strict=True):
        figure.text(start / _WIDTH, 1 - 0.6 * _HEAD / height, words, va="center", fontsize=10)
    for place, frame in enumerate(frames):
        top = height - _HEAD - place * layout.block - _TITLE
        y = (top + 0.3 * _TITLE) / height
        figure.text(_MARGIN / _WIDTH, y, _title(keys, frame), va="center", fontweight="bold")
        for start, pictures in zip(starts, sort_of(keys, frame), strict=True):
            corner = start / _WIDTH, (top - layout.rows) / height
            axis = figure.add_axes((*corner, layout.side / _WIDTH, layout.rows / height))
            _draw_rows(axis, pictures, layout)
        if layout.letters:
            _write_numbers(figure.axes[-2:], keys, frame, layout.letters)
        _name_levels(figure.axes[-2], layout)
    figure.text(0.5, 0.4 * _FOOT / height, _caption(layout), ha="center", va="center")
    return figure


def _layout(n: int, places: int, levels: int) -> Layout:
    stacked = n * places > _MOST_ABREAST
    high, wide = (places, 1) if stacked else (1, places)
    digit = min(_SLOT / (n * wide), _LARGEST_DIGIT)
    rows = levels * (high + _GAP) * digit
    letters = min(72 * digit / (0.83 * high), _LARGEST)
    letters = letters if letters >= _SMALLEST else 0.0
    block = _TITLE + rows + (_NUMBERS if letters else 0.0)
    return Layout(n, high, wide, levels, digit, n * wide * digit, rows, letters, block)


def _draw_rows(axis: Axes, pictures: np.ndarray, layout: Layout) -> None:
    """Draw the pictures of each level, with a line where a bucket was cut.

    The panel has one unit for each digit. Pictures are (levels, n, places, height, width), 0 to 1.
    """
    across, pitch = layout.numbers * layout.wide, layout.high + _GAP
    axis.set(xlim=(0, across), ylim=(layout.levels * pitch, 0))
    axis.set_axis_off()
    for level, row in enumerate(pictures):
        top, bottom = level * pitch, level * pitch + layout.high
        # Digits of a number below each other are one tall picture.
        joined = np.concatenate(row.reshape(-1, layout.high * row.shape[2], row.shape[3]), axis=1)
        style = {"cmap": "gray", "vmin": 0, "vmax": 1, "interpolation": "antialiased"}
        axis.imshow(joined, extent=(0, across, bottom, top), aspect="auto", **style)
        bucket = 2 ** (layout.levels - 1 - level)
        for number in range(1, layout.numbers):
            cut = bucket > 1 and number % bucket == 0
            x, width = number * layout.wide, 2.2 if cut else 0.8
            colour = _CUT if cut else "white"
            axis.plot([x, x], [top, bottom], color=colour, linewidth=width, solid_capstyle="butt")


def _name_levels(axis: Axes, layout: Layout) -> None:
    """Write what each level is, to its left."""
    for level in range(layout.levels):
        words = f"{2**level} buckets" if level else "as it came"
        words = "sorted" if level == layout.levels - 1 and level else words
        y = level * (layout.high + _GAP) + layout.high / 2
        place = {"xy": (0, y), "xytext": (-5, 0), "textcoords": "offset points"}
        axis.annotate(words, **place, ha="right", va="center", annotation_clip=False)


def _write_numbers(axes: list[Axes], keys: Keys, frame: int, size: float) -> None:
    """Write the order of the keys below the left side, and the right order below the other."""
    assert keys.images is not None
    n, places = keys.images.shape[:2]
    right = np.sort(keys.values[:n])
    sorted_by_keys = keys.values[:n][keys.keys[frame, :n].argsort(kind="stable")]
    for axis, order in zip(axes, (sorted_by_keys, right), strict=True):
        for number, (value, truth) in enumerate(zip(order, right, strict=True)):
            style: dict[str, Any] = {"xycoords": "axes fraction", "ha": "center", "va": "top"}
            if value != truth:
                style |= {"color": _WRONG, "fontweight": "bold"}
            words, at = f"{value:0{places}d}", ((number + 0.5) / n, 0)
            axis.annotate(words, at, **style, fontsize=size, annotation_clip=False)


def _title(keys: Keys, frame: int) -> str:
    """Return the step, and how well the keys sort the set."""
    assert keys.images is not None
    wrong = misplaced(keys, frame)
    words = f"{wrong} of {len(keys.images)} misplaced" if wrong else "all in order"
    return f"step {int(keys.step[frame]):,}: {words}"


def _caption(layout: Layout) -> str:
    """Return what the figure shows, in words."""
    words = "orange: where buckets are cut"
    if layout.high > 1:
        words += "; the digits of a number are below each other"
    if layout.letters:
        words += (
            "\nbelow: left in the order of the keys, wrong places bold; right in the right order"
        )
    return words
