"""Tables in Markdown, columns that all experiments share, and pages that hold tables."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from sparsewire_lab.figures.series import Group, Record
from sparsewire_lab.train.records import statistics_of

NONE = "–"
_MARK = "<!-- {name}: {end} -->"


@dataclass(frozen=True)
class Shown:
    """A setting that is shown."""

    group: Group

    @property
    def setting(self) -> dict[str, Any]:
        """Return the arguments of the setting."""
        return self.group.setting

    @property
    def runs(self) -> list[Record]:
        """Return the runs that did not diverge."""
        return self.group.finished


@dataclass(frozen=True)
class Row(Shown):
    """A setting, and the name by which it differs from the others of its table."""

    name: str
    extra: Any = None
    """What a column needs and the setting does not hold."""


Columns = Mapping[str, Callable[[Row], str]]


def table_of(columns: Columns, rows: Sequence[Row]) -> str:
    """Return a table with a line for each row, or a line that says that there are no runs."""
    if not rows:
        return "No run is recorded yet.\n"
    return markdown(list(columns), [[write(row) for write in columns.values()] for row in rows])


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table.

    Examples:
        >>> print(markdown(["size", "error"], [["8", "0.5"]]))
        | size | error |
        | --- | --- |
        | 8 | 0.5 |
    """
    lines = [head, ["---" for _ in head], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def marks(name: str = "table") -> tuple[str, str]:
    """Return the marks between which a page holds the table of this name."""
    return _MARK.format(name=name, end="begin"), _MARK.format(name=name, end="end")


def fill(page: str, table: str, name: str = "table") -> str:
    """Return a page with a table between its marks."""
    begin, end = marks(name)
    before, first, rest = page.partition(begin)
    _, last, after = rest.partition(end)
    if not first or not last:
        raise ValueError(f"page must hold {begin} and {end}; one of them is missing")
    return f"{before}{begin}\n\n{table}\n{end}{after}"


def fill_marked(page: str, tables: Mapping[str, str]) -> str:
    """Return a page with those of the tables, by name, that it has marks for."""
    for name, table in tables.items():
        if any(mark in page for mark in marks(name)):
            page = fill(page, table, name)
    return page


def steps_of(setting: dict[str, Any]) -> str:
    """Return the number of steps and of instances in a step."""
    return f"{setting['steps']:,} × {setting['batch']:,}"


def percent(shares: Iterable[float | None]) -> str:
    """Return mean and deviation of shares, in percent."""
    summary = statistics_of(shares)
    if not math.isfinite(summary.mean):
        return NONE
    mean = f"{100 * summary.mean:.2f}"
    return mean if summary.seeds == 1 else f"{mean} ± {100 * summary.deviation:.2f}"


def final_percent(runs: Iterable[Record], metric: str) -> str:
    """Return mean and deviation of a final metric, in percent."""
    return percent((run["final"] or {}).get(metric) for run in runs)


def step_ms(runs: Sequence[Record]) -> float:
    """Return the mean milliseconds of a step."""
    return statistics_of(run["step_ms"] for run in runs if run.get("step_ms") is not None).mean


def step_time(runs: Sequence[Record]) -> str:
    """Return the time of a step in milliseconds, and the number of runs that shared the device."""
    ms = step_ms(runs)
    if not math.isfinite(ms):
        return NONE
    shared = at_once(runs)
    return f"{ms:.3g}" + (f", {shared} at once" if shared else "")


def at_once(runs: Iterable[Record]) -> str:
    """Return how many runs shared the device, from the least to the most; empty if none did."""
    counts = [run.get("at_once") or 1 for run in runs]
    least, most = min(counts, default=1), max(counts, default=1)
    if most == 1:
        return ""
    return f"{most}" if least == most else f"{least} to {most}"


def duration(runs: Iterable[Record]) -> str:
    """Return the mean duration of runs, in a suitable unit."""
    seconds = [run["seconds"] for run in runs if run.get("seconds") is not None]
    if not seconds:
        return NONE
    mean = fmean(seconds)
    if mean < 10:
        return f"{mean:.2g} s"
    if mean < 600:
        return f"{mean:.0f} s"
    return f"{mean / 60:.0f} min" if mean < 7200 else f"{mean / 3600:.1f} h"


def error_columns(heads: Mapping[str, str]) -> Columns:
    """Return a column for each final metric, with its head."""

    def column(metric: str) -> Callable[[Row], str]:
        return lambda row: final_percent(row.runs, metric)

    return {head: column(metric) for metric, head in heads.items()}


def speed_columns(
    rows: Sequence[Row], head: str, is_baseline: Callable[[dict[str, Any]], bool]
) -> Columns:
    """Return columns of seeds, milliseconds of a step, and how many times the baseline's.

    Args:
        rows: The settings that are compared.
        head: The head of the last column.
        is_baseline: Returns whether a setting is the baseline, by its arguments.
    """
    baseline = next((step_ms(row.runs) for row in rows if is_baseline(row.setting)), math.nan)
    return {
        "seeds": seeds,
        "ms per step": lambda row: _number(step_ms(row.runs), ".3g"),
        head: lambda row: _number(step_ms(row.runs) / baseline, ".2f", " ×"),
    }


def training(row: Row) -> str:
    """Return how long a setting was trained."""
    return f"{steps_of(row.setting)}, {duration(row.runs)}"


def on_split(groups: Iterable[Group], split: str) -> list[Group]:
    """Return the settings that were measured on a split."""
    return [group for group in groups if group.setting["split"] == split]


def seeds(row: Row) -> str:
    """Return the number of seeds."""
    return row.group.seeds


def _number(number: float, digits: str, unit: str = "") -> str:
    return f"{number:{digits}}{unit}" if math.isfinite(number) else NONE
