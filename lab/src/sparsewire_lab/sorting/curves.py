"""The sorting experiment in curves: the error against the iterations of training."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sparsewire_lab.figures.save import STYLE, blank
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
from sparsewire_lab.sorting.experiment import Sorting
from sparsewire_lab.sorting.settings import (
    SETTINGS,
    departure_words,
    names,
    rank,
    reported,
    settings,
)

# Okabe and Ito's colours, a grey and a brown; each method has a marker of its own as well.
_STYLES = (
    ("#0072B2", "o"),
    ("#009E73", "s"),
    ("#D55E00", "^"),
    ("#CC79A7", "D"),
    ("#E69F00", "v"),
    ("#56B4E9", "P"),
    ("#000000", "X"),
    ("#8C8C8C", "p"),
    ("#7A4B1E", "h"),
    ("#8C8C8C", "*"),  # methods that are not known here
)
# How the markers of one method are filled, which distinguishes its settings.
_FILLS = ("full", "none", "left", "top", "right", "bottom")
_TIES, _STRICT = "-", (0, (1.2, 1.2))
_PAPERS_STYLE: dict[str, Any] = {"color": "#666666", "linewidth": 1.0, "linestyle": (0, (6, 3))}
_MOST_LINES = 10  # of a panel
_MOST_PAIRS = 4  # settings of a panel up to which both errors are drawn
_MARKS = 8  # bars and markers on a line
_COLUMN_LETTERS = 48  # of names in two columns
_TICKS = {1: 9, 2: 5, 3: 4}  # numbers along the axis, by the panels in a row


class Panel(NamedTuple):
    """What is drawn on one pair of axes."""

    title: str
    size: int
    groups: dict[str, Group]
    """By their names."""


@rc_context(STYLE)
def sorting_figure(records: Sequence[Record]) -> Figure:
    """Return both errors in percent against the iterations of training.

    A panel for each number of elements to sort, and in it two lines for each setting, the means
    over its seeds, with bars of one standard deviation: solid where equal numbers may come in any
    order, dotted for the paper's error, which wants them in their original order; of more than
    four settings the solid ones only. Where settings were run again with fewer steps, all runs of
    that length have a panel of their own, since the learning rate depends on the share of steps
    that are done. Runs that diverged are counted above the legend and left out of the mean. Of
    many settings ten are drawn in each panel: presets as they are, and those with the lowest final
    error.

    Args:
        records: The records of runs of the experiment, on numbers of one length.

    Raises:
        ValueError: No record has a curve of errors.
    """
    groups = with_curves(records)
    if not groups:
        raise ValueError(
            "records must hold runs of the sorting experiment that did not diverge, with errors "
            f"on their curves; got {len(records)} records, none of these"
        )
    shared = _shared(groups)
    panels = _panels(groups, shared)
    styles = _styles(panel.groups for panel in panels)
    columns = {1: 1, 2: 2, 4: 2}.get(len(panels), 3)
    down = math.ceil(len(panels) / columns)
    across = 2 if max(map(len, styles)) <= _COLUMN_LETTERS else 1
    entries = math.ceil((len(styles) + 3) / across)
    figure = blank(8.0, (3.6 if down == 1 else 2.9 * down) + 0.2 * entries)
    grid = figure.add_gridspec(down, columns)
    for place, panel in enumerate(panels):
        axis = figure.add_subplot(grid[place])
        _draw_panel(axis, panel.groups, styles, _TICKS[columns])
        axis.set_title(panel.title)
        if place % columns == 0:
            axis.set_ylabel(f"{split_words(groups)} sets not in order, %")
        if place + columns >= len(panels):
            axis.set_xlabel("iterations of training")
    _draw_legend(figure, styles, panels, across, _notes(panels, len(groups), shared))
    return figure


def with_curves(records: Sequence[Record]) -> list[Group]:
    """Return the settings that can be drawn: with errors, and not all diverged."""
    return drawable(settings(records), "error")


def _panels(groups: Sequence[Group], stated: Collection[str]) -> list[Panel]:
    """Return the settings of each number of elements; shorter runs of the same by themselves."""
    panels = []
    for size in sorted({group.setting["size"] for group in groups}):
        here = [group for group in groups if group.setting["size"] == size]
        again = _lengths_again(here)
        for length in (None, *sorted(again, reverse=True)):
            steps = {length} if length else {g.setting["steps"] for g in here} - again
            lengthy = [group for group in here if group.setting["steps"] in steps]
            best = lowest(lengthy, _MOST_LINES, _worth)
            named = dict(zip(names(best, ("size", *stated)), best, strict=True))
            words = f",\n{length:,} steps" if length else ""
            panels.append(Panel(_title(named, size) + words, size, named))
    return panels


def _lengths_again(here: Sequence[Group]) -> set[int]:
    """Return numbers of steps with which settings were run that were run with more steps too."""
    lengths: dict[str, set[int]] = {}
    same = Sorting.bookkeeping | {"steps", "evaluate_every", "key"}
    for group in here:
        given = group.setting.items()
        # Older records lack arguments that came later.
        rest = {name: value for name, value in given if name not in same and value is not None}
        lengths.setdefault(str(sorted(rest.items())), set()).add(group.setting["steps"])
    return {steps for every in lengths.values() for steps in every - {max(every)}}


def _shared(groups: Sequence[Group]) -> dict[str, Any]:
    """Return the departures from their presets that all of several settings share."""
    first, *others = (SETTINGS.departures(group.setting) for group in groups)
    if not others:
        return {}
    return {n: v for n, v in first.items() if all(other.get(n) == v for other in others)}


def _worth(group: Group) -> tuple[bool, float]:
    """Return what settings are chosen by: presets first, and what was not searched."""
    searched = group.setting["preset"] == "ours" and bool(SETTINGS.departures(group.setting))
    return searched, group.mean_error


def _styles(panels: Iterable[dict[str, Group]]) -> dict[str, dict[str, Any]]:
    """Return a colour and a marker for each method, and a filling for each of its settings."""
    groups = {name: group for panel in panels for name, group in panel.items()}
    styles: dict[str, dict[str, Any]] = {}
    ranks: list[int] = []
    for name, group in sorted(groups.items(), key=lambda pair: rank(pair[1].setting)):
        place = rank(group.setting)
        colour, marker = _STYLES[place]
        fill = _FILLS[ranks.count(place) % len(_FILLS)]
        styles[name] = {"color": colour, "marker": marker, "fillstyle": fill, "markersize": 5.5}
        styles[name] |= {"markerfacecoloralt": "white", "linewidth": 1.6}
        ranks.append(place)
    return styles


def _averages(group: Group, both: bool) -> list[Series]:
    """Return the error with ties in any order, and the strict one if wanted and recorded."""
    runs = group.finished
    strict = both and all("strict" in run["curve"] for run in runs)
    return [average(runs, metric) for metric in (["error", "strict"] if strict else ["error"])]


def _draw_panel(
    axis: Axes, groups: dict[str, Group], styles: dict[str, dict[str, Any]], ticks: int
) -> None:
    """Draw the lines of one number of elements, and what the paper reports of it."""
    both = _has_both(groups)
    every = {name: _averages(group, both) for name, group in groups.items()}
    least = scale_percent(axis, [series for pair in every.values() for series in pair])
    for place, (name, pair) in enumerate(every.items()):
        for series, line in zip(pair, (_TIES, _STRICT), strict=False):
            _draw_line(axis, series, styles[name] | {"linestyle": line}, place, least)
    ends = [pair[0].steps[-1] for pair in every.values()]
    later = [step for pair in every.values() for step in pair[0].steps[1:2]]
    wide = max(ends) > 8 * max(min(ends), 1)
    scale_along(axis, float(min(later, default=1)), float(max(ends)), wide)
    if not wide:
        axis.locator_params(axis="x", nbins=ticks, integer=True)
    axis.grid(True, alpha=0.25)
    for share in _papers_errors(groups):
        axis.axhline(100 * share, **_PAPERS_STYLE, zorder=1)


def _has_both(groups: Mapping[str, Group]) -> bool:
    """Return whether the strict error has lines too, which would be too many of many settings."""
    return len(groups) <= _MOST_PAIRS


def _papers_errors(groups: Mapping[str, Group]) -> set[float]:
    """Return the errors at which the paper's runs on the same task end."""
    return {error[1] for group in groups.values() if (error := reported(group.setting))}


def _draw_line(axis: Axes, series: Series, style: dict[str, Any], place: int, least: float) -> None:
    """Draw a mean, with bars far enough apart, not where those of other lines are."""
    mean, deviation = (100 * np.asarray(part) for part in (series.mean, series.deviation))
    apart = max(len(mean) // _MARKS, 1)
    strict = style["linestyle"] != _TIES
    first = (2 * place + strict) % apart
    style = style | {"markevery": (first, apart), "zorder": 3 - 0.5 * strict}
    if strict:
        style |= {"marker": "", "linewidth": 1.3}
    axis.plot(series.steps, mean, **style)
    known = np.isfinite(deviation) & (np.arange(len(mean)) % apart == first)
    if known.any():
        # A logarithm has no place for a bar that reaches zero.
        below = np.minimum(deviation, np.maximum(mean - least, 0))
        at, ends = np.asarray(series.steps)[known], np.stack([below, deviation])[:, known]
        bars = {"ecolor": style["color"], "elinewidth": 1.0, "capsize": 2.0, "zorder": 2}
        axis.errorbar(at, mean[known], ends, fmt="none", **bars)


def _title(groups: dict[str, Group], size: int) -> str:
    """Return what is sorted, in words."""
    tasks = {(g.setting["places"], g.setting["data"]) for g in groups.values()}
    words = [
        f"{places} {'small ' if data != 'mnist' else ''}digit{'' if places == 1 else 's'}"
        for places, data in sorted(tasks)
    ]
    return f"{size} numbers of {' or '.join(words)}"


def _notes(panels: Sequence[Panel], count: int, shared: Mapping[str, Any]) -> str:
    """Return what bars are, what all share, what was left out and what diverged."""
    groups = [group for panel in panels for group in panel.groups.values()]
    notes = []
    if any(len(group.finished) > 1 for group in groups):
        notes.append("bars: one standard deviation over seeds")
    if shared:
        others = [name for name in SETTINGS.arguments if name not in shared]
        notes.append(f"all: {', '.join(departure_words(groups[0].setting, others))}")
    if len(groups) < count:
        notes.append(f"the best {len(groups)} of {count} settings")
    notes += [
        f"n = {panel.size}, {name}: {group.seeds}"
        for panel in panels
        for name, group in panel.groups.items()
        if len(group.finished) < len(group.runs)
    ]
    return "\n".join(notes)


def _draw_legend(
    figure: Figure,
    styles: dict[str, dict[str, Any]],
    panels: Sequence[Panel],
    columns: int,
    title: str,
) -> None:
    """Draw the names of all lines, and what solid, dotted and dashed ones are."""
    kinds: dict[str, Any] = {"equal numbers in any order": _TIES}
    if any(_has_both(panel.groups) for panel in panels):
        kinds["strict: equal ones as they came"] = _STRICT
    handles = [Line2D([], [], label=name, **style) for name, style in styles.items()]
    handles += [
        Line2D([], [], label=name, linestyle=line, color="#555555", linewidth=1.5)
        for name, line in kinds.items()
    ]
    if any(_papers_errors(panel.groups) for panel in panels):
        handles.append(Line2D([], [], label="about what the paper reports", **_PAPERS_STYLE))
    place = {"loc": "outside lower center", "ncols": columns, "handlelength": 3.2}
    figure.legend(handles=handles, title=title or None, frameon=False, **place)
