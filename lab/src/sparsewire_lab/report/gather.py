"""Folders → records that can be shown, with the files they name; what cannot is said in notes."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sparsewire_lab.bench import record as bench_record
from sparsewire_lab.train import records
from sparsewire_lab.train.records import Record

Row = dict[str, Any]

# What the sections read of a run's arguments; True where it must be a whole number.
_ARGUMENTS: dict[str, dict[str, bool]] = {
    "identity": {
        **{"size": True, "steps": True},
        **{"method": False, "target": False, "values": False, "lr": False},
    },
    "attention": {
        **{"glimpses": True, "size": True, "canvas": True, "reduce": True},
        **{"steps": True, "batch": True},
        **{"model": False, "preset": False, "data": False, "split": False, "head": False},
    },
    "sorting": {
        **{"size": True, "places": True, "steps": True, "batch": True},
        **{"method": False, "loss": False, "preset": False, "data": False, "split": False},
    },
}
EXPERIMENTS = tuple(_ARGUMENTS)
_WORDS = ("key", "status", "command", "date", "commit", "device")
_NUMBERS = ("seconds", "step_ms", "peak_memory")


class Found(NamedTuple):
    """All that a page is made of."""

    records: list[Record]
    """Of all files, each run once; `file` is where its arrays are, None if there are none."""
    bench: list[Row]
    """The rows of `sparsewire bench`."""
    notes: list[str]
    """What was left out, and why."""

    def of(self, experiment: str) -> list[Record]:
        """Return the records of one experiment."""
        return [record for record in self.records if record["experiment"] == experiment]


def gather(places: Iterable[Path], bench: Path | None = None, strict: bool = True) -> Found:
    """Return what folders, or files of records, hold.

    Args:
        places: Folders, searched with all that is in them, or files of records.
        bench: The record of `sparsewire bench`; None for none.
        strict: Whether a place that holds no records is an error.

    Raises:
        ValueError: A place is not there or holds no records; the benchmark's file is not one.
    """
    found: dict[tuple[str, str, int], Record] = {}
    notes: list[str] = []
    for place in places:
        here = 0
        for path in _files(place):
            for record in records.read(path):
                here += 1
                if problem := problem_of(record):
                    notes.append(f"{path}, run {record['key']}: {problem}")
                    continue
                name = str(record["experiment"]), str(record["key"]), record["seed"]
                found[name] = max(
                    (_cleaned(record, path.parent), *filter(None, [found.get(name)])), key=_date
                )
        if strict and not here:
            raise ValueError(f"{place} must hold records of runs; there are none in it")
    rows = [] if bench is None else bench_record.read(bench)
    return Found(list(found.values()), rows, notes)


def problem_of(record: Record) -> str | None:
    """Return why a record cannot be shown, None if it can."""
    wanted = _ARGUMENTS.get(str(record["experiment"]))
    arguments, curve, final = (record[name] for name in ("arguments", "curve", "final"))
    if wanted is None:
        return f"experiment {str(record['experiment'])!r} is not known"
    if not isinstance(record["seed"], int) or not isinstance(arguments, dict):
        return "its seed must be a number and its arguments a table"
    if not isinstance(final, dict | None) or not _numeric((final or {}).values()):
        return "its final must be a table of numbers"
    for name, whole in wanted.items():
        if name not in arguments:
            return f"it has no argument {name}"
        if whole and type(arguments[name]) is not int:
            return f"its argument {name} must be a whole number"
    rate = arguments.get("lr", 0.0)
    if rate is not None and not isinstance(rate, int | float):
        return "its argument lr must be a number"
    return _curve_problem(curve)


def _curve_problem(curve: Any) -> str | None:
    if not isinstance(curve, dict) or not {"step", "error"} <= curve.keys():
        return "its curve must have step and error"
    lists = [values for values in curve.values() if isinstance(values, list)]
    if len(lists) < len(curve) or len({len(values) for values in lists}) > 1:
        return "its curve must have lists of one length"
    if not all(type(step) is int for step in curve["step"]):
        return "its steps must be whole numbers"
    if not all(map(_numeric, lists)):
        return "its curve must have numbers"
    errors = (error for error in curve["error"] if error is not None)
    if not any(map(math.isfinite, errors)):
        return "its curve has no error"
    return None


def _numeric(values: Iterable[Any]) -> bool:
    return all(value is None or isinstance(value, int | float) for value in values)


def _files(place: Path) -> Sequence[Path]:
    if place.is_dir():
        return sorted(place.rglob("*.jsonl"))
    if not place.exists():
        raise ValueError(f"{place} must be a folder or a file of records; it is not there")
    return [place]


def _cleaned(record: Record, home: Path) -> Record:
    """The record with words where words are expected, numbers where numbers, and its file."""
    words = {name: str(record.get(name) or "") for name in _WORDS}
    numbers = {name: _number(record.get(name)) for name in _NUMBERS}
    versions = record.get("versions")
    versions = versions if isinstance(versions, dict) else {}
    cleaned = {
        "final": record["final"] or {},
        "versions": {str(name): str(version) for name, version in versions.items()},
        "at_once": int(_number(record.get("at_once")) or 1),
        "file": _file(record.get("wiring"), home),
    }
    return record | words | numbers | cleaned


def _file(name: object, home: Path) -> Path | None:
    """Where a record's arrays are; a name that leads out of the record's folder is none."""
    if not isinstance(name, str) or not name:
        return None
    file = home / name
    return file if file.resolve().is_relative_to(home.resolve()) and file.is_file() else None


def _number(value: object) -> float | None:
    """The value, if it is a finite number."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _date(record: Record) -> str:
    return str(record.get("date", ""))
