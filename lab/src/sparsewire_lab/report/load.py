"""Folders → records that can be shown, with their files of arrays; notes on what is left out."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sparsewire_lab.bench import record as bench_record
from sparsewire_lab.train import records
from sparsewire_lab.train.record_checks import EXPERIMENTS, has_errors
from sparsewire_lab.train.records import Record, array_file

Row = dict[str, Any]

# An experiment whose runs have no curve.
RANKING = "label-ranking"

# What a record may lack.
_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("command", "date", "commit", "device"), ""),
    **{"final": {}, "versions": {}},
}


class Results(NamedTuple):
    """All that a page is made of."""

    records: list[Record]
    """The records of all files, each run once, with its file of arrays (or None) under `file`."""
    bench: list[Row]
    """The rows of `sparsewire bench`."""
    notes: list[str]
    """What was left out, and why."""

    def of(self, experiment: str) -> list[Record]:
        """Return the records of one experiment."""
        return [record for record in self.records if record["experiment"] == experiment]


def load(places: Iterable[Path], bench: Path | None = None, strict: bool = True) -> Results:
    """Return the results in folders, or in files of records.

    Args:
        places: Folders, searched with all their subfolders, or files of records.
        bench: The record of `sparsewire bench`; None for none.
        strict: Whether a place without records is an error.

    Raises:
        ValueError: A place is missing or holds no records; the benchmark's file is not one.
    """
    newest: dict[tuple[str, str, int], Record] = {}
    notes: list[str] = []
    for place in places:
        count = 0
        for path in _files(place):
            valid, skipped = records.read_all(path)
            notes += skipped
            count += len(valid)
            for record in valid:
                if problem := _problem_of(record):
                    notes.append(f"{path}, run {record['key']}: {problem}")
                    continue
                name = record["experiment"], record["key"], record["seed"]
                known = newest.get(name)
                if known is None or _date(record) >= _date(known):
                    newest[name] = _completed(record, path.parent)
        if strict and not count:
            raise ValueError(f"{place} must hold records of runs; there are none in it")
    rows = [] if bench is None else bench_record.read(bench)
    return Results(list(newest.values()), rows, notes)


def _problem_of(record: Record) -> str | None:
    """Return why a valid record cannot be shown; None if it can."""
    if record["experiment"] == RANKING:
        return None
    if record["experiment"] not in EXPERIMENTS:
        return f"experiment {record['experiment']!r} is not known"
    return None if has_errors(record) else "its curve has no error"


def _files(place: Path) -> Sequence[Path]:
    if place.is_dir():
        return sorted(place.rglob("*.jsonl"))
    if not place.exists():
        raise ValueError(f"{place} must be a folder or a file of records; it does not exist")
    return [place]


def _completed(record: Record, folder: Path) -> Record:
    given = {name: record.get(name) or default for name, default in _DEFAULTS.items()}
    return record | given | {"file": array_file(record, folder)}


def _date(record: Record) -> str:
    return record.get("date") or ""
