"""Records: one JSON line for each run, with all that is needed to know where a number is from."""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from sparsewire_lab.files import append_line

Record = dict[str, Any]

_NEEDED = ("experiment", "key", "seed", "status", "arguments", "curve", "final")


class Spread(NamedTuple):
    """Mean and standard deviation over seeds; no deviation is known of a single one."""

    mean: float
    deviation: float
    seeds: int

    def __str__(self) -> str:
        if self.seeds == 1:
            return f"{self.mean:.3g}"
        return f"{self.mean:.3g} ± {self.deviation:.2g}"


def append(path: Path, record: Record) -> None:
    """Add a record to a file, which is made if it is not there."""
    if missing := [name for name in _NEEDED if name not in record]:
        raise ValueError(f"record must have {', '.join(_NEEDED)}; it lacks {', '.join(missing)}")
    append_line(path, json.dumps(_plain(record), allow_nan=False))


def read(path: Path) -> list[Record]:
    """Return the newest record of every run, in the order in which runs were first recorded.

    Lines that are cut off or of something else are passed over: a killed process may leave one.
    """
    if not path.exists():
        return []
    newest: dict[tuple[str, int], Record] = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and all(name in record for name in _NEEDED):
            newest[record["key"], record["seed"]] = record
    return list(newest.values())


def aggregate(group: Sequence[Record]) -> dict[str, Spread]:
    """Return mean and standard deviation over seeds of all final metrics, by name.

    Examples:
        >>> str(aggregate([{"final": {"error": 1.0}}, {"final": {"error": 2.0}}])["error"])
        '1.5 ± 0.71'
    """
    names = list(dict.fromkeys(name for record in group for name in record["final"]))
    return {name: spread_of(record["final"].get(name) for record in group) for name in names}


def spread_of(numbers: Iterable[float | None]) -> Spread:
    """Return mean and standard deviation; a number that is missing or not finite makes both NaN."""
    values = [math.nan if number is None else float(number) for number in numbers]
    if not values or not all(map(math.isfinite, values)):
        return Spread(math.nan, math.nan, len(values))
    return Spread(mean(values), stdev(values) if len(values) > 1 else math.nan, len(values))


def _plain(value: Any) -> Any:
    """Return the same in JSON's terms, which knows no NaN and no infinity."""
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
