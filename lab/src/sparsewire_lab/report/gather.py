"""Folders → records that can be shown, with the files they name; what cannot is said in notes."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sparsewire_lab.bench import record as bench_record
from sparsewire_lab.train import records
from sparsewire_lab.train.record_checks import EXPERIMENTS, has_errors
from sparsewire_lab.train.records import Record, array_file

Row = dict[str, Any]

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
            valid, skipped = records.read_all(path)
            notes += skipped
            here += len(valid)
            for record in valid:
                if problem := _problem_of(record):
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


def _problem_of(record: Record) -> str | None:
    """Return why a valid record cannot be shown, None if it can."""
    if record["experiment"] not in EXPERIMENTS:
        return f"experiment {record['experiment']!r} is not known"
    return None if has_errors(record) else "its curve has no error"


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
        "file": array_file(record, home),
    }
    return record | words | numbers | cleaned


def _number(value: object) -> float | None:
    """The value, if it is a finite number."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _date(record: Record) -> str:
    return str(record.get("date", ""))
