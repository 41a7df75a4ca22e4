"""The record: a CSV file to which every run adds its rows."""

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sparsewire_lab.files import write_whole

Row = dict[str, Any]

# The type of each column: a missing text is read as empty, a missing number as None.
_TYPES: dict[str, type] = {
    **dict.fromkeys(("date", "commit", "plan", "device"), str),
    **dict.fromkeys(("python", "torch", "numpy", "triton", "keops", "sparsewire"), str),
    **dict.fromkeys(("case", "variant", "engine", "mode"), str),
    **dict.fromkeys(("n", "k", "m", "r", "batch", "contexts"), int),
    "status": str,
    **dict.fromkeys(("ms_forward", "ms_forward_backward", "noise", "extra_mib", "error"), float),
    "checked_against": str,
    "repeats": int,
    **dict.fromkeys(("pairs", "exps", "flops", "bytes", "floor_forward_ms", "floor_ms"), float),
    **dict.fromkeys(("near_pairs", "near_floor_ms"), float),
    "floor_limit": str,
    **dict.fromkeys(("ratio_to_reference", "rate"), float),
    **dict.fromkeys(("unit", "note", "package"), str),
}
COLUMNS = tuple(_TYPES)
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
    if header != COLUMNS:
        rows = [*(read(path) if header is not None else ()), *rows]
        write_whole(path, _text([COLUMNS, *map(_written, rows)]).encode())
        return
    with path.open("a", newline="", encoding="utf-8") as file:
        file.write(_text(map(_written, rows)))


def read(path: Path) -> list[Row]:
    """Return all rows; columns that an older file does not have are None."""
    header = _header(path)
    if header is None:
        raise ValueError(f"{path} must be a record of sparsewire bench; it is missing or empty")
    if missing := _NEEDED - set(header):
        names = ", ".join(sorted(missing))
        raise ValueError(f"{path} must be a record of sparsewire bench; it has no column {names}")
    if unknown := [name for name in header if name not in COLUMNS]:
        raise ValueError(
            f"{path} has columns that this version does not know: {', '.join(unknown)}; "
            "name another file with --record"
        )
    with path.open(newline="", encoding="utf-8") as file:
        return [
            {name: _parsed(kind, row.get(name) or "") for name, kind in _TYPES.items()}
            for row in csv.DictReader(file)
        ]


def merge(path: Path, other: Path) -> int:
    """Add the rows of another record that this one does not have; return how many."""
    have = {_written(row) for row in read(path)} if _header(path) is not None else set()
    new = [row for row in read(other) if _written(row) not in have]
    append(path, new)
    return len(new)


def _header(path: Path) -> tuple[str, ...] | None:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return tuple(next(csv.reader(file)))
    except (FileNotFoundError, StopIteration):
        return None


def _text(lines: Iterable[tuple[str, ...]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def _written(row: Row) -> tuple[str, ...]:
    values = [row[column] for column in COLUMNS]
    return tuple(
        f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)
        for value in values
    )


def _parsed(kind: type, text: str) -> Any:
    return None if kind is not str and not text else kind(text)
