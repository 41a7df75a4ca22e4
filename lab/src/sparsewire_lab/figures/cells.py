"""What stands in a cell: the same words and digits in the tables of all experiments."""

import math
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from sparsewire_lab.figures.pages import markdown
from sparsewire_lab.figures.series import Record
from sparsewire_lab.train.records import spread_of

NONE = "–"


def table_of(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table, or a line that says that there is nothing for one."""
    return markdown(head, rows) if rows else "No run is recorded yet.\n"


def steps_of(setting: dict[str, Any]) -> str:
    """Return how many steps of how many instances a setting has."""
    return f"{setting['steps']:,} × {setting['batch']:,}"


def percent(shares: Sequence[float | None]) -> str:
    """Return mean and deviation of shares, in percent."""
    spread = spread_of(shares)
    if not math.isfinite(spread.mean):
        return NONE
    mean = f"{100 * spread.mean:.2f}"
    return mean if spread.seeds == 1 else f"{mean} ± {100 * spread.deviation:.2f}"


def pace(runs: Sequence[Record]) -> float:
    """Return the mean milliseconds of a step."""
    return spread_of(run["step_ms"] for run in runs if run.get("step_ms") is not None).mean


def step_time(runs: Sequence[Record]) -> str:
    """Return the time of a step in milliseconds, and how many runs shared the device."""
    ms = pace(runs)
    if not math.isfinite(ms):
        return NONE
    shared = at_once(runs)
    return f"{ms:.3g}" + (f", {shared} at once" if shared else "")


def at_once(runs: Iterable[Record]) -> str:
    """Return how many runs shared the device, the least and the most; nothing if none did."""
    counts = [run.get("at_once", 1) for run in runs]
    least, most = min(counts, default=1), max(counts, default=1)
    if most == 1:
        return ""
    return f"{most}" if least == most else f"{least} to {most}"


def duration(seconds: Sequence[float]) -> str:
    """Return the mean of durations, in a unit that suits it."""
    if not seconds:
        return NONE
    mean = fmean(seconds)
    if mean < 10:
        return f"{mean:.2g} s"
    if mean < 600:
        return f"{mean:.0f} s"
    return f"{mean / 60:.0f} min" if mean < 7200 else f"{mean / 3600:.1f} h"
