"""The sorting experiment in curves: the error against the iterations of training."""

import math
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sparsewire_lab.figures.save import STYLE, blank, save
from sparsewire_lab.figures.scales import scale_along, scale_percent
from sparsewire_lab.figures.series import Group, Record, Series, average, final_error
from sparsewire_lab.figures.settings import finished, seeds
from sparsewire_lab.sorting.experiment import Sorting
from sparsewire_lab.sorting.settings import (
    SORTING_ARGUMENTS,
    papers,
    rank,
    sorting_departures,
    sorting_names,
    sorting_settings,
    sorting_words,
)

# Okabe and Ito's colours, a grey and a brown; each method has a marker of its own as well.
_LOOKS = (
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
# How markers of one method are filled, which tells its settings apart.
_FILLS = ("full", "none", "left", "top", "right", "bottom")
_TIES, _STRICT = "-", (0, (1.2, 1.2))
_PAPERS_LOOK: dict[str, Any] = {"color": "#666666", "linewidth": 1.0, "linestyle": (0, (6, 3))}
_MOST_LINES = 10  # of a panel
_MOST_PAIRS = 4  # settings of a panel up to which both errors can be told apart
_MARKS = 8  # bars and markers on a line
_COLUMN_LETTERS = 48  # of names that stand side by side
_TICKS = {1: 9, 2: 5, 3: 4}  # numbers along the axis, by the panels beside each other


class Panel(NamedTuple):
    """What is drawn on one pair of axes."""

    title: str
    size: int
    groups: dict[str, Group]
    """By their names."""


def draw_sorting_errors(records: Sequence[Record], path: Path) -> Path:
    """Draw both errors in percent against the iterations of training; return the path.

    A panel for each number of things to sort, and in it two lines for each setting, the means over
    its seeds, with bars of one standard deviation: whole where equal numbers may stand in any
    order, dotted for the paper's error, which wants them as they came; of more than four settings
    the whole ones only. Where settings were run again with fewer steps, all runs of that length
    have a panel of their own, since the learning rate falls with the share of steps that are done.
    Runs that diverged are counted above the legend and left out of the mean. Of many settings ten
    are drawn in each panel: presets as they are, and what has the lowest final error.

    Args:
        records: A dictionary for each run of the sorting experiment, on numbers of one length.
        path: The picture, of any kind that Matplotlib writes.

    Raises:
        ValueError: No record has a curve of errors.
    """
    return save(sorting_figure(records), path)


@rc_context(STYLE)
def sorting_figure(records: Sequence[Record]) -> Figure:
    """Return the figure of `draw_sorting_errors`."""
    found = with_curves(records)
    if not found:
        raise ValueError(
            "records must hold runs of the sorting experiment that did not diverge, with errors "
            f"on their curves; got {len(records)} records, none of these"
        )
    shared = _shared(found)
    panels = _panels(found, shared)
    looks = _looks(panel.groups for panel in panels)
    columns = {1: 1, 2: 2, 4: 2}.get(len(panels), 3)
    down = math.ceil(len(panels) / columns)
    across = 2 if max(map(len, looks)) <= _COLUMN_LETTERS else 1
    entries = math.ceil((len(looks) + 3) / across)
    figure = blank(8.0, (3.6 if down == 1 else 2.9 * down) + 0.2 * entries)
    grid = figure.add_gridspec(down, columns)
    for place, panel in enumerate(panels):
        axis = figure.add_subplot(grid[place])
        _draw_panel(axis, panel.groups, looks, _TICKS[columns])
        axis.set_title(panel.title)
        if place % columns == 0:
            axis.set_ylabel(_what(found))
        if place + columns >= len(panels):
            axis.set_xlabel("iterations of training")
    _draw_legend(figure, looks, panels, across, _notes(panels, len(found), shared))
    return figure


def with_curves(records: Sequence[Record]) -> list[Group]:
    """Return the settings that can be drawn: with errors, and not all diverged."""
    return [group for group in sorting_settings(records) if _has_curve(group)]


def _has_curve(group: Group) -> bool:
    runs = finished(group)
    if not all({"step", "error"} <= (run["curve"] or {}).keys() for run in runs):
        return False
    return bool(average(group._replace(runs=runs)).steps)


def _panels(found: Sequence[Group], told: Collection[str]) -> list[Panel]:
    """The settings of each number of things; shorter runs of the same settings by themselves."""
    panels = []
    for size in sorted({group.setting["size"] for group in found}):
        here = [group for group in found if group.setting["size"] == size]
        again = _lengths_again(here)
        for length in (None, *sorted(again, reverse=True)):
            steps = {length} if length else {g.setting["steps"] for g in here} - again
            best = _best([group for group in here if group.setting["steps"] in steps])
            named = dict(zip(sorting_names(best, ("size", *told)), best, strict=True))
            words = f",\n{length:,} steps" if length else ""
            panels.append(Panel(_title(named, size) + words, size, named))
    return panels


def _lengths_again(here: Sequence[Group]) -> set[int]:
    """Numbers of steps with which settings were run that were run with more steps too."""
    lengths: dict[str, set[int]] = {}
    same = Sorting.bookkeeping | {"steps", "evaluate_every", "key"}
    for group in here:
        given = group.setting.items()
        # An argument that came later is none in older records.
        rest = {name: value for name, value in given if name not in same and value is not None}
        lengths.setdefault(str(sorted(rest.items())), set()).add(group.setting["steps"])
    return {steps for every in lengths.values() for steps in every - {max(every)}}


def _shared(found: Sequence[Group]) -> dict[str, Any]:
    """What all of several settings were given beside their presets: no name need say it."""
    every = [sorting_departures(group.setting) for group in found]
    if len(found) == 1:
        return {}
    return {
        name: value
        for name, value in every[0].items()
        if all(other.get(name) == value for other in every)
    }


def _best(found: Sequence[Group]) -> list[Group]:
    """As many settings as can be told apart, still in their order: first what is no search."""

    def worth(group: Group) -> tuple[bool, float]:
        searched = group.setting["preset"] == "ours" and bool(sorting_departures(group.setting))
        return searched, statistics.fmean(map(final_error, finished(group)))

    best = sorted(found, key=worth)[:_MOST_LINES]
    return [group for group in found if group in best]


def _looks(panels: Iterable[dict[str, Group]]) -> dict[str, dict[str, Any]]:
    """A colour and a marker for each method, and a filling for each of its settings."""
    groups = {name: group for panel in panels for name, group in panel.items()}
    looks: dict[str, dict[str, Any]] = {}
    ranks: list[int] = []
    for name, group in sorted(groups.items(), key=lambda pair: rank(pair[1].setting)):
        place = rank(group.setting)
        colour, marker = _LOOKS[place]
        fill = _FILLS[ranks.count(place) % len(_FILLS)]
        looks[name] = {"color": colour, "marker": marker, "fillstyle": fill, "markersize": 5.5}
        looks[name] |= {"markerfacecoloralt": "white", "linewidth": 1.6}
        ranks.append(place)
    return looks


def _averages(group: Group, both: bool) -> list[Series]:
    """The error with ties in any order, and the strict one if it is wanted and all runs have it."""
    runs = finished(group)
    found = [average(group._replace(runs=runs))]
    if both and all("strict" in run["curve"] for run in runs):
        strict = [run | {"curve": run["curve"] | {"error": run["curve"]["strict"]}} for run in runs]
        found.append(average(group._replace(runs=strict)))
    return found


def _draw_panel(
    axis: Axes, groups: dict[str, Group], looks: dict[str, dict[str, Any]], ticks: int
) -> None:
    """Draw the lines of one number of things, and what the paper reports of it."""
    both = _has_both(groups)
    every = {name: _averages(group, both) for name, group in groups.items()}
    least = scale_percent(axis, [series for pair in every.values() for series in pair])
    for place, (name, pair) in enumerate(every.items()):
        for series, line in zip(pair, (_TIES, _STRICT), strict=False):
            _draw_line(axis, series, looks[name] | {"linestyle": line}, place, least)
    ends = [pair[0].steps[-1] for pair in every.values()]
    later = [step for pair in every.values() for step in pair[0].steps[1:2]]
    wide = max(ends) > 8 * max(min(ends), 1)
    scale_along(axis, float(min(later, default=1)), float(max(ends)), wide)
    if not wide:
        axis.locator_params(axis="x", nbins=ticks, integer=True)
    axis.grid(True, alpha=0.25)
    for share in _papers_errors(groups):
        axis.axhline(100 * share, **_PAPERS_LOOK, zorder=1)


def _has_both(groups: Mapping[str, Group]) -> bool:
    """Whether the strict error has lines too, which of many settings nobody could follow."""
    return len(groups) <= _MOST_PAIRS


def _papers_errors(groups: Mapping[str, Group]) -> set[float]:
    """Where the paper's runs on the same task end."""
    return {said[1] for group in groups.values() if (said := papers(group.setting))}


def _draw_line(axis: Axes, series: Series, look: dict[str, Any], place: int, least: float) -> None:
    """Draw a mean, with bars as far apart as can be seen, not where those of other lines are."""
    mean, deviation = (100 * np.asarray(part) for part in (series.mean, series.deviation))
    apart = max(len(mean) // _MARKS, 1)
    strict = look["linestyle"] != _TIES
    first = (2 * place + strict) % apart
    look = look | {"markevery": (first, apart), "zorder": 3 - 0.5 * strict}
    if strict:
        look |= {"marker": "", "linewidth": 1.3}
    axis.plot(series.steps, mean, **look)
    known = np.isfinite(deviation) & (np.arange(len(mean)) % apart == first)
    if known.any():
        # A logarithm has no place for a bar that reaches zero.
        below = np.minimum(deviation, np.maximum(mean - least, 0))
        axis.errorbar(
            np.asarray(series.steps)[known],
            mean[known],
            np.stack([below, deviation])[:, known],
            fmt="none",
            ecolor=look["color"],
            elinewidth=1.0,
            capsize=2.0,
            zorder=2,
        )


def _title(groups: dict[str, Group], size: int) -> str:
    """What is sorted, in words."""
    tasks = {(g.setting["places"], g.setting["data"]) for g in groups.values()}
    words = [
        f"{places} {'small ' if data != 'mnist' else ''}digit{'' if places == 1 else 's'}"
        for places, data in sorted(tasks)
    ]
    return f"{size} numbers of {' or '.join(words)}"


def _what(found: Sequence[Group]) -> str:
    """The words beside the vertical axis: error of what, on what."""
    splits = {group.setting["split"] for group in found}
    split = splits.pop() if len(splits) == 1 else "test or validation"
    return f"{split} sets not in order, %"


def _notes(panels: Sequence[Panel], there: int, shared: Mapping[str, Any]) -> str:
    """What bars are, what all share, what was left out and what diverged."""
    groups = [group for panel in panels for group in panel.groups.values()]
    notes = []
    if any(len(finished(group)) > 1 for group in groups):
        notes.append("bars: one standard deviation over seeds")
    if shared:
        told = [name for name in SORTING_ARGUMENTS if name not in shared]
        notes.append(f"all: {', '.join(sorting_words(groups[0].setting, told))}")
    if len(groups) < there:
        notes.append(f"the best {len(groups)} of {there} settings")
    notes += [
        f"n = {panel.size}, {name}: {seeds(group)}"
        for panel in panels
        for name, group in panel.groups.items()
        if len(finished(group)) < len(group.runs)
    ]
    return "\n".join(notes)


def _draw_legend(
    figure: Figure,
    looks: dict[str, dict[str, Any]],
    panels: Sequence[Panel],
    columns: int,
    title: str,
) -> None:
    """Draw the names of all lines, and what whole, dotted and dashed ones are."""
    kinds: dict[str, Any] = {"equal numbers in any order": _TIES}
    if any(_has_both(panel.groups) for panel in panels):
        kinds["strict: equal ones as they came"] = _STRICT
    handles = [Line2D([], [], label=name, **look) for name, look in looks.items()]
    handles += [
        Line2D([], [], label=name, linestyle=line, color="#555555", linewidth=1.5)
        for name, line in kinds.items()
    ]
    if any(_papers_errors(panel.groups) for panel in panels):
        handles.append(Line2D([], [], label="about what the paper reports", **_PAPERS_LOOK))
    place = {"loc": "outside lower center", "ncols": columns, "handlelength": 3.2}
    figure.legend(handles=handles, title=title or None, frameon=False, **place)
