"""Settings → curves: error and loss of every run, as plain numbers for the page's script."""

from collections.abc import Sequence
from typing import Any

from sparsewire_lab.report.entries import Entry, by_task
from sparsewire_lab.report.viewers import frames_of, short
from sparsewire_lab.train.records import Record

_LABELS = {
    "identity": {"error": "rounded error", "loss": "training loss"},
    "attention": {"error": "error, % of digits", "loss": "training loss"},
    "sorting": {"error": "error, % of sets", "loss": "training loss"},
}
# Of more points a curve has evenly spaced ones: a screen shows no more, and the page stays small.
_MOST_POINTS, _LEAST_POINTS, _MOST_POINTS_OF_ALL = 400, 25, 60_000


def chart(experiment: str, entries: Sequence[Entry]) -> dict[str, Any] | None:
    """Return the curves of an experiment, task by task; None if there are none."""
    runs = sum(len(entry.group.runs) for entry in entries)
    most = max(_LEAST_POINTS, min(_MOST_POINTS, _MOST_POINTS_OF_ALL // max(runs, 1)))
    tasks = [_task(experiment, name, alike, most) for name, alike in by_task(entries).items()]
    tasks = [task for task in tasks if task["lines"]]
    if not tasks:
        return None
    return {
        "x": {"step": "training steps", "seconds": "seconds of training"},
        "y": _LABELS[experiment],
        "log": {"x": False, "y": True},
        "start": _first_shown(tasks),
        "tasks": tasks,
    }


def _first_shown(tasks: Sequence[dict[str, Any]]) -> int:
    """Return the number of the first task to show: the size whose wires the paper shows."""
    shown = [number for number, task in enumerate(tasks) if task["name"].endswith("=\u00a032")]
    return shown[0] if shown else 0


def _task(experiment: str, name: str, alike: Sequence[Entry], most: int) -> dict[str, Any]:
    scale = 1.0 if experiment == "identity" else 100.0
    lines = [
        {
            "name": entry.name + ("" if entry.ours else " (baseline)"),
            "runs": [_run(run, scale, most) for run in entry.group.runs],
        }
        for entry in alike
    ]
    return {"name": name, "lines": lines}


def _run(record: Record, scale: float, most: int) -> dict[str, Any]:
    curve = record["curve"]
    count = len(curve["step"])
    chosen = frames_of(count, most)
    nothing = [None] * count
    return {
        "seed": record["seed"],
        "step": [curve["step"][i] for i in chosen],
        "seconds": [short((curve.get("seconds") or nothing)[i]) for i in chosen],
        "error": [short(curve["error"][i], scale) for i in chosen],
        "loss": [short((curve.get("loss") or nothing)[i]) for i in chosen],
    }
