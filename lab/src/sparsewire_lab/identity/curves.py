"""The identity experiment in curves: error against steps, and time against size."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter, NullLocator

from sparsewire_lab.figures.save import COLOURS, MARKERS, STYLE, blank
from sparsewire_lab.figures.scales import decade, scale_along
from sparsewire_lab.figures.series import THRESHOLD, Group, Record, Series, average, reach
from sparsewire_lab.identity.settings import best, best_rates, details, groups

_LINES = {"sparse": "-", "reinforce": "--", "rewire": ":"}
_METHOD_COLOURS = {"sparse": "#0072B2", "reinforce": "#009E73", "rewire": "#D55E00"}
_OTHER_LINE, _OTHER_COLOUR = "-.", "#CC79A7"
_HOLLOW: dict[str, Any] = {"linestyle": "none", "markerfacecolor": "white"}


@rc_context(STYLE)
def error_figure(records: Sequence[Record]) -> Figure:
    """Return the error of the rounded layer against the steps.

    A colour for each size, a line style for each method, bars of one standard deviation over the
    seeds. Of several learning rates the best is drawn, and named.

    Raises:
        ValueError: No record has a curve of errors.
    """
    chosen = best_rates(groups(records))
    every = [average(group.runs) for group in chosen]
    sizes = sorted({group.setting["size"] for group in chosen})
    colours = dict(zip(sizes, _size_colours(len(sizes)), strict=True))
    columns: dict[str, list[Line2D]] = {}
    ends = [series.steps[-1] for series in every]
    wide = max(ends) > 20 * max(min(ends), 1)

    figure = blank(8.0, 4.0)
    axis = figure.add_subplot()
    for number, (group, series) in enumerate(zip(chosen, every, strict=True)):
        style = _style(group, chosen, colours)
        bars = _spaced(series.steps, 10 if len(chosen) < 8 else 5, wide, number / len(chosen))
        axis.plot(series.steps, series.mean, **style, markevery=bars, zorder=3)
        _draw_bars(axis, series, bars, style["color"])
        words = ", ".join([f"{group.setting['size']:,}", *details(group, chosen)])
        handle = Line2D([], [], **style, label=words)
        columns.setdefault(str(group.setting["method"]), []).append(handle)
    axis.set(xlabel="training steps", ylabel="mean squared error of the rounded layer")
    axis.grid(True, alpha=0.25)
    _scale_errors(axis, [value for series in every for value in series.mean])
    _scale_steps(axis, every, wide)
    several = any(math.isfinite(value) for series in every for value in series.deviation)
    _add_columns(figure, columns, "; bars: one standard deviation over seeds" if several else "")
    return figure


@rc_context(STYLE)
def scaling_figure(records: Sequence[Record]) -> Figure:
    """Return seconds and steps until the error is below 1e-3, against the size.

    A line for each method. Where some seed did not reach it, the marker is hollow.

    Raises:
        ValueError: No record has a curve of errors and seconds.
    """
    chosen = best(groups(records))
    lines: dict[str, list[Group]] = {}
    for group in chosen:
        name = ", ".join([str(group.setting["method"]), *details(group, chosen)])
        lines.setdefault(name, []).append(group)
    reached = {
        name: [(g.setting["size"], reach(g.runs)) for g in line] for name, line in lines.items()
    }
    ends = [end for line in reached.values() for _, end in line]
    if not any(end.seconds > 0 and end.steps > 0 for end in ends):
        raise ValueError(
            "records must hold runs of the identity experiment with seconds on their curves; "
            f"got {len(records)} records, none of these"
        )
    figure = blank(8.0, 3.9)
    left, right = figure.subplots(1, 2)
    handles = []
    for number, (name, line) in enumerate(reached.items()):
        method = lines[name][0].setting["method"]
        style: dict[str, Any] = {
            "color": _METHOD_COLOURS.get(method, _OTHER_COLOUR),
            "linestyle": _LINES.get(method, _OTHER_LINE),
            "marker": MARKERS[1:][number % (len(MARKERS) - 1)],
        }
        _draw_reach(left, [(size, end.seconds, end.reached) for size, end in line], style)
        _draw_reach(right, [(size, end.steps, end.reached) for size, end in line], style)
        handles.append(Line2D([], [], **style, label=name))
    if not all(end.reached for end in ends):
        hollow: dict[str, Any] = _HOLLOW | {"color": "0.35", "marker": "o"}
        handles.append(Line2D([], [], **hollow, label="hollow: not reached, total of the run"))
    for axis, words in ((left, "seconds"), (right, "training steps")):
        axis.set(xscale="log", yscale="log", xlabel="size of the vectors")
        axis.set(ylabel=f"{words} until the error is below {THRESHOLD:g}")
        _label_sizes(axis, sorted({size for line in reached.values() for size, _ in line}))
        _whole_decades(axis)
        axis.grid(True, alpha=0.25)
    place = {"loc": "outside lower center", "ncols": min(len(handles), 3)}
    figure.legend(handles=handles, frameon=False, **place)
    return figure


def _size_colours(count: int) -> list[Any]:
    """Return colours that are far apart if there are enough, else steps from dark to light."""
    if count <= len(COLOURS):
        return list(COLOURS[:count])
    # The light end of the map is hard to see on white.
    return [colormaps["viridis"](x) for x in np.linspace(0, 0.9, count)]


def _style(group: Group, among: Sequence[Group], colours: dict[int, Any]) -> dict[str, Any]:
    """Return colour, line and marker; markers distinguish targets, values and details."""
    size, method = group.setting["size"], group.setting["method"]
    alike = [g for g in among if (g.setting["size"], g.setting["method"]) == (size, method)]
    return {
        "color": colours[size],
        "linestyle": _LINES.get(method, _OTHER_LINE),
        "marker": MARKERS[alike.index(group) % len(MARKERS)],
        "markersize": 5,
        "linewidth": 1.6,
    }


def _spaced(steps: Sequence[int], most: int, wide: bool, shift: float) -> list[int]:
    """Return the numbers of points evenly spaced on the axis; the shift separates lines."""
    if len(steps) <= most:
        return list(range(len(steps)))
    at = np.asarray(steps, dtype=float)
    if wide:
        at = np.log(np.maximum(at, min(step for step in steps if step > 0)))
    goals = at[0] + (np.arange(most) + shift) / most * (at[-1] - at[0])
    return np.unique(np.abs(at[None] - goals[:, None]).argmin(1)).tolist()


def _draw_bars(axis: Axes, series: Series, bars: Sequence[int], colour: Any) -> None:
    bars = [i for i in bars if math.isfinite(series.deviation[i])]
    if not bars:
        return
    mean, deviation = (np.asarray(values)[bars] for values in (series.mean, series.deviation))
    # An error is never negative, so no bar goes below zero.
    ends = [np.minimum(deviation, mean), deviation]
    style = {"ecolor": colour, "elinewidth": 1.0, "capsize": 2.5, "alpha": 0.8}
    axis.errorbar([series.steps[i] for i in bars], mean, ends, fmt="none", zorder=2, **style)


def _scale_errors(axis: Axes, errors: Sequence[float]) -> None:
    """Set up the axis of errors: decades down to the smallest error, and zero below them."""
    smallest = min((error for error in errors if error > 0), default=1e-3)
    low = min(max(math.floor(math.log10(smallest)), -6), -2)
    high = max(1, math.ceil(math.log10(max(*errors, 1.0))))
    axis.set_yscale("symlog", linthresh=10.0**low, linscale=0.6)
    axis.set_ylim(-0.12 * 10.0**low, 10.0**high)
    # At most nine decades, even if a run diverged.
    decades = range(low, high + 1, math.ceil((high - low) / 8))
    axis.set_yticks([0.0, *(10.0**d for d in decades)], ["0", *map(decade, decades)])
    axis.yaxis.set_minor_locator(NullLocator())


def _scale_steps(axis: Axes, every: Sequence[Series], wide: bool) -> None:
    first = min((step for series in every for step in series.steps if step > 0), default=1)
    longest = max(series.steps[-1] for series in every)
    scale_along(axis, float(first), float(longest), wide)


def _add_columns(figure: Figure, columns: dict[str, list[Line2D]], note: str) -> None:
    """A legend with a column for each method; for a single method, columns of equal length."""
    title = f"size of the vectors{note}"
    if len(columns) == 1:
        ((method, handles),) = columns.items()
        title, ncols = f"{method}: {title}", min(len(handles), 4)
    else:
        rows, ncols = max(map(len, columns.values())), len(columns)
        blank = Line2D([], [], color="none", label=" ")
        handles = []
        for method, lines in columns.items():
            head = Line2D([], [], color="none", label=method)
            handles += [head, *lines, *[blank] * (rows - len(lines))]
    place: dict[str, Any] = {"loc": "outside lower center", "ncols": ncols, "title": title}
    spacing: dict[str, Any] = {"handlelength": 3.2, "columnspacing": 1.6, "labelspacing": 0.3}
    legend = figure.legend(handles=handles, frameon=False, **place, **spacing)
    for text in legend.get_texts():
        if len(columns) > 1 and text.get_text() in columns:
            text.set_fontweight("bold")
    rows = math.ceil(len(handles) / ncols)
    figure.set_size_inches(8.0, 4.0 + 0.18 * rows)


def _draw_reach(axis: Axes, line: list[tuple[int, float, bool]], style: dict[str, Any]) -> None:
    line = [point for point in line if point[1] > 0]
    axis.plot([size for size, _, _ in line], [end for _, end, _ in line], **style)
    hollow = [(size, end) for size, end, reached in line if not reached]
    if hollow:
        axis.plot(*zip(*hollow, strict=True), **(style | _HOLLOW))


def _label_sizes(axis: Axes, sizes: list[int]) -> None:
    """Label at most six sizes: more would overlap."""
    shown = sizes[:: math.ceil(len(sizes) / 6)]
    axis.set_xticks(shown, [f"{size:,}" for size in shown])
    axis.xaxis.set_minor_locator(NullLocator())


def _whole_decades(axis: Axes) -> None:
    """Extend the axis to whole decades: parts of one would be labelled as products."""
    low, high = axis.dataLim.intervaly
    low, high = math.floor(math.log10(low)), math.floor(math.log10(high)) + 1
    axis.set_ylim(10.0**low, 10.0**high)
    decades = range(low, high + 1)
    axis.set_yticks([10.0**d for d in decades], [decade(d) for d in decades])
    axis.yaxis.set_minor_formatter(NullFormatter())
