"""The record: a CSV file to which every run adds its rows."""

import csv
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]

_TEXT = (
    *("date", "commit", "plan", "device"),
    *("python", "torch", "numpy", "triton", "keops", "sparsewire"),
    *("case", "variant", "engine", "mode"),
)
_COUNTS = ("n", "k", "m", "r", "batch", "contexts")
_RESULT = ("status",)
_NUMBERS = ("ms_forward", "ms_forward_backward", "noise", "extra_mib", "error")
_FLOORS = (
    *("pairs", "exps", "flops", "bytes", "floor_forward_ms", "floor_ms"),
    *("near_pairs", "near_floor_ms"),
)
COLUMNS = (
    *_TEXT,
    *_COUNTS,
    *_RESULT,
    *_NUMBERS,
    "checked_against",
    "repeats",
    *_FLOORS,
    "floor_limit",
    "ratio_to_reference",
    "rate",
    "unit",
    "note",
)
_WHOLE = {*_COUNTS, "repeats"}
_REAL = {*_NUMBERS, *_FLOORS, "ratio_to_reference", "rate"}
_NEEDED = {"date", "device", "case", "engine"}


def complete(row: Row) -> Row:
    """Return the row with every column, in order; refuse unknown columns."""
    if unknown := row.keys() - set(COLUMNS):
        raise ValueError(f"row must have known columns; got {sorted(unknown)}")
    return {column: row.get(column) for column in COLUMNS}


def append(path: Path, rows: Iterable[Row]) -> None:
    """Add rows to a file, which is made if it is missing, and rewritten if its columns are old."""
    rows = [complete(row) for row in rows]
    header = _header(path)
    if header is not None and header != COLUMNS:
        _rewrite(path, read(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if header is None:
            writer.writerow(COLUMNS)
        writer.writerows([_written(row[column]) for column in COLUMNS] for row in rows)


def read(path: Path) -> list[Row]:
    """Return all rows; columns that an older file does not have are None."""
    header = _header(path)
    if header is None:
        raise ValueError(f"{path} must be a record of sparsewire bench; it is missing or empty")
    if missing := _NEEDED - set(header):
        raise ValueError(
            f"{path} must be a record of sparsewire bench; it has no column "
            f"{', '.join(sorted(missing))}"
        )
    if unknown := [name for name in header if name not in COLUMNS]:
        raise ValueError(
            f"{path} has columns that this version does not know: {', '.join(unknown)}; "
            "name another file with --record"
        )
    with path.open(newline="", encoding="utf-8") as file:
        return [_read_row(row) for row in csv.DictReader(file)]


def merge(path: Path, other: Path) -> int:
    """Add the rows of another record that this one does not have; return how many."""
    have = {_key(row) for row in read(path)} if _header(path) is not None else set()
    new = [row for row in read(other) if _key(row) not in have]
    append(path, new)
    return len(new)


def _key(row: Row) -> tuple[str, ...]:
    return tuple(_written(row[column]) for column in COLUMNS)


def _header(path: Path) -> tuple[str, ...] | None:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return tuple(next(csv.reader(file)))
    except (FileNotFoundError, StopIteration):
        return None


def _rewrite(path: Path, rows: Sequence[Row]) -> None:
    """Replace the file, whole or not at all."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    append(fresh, rows)
    os.replace(fresh, path)


def _written(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _read_row(row: dict[str, str]) -> Row:
    return {column: _parsed(column, row.get(column) or "") for column in COLUMNS}


def _parsed(column: str, text: str) -> Any:
    if column in _WHOLE:
        return int(text) if text else None
    if column in _REAL:
        return float(text) if text else None
    return text
