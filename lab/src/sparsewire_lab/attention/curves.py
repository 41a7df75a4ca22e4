"""The attention experiment in curves: the error against the time of training."""

import itertools
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sparsewire_lab.attention.settings import family, names, settings
from sparsewire_lab.figures.cells import at_once
from sparsewire_lab.figures.save import MARKERS, STYLE, blank, save
from sparsewire_lab.figures.scales import scale_along, scale_percent
from sparsewire_lab.figures.series import Group, Record, Series, average, final_error

# The same in all figures; other families take what is left.
from sparsewire_lab.figures.settings import finished, seeds

# The same in all figures; other families take what is left.
_LOOKS = {
    "plain ConvNet": ("#000000", "--"),
    "1 glimpse of 32 × 32": ("#0072B2", "-"),
    "8 glimpses of 12 × 12": ("#D55E00", "-."),
    "spatial transformer": ("#009E73", (0, (1, 1))),
    "REINFORCE glimpse": ("#CC79A7", (0, (7, 2))),
}
_OTHER_LOOKS = (("#E69F00", (0, (4, 1, 1, 1, 1, 1))), ("#56B4E9", (0, (1, 3))))
_MOST_LINES = 12
_COLUMN_LETTERS = 48  # of names that stand side by side


def draw_attention_errors(records: Sequence[Record], path: Path) -> Path:
    """Draw the error in percent against the seconds of training; return the path.

    A line for each setting, the mean over its seeds, in a band of one standard deviation. Runs
    that diverged are counted in the legend and left out of the mean. Of many settings the twelve
    with the lowest final error are drawn. Where runs shared their device, the legend says how many:
    times of runs that had other company are not to be compared.

    Args:
        records: A dictionary for each run of the attention experiment, on canvases of one size.
        path: The picture, of any kind that Matplotlib writes.

    Raises:
        ValueError: No record has a curve of errors and seconds.
    """
    return save(attention_figure(records), path)


@rc_context(STYLE)
def attention_figure(records: Sequence[Record]) -> Figure:
    """Return the figure of `draw_attention_errors`."""
    found = with_curves(records)
    if not found:
        raise ValueError(
            "records must hold runs of the attention experiment that did not diverge, with error "
            f"and seconds on their curves; got {len(records)} records, none of these"
        )
    shown = _best(found)
    every = [average(group._replace(runs=finished(group))) for group in shown]
    words = [_words(group, name) for group, name in zip(shown, names(shown), strict=True)]
    columns = 2 if len(words) > 1 and max(map(len, words)) <= _COLUMN_LETTERS else 1

    figure = blank(8.0, 4.0 + 0.2 * math.ceil(len(shown) / columns))
    axis = figure.add_subplot()
    least = scale_percent(axis, every)
    for series, label, look in zip(every, words, _looks(shown), strict=True):
        mean, deviation = (100 * np.asarray(part) for part in (series.mean, series.deviation))
        axis.plot(series.seconds, mean, label=label, **look, zorder=3)
        if np.isfinite(deviation).any():
            bottom = np.maximum(mean - deviation, least)
            band = {"color": look["color"], "alpha": 0.18, "linewidth": 0}
            axis.fill_between(series.seconds, bottom, mean + deviation, **band, zorder=2)
    axis.set(xlabel="seconds of training", ylabel=_what(shown))
    axis.grid(True, alpha=0.25)
    _scale_seconds(axis, every)
    notes = []
    if len(shown) < len(found):
        notes.append(f"the best {len(shown)} of {len(found)} settings")
    if any(math.isfinite(value) for series in every for value in series.deviation):
        notes.append("bands: one standard deviation over seeds")
    if shared := at_once(run for group in shown for run in finished(group)):
        notes.append(f"{shared} runs shared the device")
    place = {"loc": "outside lower center", "ncols": columns, "handlelength": 3.8}
    figure.legend(title="; ".join(notes) or None, frameon=False, **place)
    return figure


def with_curves(records: Sequence[Record]) -> list[Group]:
    """Return the settings that can be drawn: with errors and seconds, and not all diverged."""
    return [group for group in settings(records) if _has_curve(group)]


def _has_curve(group: Group) -> bool:
    runs = finished(group)
    if not all({"step", "error", "seconds"} <= (run["curve"] or {}).keys() for run in runs):
        return False
    series = average(group._replace(runs=runs))
    return bool(series.steps) and all(map(math.isfinite, series.seconds))


def _best(found: Sequence[Group]) -> list[Group]:
    """As many settings as can be told apart, still in their order."""

    def mean_error(group: Group) -> float:
        return statistics.fmean(map(final_error, finished(group)))

    best = sorted(found, key=mean_error)[:_MOST_LINES]
    return [group for group in found if group in best]


def _words(group: Group, name: str) -> str:
    return name if len(finished(group)) == len(group.runs) else f"{name} ({seeds(group)})"


def _looks(shown: Sequence[Group]) -> list[dict[str, Any]]:
    """A colour and a line for each family; markers tell its settings apart."""
    families = [family(group.setting) for group in shown]
    others = [name for name in dict.fromkeys(families) if name not in _LOOKS]
    rest = itertools.cycle(_OTHER_LOOKS)
    chosen = _LOOKS | dict(zip(others, rest, strict=False))
    looks = []
    for number, name in enumerate(families):
        colour, line = chosen[name]
        marker = MARKERS[families[:number].count(name) % len(MARKERS)]
        look = {"color": colour, "linestyle": line, "marker": marker, "markersize": 5}
        looks.append(look | {"linewidth": 1.7, "markevery": 0.1})
    return looks


def _what(shown: Sequence[Group]) -> str:
    """The words beside the vertical axis: error of what, on what."""
    found = {group.setting["split"] for group in shown}
    split = found.pop() if len(found) == 1 else "test or validation"
    canvases = sorted({group.setting["canvas"] for group in shown})
    sizes = " and ".join(f"{canvas} × {canvas}" for canvas in canvases)
    return f"{split} error in %, canvases of {sizes}"


def _scale_seconds(axis: Axes, every: Sequence[Series]) -> None:
    ends = [series.seconds[-1] for series in every]
    # What an evaluation before the first step takes is no training.
    later = [seconds for series in every for seconds in series.seconds[1:2] if seconds > 0]
    scale_along(axis, min(later, default=1.0), max(ends), max(ends) > 8 * max(min(ends), 1.0))
