"""The attention experiment in curves: the error against the time of training."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sparsewire_lab.attention.settings import family, names, settings
from sparsewire_lab.figures.save import MARKERS, STYLE, blank
from sparsewire_lab.figures.scales import scale_along, scale_percent
from sparsewire_lab.figures.series import (
    Group,
    Record,
    Series,
    average,
    drawable,
    lowest,
    split_words,
)
from sparsewire_lab.figures.tables import at_once

# The same in all figures; other families take the styles that are left.
_STYLES = {
    "plain ConvNet": ("#000000", "--"),
    "1 glimpse of 32 × 32": ("#0072B2", "-"),
    "8 glimpses of 12 × 12": ("#D55E00", "-."),
    "spatial transformer": ("#009E73", (0, (1, 1))),
    "REINFORCE glimpse": ("#CC79A7", (0, (7, 2))),
}
_OTHER_STYLES = (("#E69F00", (0, (4, 1, 1, 1, 1, 1))), ("#56B4E9", (0, (1, 3))))
_MOST_LINES = 12
_COLUMN_LETTERS = 48  # of names in two columns


@rc_context(STYLE)
def attention_figure(records: Sequence[Record]) -> Figure:
    """Return the error in percent against the seconds of training.

    A line for each setting, the mean over its seeds, in a band of one standard deviation. Runs
    that diverged are counted in the legend and left out of the mean. Of many settings the twelve
    with the lowest final error are drawn. Where runs shared their device, the legend says how many:
    times of runs that shared it with different numbers of others are not comparable.

    Args:
        records: The records of runs of the experiment, on canvases of one size.

    Raises:
        ValueError: No record has a curve of errors and seconds.
    """
    groups = with_curves(records)
    if not groups:
        raise ValueError(
            "records must hold runs of the attention experiment that did not diverge, with error "
            f"and seconds on their curves; got {len(records)} records, none of these"
        )
    shown = lowest(groups, _MOST_LINES, lambda group: group.mean_error)
    every = [average(group.finished) for group in shown]
    words = [_words(group, name) for group, name in zip(shown, names(shown), strict=True)]
    columns = 2 if len(words) > 1 and max(map(len, words)) <= _COLUMN_LETTERS else 1

    figure = blank(8.0, 4.0 + 0.2 * math.ceil(len(shown) / columns))
    axis = figure.add_subplot()
    least = scale_percent(axis, every)
    for series, label, style in zip(every, words, _styles(shown), strict=True):
        mean, deviation = (100 * np.asarray(part) for part in (series.mean, series.deviation))
        axis.plot(series.seconds, mean, label=label, **style, zorder=3)
        if np.isfinite(deviation).any():
            bottom = np.maximum(mean - deviation, least)
            band = {"color": style["color"], "alpha": 0.18, "linewidth": 0}
            axis.fill_between(series.seconds, bottom, mean + deviation, **band, zorder=2)
    axis.set(xlabel="seconds of training", ylabel=_label(shown))
    axis.grid(True, alpha=0.25)
    _scale_seconds(axis, every)
    notes = []
    if len(shown) < len(groups):
        notes.append(f"the best {len(shown)} of {len(groups)} settings")
    if any(math.isfinite(value) for series in every for value in series.deviation):
        notes.append("bands: one standard deviation over seeds")
    if shared := at_once(run for group in shown for run in group.finished):
        notes.append(f"{shared} runs shared the device")
    place = {"loc": "outside lower center", "ncols": columns, "handlelength": 3.8}
    figure.legend(title="; ".join(notes) or None, frameon=False, **place)
    return figure


def with_curves(records: Sequence[Record]) -> list[Group]:
    """Return the settings that can be drawn: with errors and seconds, and not all diverged."""
    groups = drawable(settings(records), "error", "seconds")
    return [g for g in groups if all(map(math.isfinite, average(g.finished).seconds))]


def _words(group: Group, name: str) -> str:
    return name if len(group.finished) == len(group.runs) else f"{name} ({group.seeds})"


def _styles(shown: Sequence[Group]) -> list[dict[str, Any]]:
    """Return a colour and a line for each family; markers distinguish its settings."""
    families = [family(group.setting) for group in shown]
    others = [name for name in dict.fromkeys(families) if name not in _STYLES]
    chosen = _STYLES | dict(zip(others, itertools.cycle(_OTHER_STYLES), strict=False))
    styles = []
    for number, name in enumerate(families):
        colour, line = chosen[name]
        marker = MARKERS[families[:number].count(name) % len(MARKERS)]
        style = {"color": colour, "linestyle": line, "marker": marker, "markersize": 5}
        styles.append(style | {"linewidth": 1.7, "markevery": 0.1})
    return styles


def _label(shown: Sequence[Group]) -> str:
    """Return the label of the vertical axis."""
    canvases = sorted({group.setting["canvas"] for group in shown})
    sizes = " and ".join(f"{canvas} × {canvas}" for canvas in canvases)
    return f"{split_words(shown)} error in %, canvases of {sizes}"


def _scale_seconds(axis: Axes, every: Sequence[Series]) -> None:
    ends = [series.seconds[-1] for series in every]
    # The time of an evaluation before the first step is no training.
    later = [seconds for series in every for seconds in series.seconds[1:2] if seconds > 0]
    scale_along(axis, min(later, default=1.0), max(ends), max(ends) > 8 * max(min(ends), 1.0))
