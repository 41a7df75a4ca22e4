"""Keys against the numbers that they stand for, while a network learns to give them."""

import math
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sparsewire_lab.figures.arrays import nearest
from sparsewire_lab.figures.save import STYLE, blank, save
from sparsewire_lab.sorting.keys_file import Keys, read_keys, spearman

_COLOUR = "#0072B2"


def draw_keys(keys_path: Path, path: Path) -> Path:
    """Draw keys of held-out numbers against the numbers, at three steps; return the path.

    The first, the last and one between, as many times later than the second evaluation as the last
    is later than it. The title tells Spearman's correlation of their ranks: 1 if sorting by the
    keys puts all these numbers in order.

    Args:
        keys_path: A file of keys.
        path: The picture, of any kind that Matplotlib writes.
    """
    return save(keys_figure(read_keys(keys_path)), path)


@rc_context(STYLE)
def keys_figure(kept: Keys) -> Figure:
    """Return the figure of `draw_keys`."""
    chosen = three_frames(kept.step)
    figure = blank(8.0 if len(chosen) > 1 else 4.0, 3.1)
    panels = np.ravel(figure.subplots(1, len(chosen), squeeze=False))
    for axis, number in zip(panels, chosen, strict=True):
        _draw_panel(axis, kept, number)
    panels[0].set_ylabel("key that the network gives it")
    figure.supxlabel(f"true value of each of {len(kept.values)} held-out numbers", fontsize=9)
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


def _draw_panel(axis: Axes, kept: Keys, number: int) -> None:
    """Draw a point for each number; the scale of keys is that of their step."""
    keys = kept.keys[number]
    axis.scatter(kept.values, keys, s=11, color=_COLOUR, alpha=0.55, linewidths=0)
    found = spearman(kept.values, keys)
    words = f"{found:.3f}" if math.isfinite(found) else "unknown: all keys are equal"
    axis.set_title(f"step {int(kept.step[number]):,}\nSpearman's ρ {words}")
    axis.xaxis.set_major_formatter("{x:,.0f}")
    axis.locator_params(axis="x", nbins=5, integer=True)
    axis.grid(True, alpha=0.25)
