"""Rows of `sparsewire bench` → tables of each device, and how time and memory grow."""

from collections.abc import Callable, Sequence
from typing import Any

from sparsewire_lab.bench import growth
from sparsewire_lab.figures.series import by
from sparsewire_lab.report.viewers import short

Row = dict[str, Any]

# In this order; other cases have the name of the record.
TITLES = {
    "spread": "spread: shares of all integer tuples, forward and backward",
    "spread, few": "spread with few integer tuples",
    "step": "a training step of the free layer, batch 64",
    "glimpse": "glimpse layers reading 100 × 100 pixels",
    "soft_sort": "soft_sort: elements in order",
    "soft_rank": "soft_rank: the place of each element",
    "sort_by": "sort_by: payload in the order of its keys",
    "order_loss": "order_loss: where the order is known",
}
_COLUMNS: dict[str, Callable[[Row], str]] = {
    "n": lambda row: f"{row['n']:,}" if row["n"] else str(row["variant"] or "–"),
    "engine": lambda row: growth.label(row),
    "forward, ms": lambda row: milliseconds(row["ms_forward"]),
    "and backward, ms": lambda row: milliseconds(row["ms_forward_backward"]),
    "extra memory, MiB": lambda row: (
        "–" if row["extra_mib"] is None else f"{row['extra_mib']:,.3g}"
    ),
    "error": lambda row: "–" if row["error"] is None else f"{row['error']:.0e}",
    "note": lambda row: _note(row),
}
HEAD = tuple(_COLUMNS)


def cases(rows: Sequence[Row]) -> list[tuple[str, str, list[Row]]]:
    """Return device, case and rows of the newest run of each, but for the ceilings."""
    chosen = []
    for device, here in growth.newest(rows).items():
        names = [*TITLES, *(case for case in here if case not in TITLES and case != "ceilings")]
        chosen += [(device, case, here[case]) for case in names if here.get(case)]
    return chosen


def cells(row: Row) -> list[str]:
    """Return the cells of a row of the table."""
    return [write(row) for write in _COLUMNS.values()]


def chart(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Return how time and memory grow with the size, for the page's script; None if nothing."""
    tasks = []
    for device, case, here in cases(rows):
        lines = _lines(here)
        if lines:
            tasks.append({"name": f"{TITLES.get(case, case)} ({device})", "lines": lines})
    if not tasks:
        return None
    return {
        "x": {"n": "size n"},
        "y": {"time": "forward and backward, ms", "memory": "extra memory at the peak, MiB"},
        "log": {"x": True, "y": True},
        "start": 0,
        "tasks": tasks,
    }


def milliseconds(value: float | None) -> str:
    """Return a time, or a dash."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _lines(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return a line for each engine that was measured at more than one size; ours first."""
    timed = [
        row for row in rows if row["status"] == "ok" and row["n"] and row["ms_forward_backward"]
    ]
    lines = []
    for name, group in by(timed, growth.label).items():
        group.sort(key=lambda row: row["n"])
        if len({row["n"] for row in group}) < 2:
            continue
        run = {
            "seed": None,
            "n": [row["n"] for row in group],
            "time": [short(row["ms_forward_backward"]) for row in group],
            "memory": [short(row["extra_mib"]) for row in group],
        }
        exponent = growth.exponent([(row["n"], row["ms_forward_backward"]) for row in group])
        grows = "" if exponent is None else f" (∝ n^{exponent:.2f})"
        lines.append({"name": name + grows, "runs": [run]})
    return sorted(lines, key=lambda line: not line["name"].startswith("ours"))


def _note(row: Row) -> str:
    words = [] if row["status"] in ("ok", "") else [row["status"]]
    return ": ".join([*words, *([row["note"]] if row["note"] else [])])
