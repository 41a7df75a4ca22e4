"""How time and memory grow with the size: exponents of power laws, fitted to a record."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from sparsewire_lab.bench.cases import LEAGUE, LEAGUE_SINCE, OURS, SHAPED
from sparsewire_lab.bench.record import Row

# Small sizes show the cost of a call, the largest how it grows.
LAST, LEAST = 4, 3

LABELS = {
    OURS: "ours",
    "plain": "plain PyTorch",
    "keops": "KeOps",
    "softsort": "SoftSort",
    "neuralsort": "NeuralSort",
    "softtorch": "SoftTorch",
    "softtorch fast_soft_sort": "SoftTorch, fast_soft_sort",
    "lapsum": "LapSum",
    "dftopk": "DFTopK",
    # In older records only.
    "sinkhorn": "Sinkhorn",
    "bitonic values": "bitonic, no matrix",
    "neighbours": "ours, neighbours",
    "listmle": "ListMLE",
    "ott": "OTT",
}


class Series(NamedTuple):
    """One engine's time or memory over n."""

    label: str
    engine: str
    variant: str
    mode: str
    points: list[tuple[int, float]]
    exponent: float | None


def newest(rows: Sequence[Row]) -> dict[str, dict[str, list[Row]]]:
    """Return, by device and by case, the rows of the newest run that measured it.

    A full run comes before quick ones and those of chosen sizes, however old it is. Soft sorts that
    no longer exist are left out.
    """
    parts: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        if row["case"] in LEAGUE and row["date"] < LEAGUE_SINCE:
            continue
        parts.setdefault(row["device"], {}).setdefault(row["case"], []).append(row)
    for measured in parts.values():
        for case, all_runs in measured.items():
            _, date = max((row["plan"] == "full", row["date"]) for row in all_runs)
            measured[case] = [row for row in all_runs if row["date"] == date]
    return parts


def series(rows: Sequence[Row], column: str) -> list[Series]:
    """Return a column over n for each engine, variant and mode that has more than one size."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row["status"] == "ok" and row[column]:
            groups.setdefault(label(row), []).append(row)
    lines = []
    for name, group in groups.items():
        points = sorted((row["n"], row[column]) for row in group)
        engine, variant, mode = (group[0][key] for key in ("engine", "variant", "mode"))
        if len(points) > 1:
            lines.append(Series(name, engine, variant, mode, points, exponent(points)))
    return lines


def label(row: Row) -> str:
    """Return the name of an engine, with its variant and mode where they are not the usual ones."""
    words = [str(LABELS.get(row["engine"], row["engine"]))]
    if row["variant"] and row["case"] not in SHAPED:
        words.append(row["variant"])
    if row["mode"] == "captured":
        words.append("captured")
    return ", ".join(words)


def exponent(points: Sequence[tuple[int, float]]) -> float | None:
    """Fit y = c · n^e to the largest sizes, by least squares in the logarithms; None for too few.

    Examples:
        >>> exponent([(10, 3.0), (100, 300.0), (1000, 30000.0)])
        2.0
    """
    last = sorted(points)[-LAST:]
    if len({n for n, _ in last}) < LEAST:
        return None
    xs, ys = zip(*((math.log(n), math.log(y)) for n, y in last), strict=True)
    return round(statistics.linear_regression(xs, ys).slope, 12)
