"""Records: one JSON line for each run, with the provenance of every number."""

import json
import math
import os
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from sparsewire_lab.files import append_line
from sparsewire_lab.train.record_checks import problem_of

Record = dict[str, Any]

# Far above any run: 60,000 evaluations make a line of 6 MB.
LARGEST_FILE, LONGEST_LINE = 2**30, 2**26


class Statistics(NamedTuple):
    """Mean and standard deviation over seeds; the deviation of a single seed is NaN."""

    mean: float
    deviation: float
    seeds: int

    def __str__(self) -> str:
        if self.seeds == 1:
            return f"{self.mean:.3g}"
        return f"{self.mean:.3g} ± {self.deviation:.2g}"


def append(path: Path, record: Record) -> None:
    """Add a record to a file, which is created if it is missing.

    Raises:
        ValueError: The record is not valid.
    """
    plain = _plain(record)
    if problem := problem_of(plain):
        raise ValueError(f"record must be valid, but {problem}")
    append_line(path, json.dumps(plain, allow_nan=False))


def read(path: Path) -> list[Record]:
    """Return the newest valid record of every run, in the order in which runs were first recorded.

    A line that is not valid is skipped, with one warning that names file and line.
    """
    found, notes = read_all(path)
    for note in notes:
        warnings.warn(note, stacklevel=2)
    return found


def read_all(path: Path) -> tuple[list[Record], list[str]]:
    """Return the records that `read` returns, and a note on every line that was skipped.

    Lines of other measurements, without an experiment and a key, are skipped without a note.

    Raises:
        ValueError: The file is too large.
    """
    if not path.exists():
        return [], []
    if (size := path.stat().st_size) > LARGEST_FILE:
        raise ValueError(
            f"{path} must be at most {LARGEST_FILE:,} bytes to be read; it has {size:,}"
        )
    newest: dict[tuple[str, int], Record] = {}
    notes: list[str] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                if (record := _parsed(line)) is not None:
                    newest[record["key"], record["seed"]] = record
            except ValueError as error:
                notes.append(f"{path}, line {number}: skipped, {error}")
    return list(newest.values()), notes


def array_file(record: Record, folder: Path) -> Path | None:
    """Return the file of a record's arrays; None if it is missing or outside of the folder."""
    if not record.get("wiring"):
        return None
    file = folder / record["wiring"]
    inside = file.resolve().is_relative_to(folder.resolve())
    return file if inside and os.path.isfile(file) else None  # False for a name too long, too


def aggregate(group: Sequence[Record]) -> dict[str, Statistics]:
    """Return mean and standard deviation over seeds of all final metrics, by name.

    Examples:
        >>> str(aggregate([{"final": {"error": 1.0}}, {"final": {"error": 2.0}}])["error"])
        '1.5 ± 0.71'
    """
    finals = [record["final"] or {} for record in group]
    names = list(dict.fromkeys(name for final in finals for name in final))
    return {name: statistics_of(final.get(name) for final in finals) for name in names}


def statistics_of(numbers: Iterable[float | None]) -> Statistics:
    """Return mean and standard deviation; a number that is missing or not finite makes both NaN."""
    values = [math.nan if number is None else float(number) for number in numbers]
    if not values or not all(map(math.isfinite, values)):
        return Statistics(math.nan, math.nan, len(values))
    return Statistics(mean(values), stdev(values) if len(values) > 1 else math.nan, len(values))


def _parsed(line: bytes) -> Record | None:
    """Return the record in a line; None if the line is empty or of another measurement.

    Raises:
        ValueError: The line is not a valid record.
    """
    if len(line) > LONGEST_LINE:
        raise ValueError(f"it must have at most {LONGEST_LINE:,} bytes; it has {len(line):,}")
    if not line.strip():
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("it is cut off, or not JSON") from None
    if not isinstance(record, dict):
        raise ValueError(f"it must be a JSON object; got {type(record).__name__}")
    if not {"experiment", "key"} & record.keys():
        return None
    if problem := problem_of(record):
        raise ValueError(problem)
    return record


def _plain(value: Any) -> Any:
    """Return a value in the terms of JSON, which has no NaN and no infinity."""
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
