"""A set of numbers as quicksort moves them, level by level, and the target that is sent back."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sparsewire_lab.figures.save import STYLE, blank, save
from sparsewire_lab.sorting.keys import three_frames
from sparsewire_lab.sorting.keys_file import Keys, misplaced, read_keys, sort_of

# All in inches.
_WIDTH = 8.0
_LABELS, _MIDDLE, _MARGIN = 0.85, 0.2, 0.08
_SLOT = (_WIDTH - _LABELS - _MIDDLE - _MARGIN) / 2  # of each side
_HEAD, _TITLE, _NUMBERS, _FOOT = 0.3, 0.3, 0.22, 0.45
_TALLEST = 8.6
_LARGEST_DIGIT = 0.45

_SMALLEST, _LARGEST = 6.0, 8.0  # points, of the numbers below columns
_MOST_ABREAST = 24  # digits of a side; of more, those of a number stand below each other
_GAP = 0.25  # between rows, as a share of a digit
_CUT, _WRONG = "#E69F00", "#C00000"
_HEADS = ("the set, sorted level by level ↓", "the right order, sent back ↑")


class Layout(NamedTuple):
    """Where things are; lengths are in inches."""

    numbers: int
    """Columns of each side."""
    high: int
    """Digits above each other in a row."""
    wide: int
    """Digits beside each other in a column."""
    levels: int
    digit: float

    @property
    def side(self) -> float:
        """Return the width of a side."""
        return self.numbers * self.wide * self.digit

    @property
    def rows(self) -> float:
        """Return the height of all levels."""
        return self.levels * (self.high + _GAP) * self.digit

    @property
    def letters(self) -> float:
        """Return how large numbers can be written below their columns, in points."""
        column = 72 * self.wide * self.digit
        return min(column / (0.83 * self.wide * self.high), _LARGEST)

    @property
    def written(self) -> bool:
        """Return whether they can be read then."""
        return self.letters >= _SMALLEST

    @property
    def block(self) -> float:
        """Return the height of all that belongs to one step of training."""
        return _TITLE + self.rows + (_NUMBERS if self.written else 0.0)


def draw_steps(keys_path: Path, path: Path) -> Path:
    """Draw how a set is sorted by its keys, early and late in training; return the path.

    On the left the pictures as they come and after each half-permutation; on the right those of
    the right order, sent back through the transposes. The paper's intermediate loss compares the
    two, level by level. Numbers below are the order of the keys, in red where it is wrong.

    Args:
        keys_path: A file of keys, of a run whose method sorts step by step.
        path: The picture, of any kind that Matplotlib writes.
    """
    return save(steps_figure(read_keys(keys_path)), path)


@rc_context(STYLE)
def steps_figure(kept: Keys) -> Figure:
    """Return the figure of `draw_steps`."""
    levels, n, places = sort_of(kept, 0).values.shape[:3]
    layout = _layout(n, places, levels)
    frames = three_frames(kept.step)
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
        figure.text(_MARGIN / _WIDTH, y, _title(kept, frame), va="center", fontweight="bold")
        for start, pictures in zip(starts, sort_of(kept, frame), strict=True):
            corner = start / _WIDTH, (top - layout.rows) / height
            axis = figure.add_axes((*corner, layout.side / _WIDTH, layout.rows / height))
            _draw_rows(axis, pictures, layout)
        if layout.written:
            _write_numbers(figure.axes[-2:], kept, frame, layout.letters)
        _name_levels(figure.axes[-2], layout)
    figure.text(0.5, 0.4 * _FOOT / height, _caption(layout), ha="center", va="center")
    return figure


def _layout(n: int, places: int, levels: int) -> Layout:
    stacked = n * places > _MOST_ABREAST
    high, wide = (places, 1) if stacked else (1, places)
    return Layout(n, high, wide, levels, min(_SLOT / (n * wide), _LARGEST_DIGIT))


def _draw_rows(axis: Axes, pictures: np.ndarray, layout: Layout) -> None:
    """Draw the pictures of each level, with a line where a bucket was cut.

    Args:
        axis: Where to draw, one unit for each digit.
        pictures: (levels, n, places, height, width) from 0 to 1.
        layout: Of the figure.
    """
    across, pitch = layout.numbers * layout.wide, layout.high + _GAP
    axis.set(xlim=(0, across), ylim=(layout.levels * pitch, 0))
    axis.set_axis_off()
    for level, row in enumerate(pictures):
        top, bottom = level * pitch, level * pitch + layout.high
        # Digits of a number that stand below each other are one tall picture.
        joined = np.concatenate(row.reshape(-1, layout.high * row.shape[2], row.shape[3]), axis=1)
        look = {"cmap": "gray", "vmin": 0, "vmax": 1, "interpolation": "antialiased"}
        axis.imshow(joined, extent=(0, across, bottom, top), aspect="auto", **look)
        bucket = 2 ** (layout.levels - 1 - level)
        for number in range(1, layout.numbers):
            cut = bucket > 1 and number % bucket == 0
            x, width = number * layout.wide, 2.2 if cut else 0.8
            colour = _CUT if cut else "white"
            axis.plot([x, x], [top, bottom], color=colour, linewidth=width, solid_capstyle="butt")


def _name_levels(axis: Axes, layout: Layout) -> None:
    """Write what each level is, beside it."""
    for level in range(layout.levels):
        words = f"{2**level} buckets" if level else "as it came"
        words = "sorted" if level == layout.levels - 1 and level else words
        y = level * (layout.high + _GAP) + layout.high / 2
        place = {"xy": (0, y), "xytext": (-5, 0), "textcoords": "offset points"}
        axis.annotate(words, **place, ha="right", va="center", annotation_clip=False)


def _write_numbers(axes: list[Axes], kept: Keys, frame: int, size: float) -> None:
    """Write the order of the keys below the left side, and the right order below the other."""
    assert kept.images is not None
    n, places = kept.images.shape[:2]
    right = np.sort(kept.values[:n])
    found = kept.values[:n][kept.keys[frame, :n].argsort(kind="stable")]
    for axis, order in zip(axes, (found, right), strict=True):
        for number, (value, truth) in enumerate(zip(order, right, strict=True)):
            axis.annotate(
                f"{value:0{places}d}",
                ((number + 0.5) / n, 0),
                xycoords="axes fraction",
                ha="center",
                va="top",
                fontsize=size,
                color="black" if value == truth else _WRONG,
                fontweight="normal" if value == truth else "bold",
                annotation_clip=False,
            )


def _title(kept: Keys, frame: int) -> str:
    """When it is, and how well the keys sort the set."""
    assert kept.images is not None
    wrong = misplaced(kept, frame)
    words = f"{wrong} of {len(kept.images)} misplaced" if wrong else "all in order"
    return f"step {int(kept.step[frame]):,}: {words}"


def _caption(layout: Layout) -> str:
    """What is seen, in words."""
    words = "orange: where buckets are cut"
    if layout.high > 1:
        words += "; the digits of a number stand below each other"
    if layout.written:
        words += (
            "\nbelow: left in the order of the keys, wrong places bold; right in the right order"
        )
    return words
