"""The provenance of the numbers: devices, versions, commits and dates of all runs."""

from collections.abc import Iterable, Sequence
from typing import Any

from sparsewire_lab.report.load import Results

HEAD = ("device", "what", "versions", "commit", "dates")
_VERSIONS = ("python", "torch", "numpy", "triton", "keops", "sparsewire")


def origins(results: Results) -> list[tuple[str, ...]]:
    """Return a row for each device, experiment, set of versions and commit."""
    runs = [
        (
            record["device"],
            str(record["experiment"]),
            _versions(record["versions"]),
            record["commit"],
            record["date"],
        )
        for record in results.records
    ]
    runs += [
        (row["device"], "benchmark", _versions(row), row["commit"], row["date"])
        for row in results.bench
    ]
    dates: dict[tuple[str, ...], list[str]] = {}
    for *place, date in runs:
        dates.setdefault(tuple(str(part or "unknown") for part in place), []).append(str(date))
    return [_row(place, dates[place]) for place in sorted(dates)]


def _row(place: Sequence[str], dates: Sequence[str]) -> tuple[str, ...]:
    device, what, versions, commit = place
    count = len(dates)
    unit = "row" if what == "benchmark" else "run"
    words = f"{what}, {count} {unit}{'' if count == 1 else 's'}"
    return device, words, versions, _short_commit(commit), _span(dates)


def _versions(versions: dict[str, Any]) -> str:
    known = [name for name in _VERSIONS if versions.get(name)]
    return ", ".join(f"{name} {versions[name]}" for name in known)


def _short_commit(commit: str) -> str:
    """Return a commit with ten digits, and what follows it."""
    number, plus, rest = commit.partition("+")
    return f"{number[:10]}{plus}{rest}"


def _span(dates: Iterable[str]) -> str:
    days = sorted({date[:10] for date in dates if date})
    if not days:
        return "unknown"
    return days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
