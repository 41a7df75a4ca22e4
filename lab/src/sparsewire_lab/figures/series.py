"""Records → series: what figures show, as plain numbers."""

import math
import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

Record = dict[str, Any]

THRESHOLD = 1e-3


class Group(NamedTuple):
    """The runs of one setting, one for each seed, and how many learning rates it was chosen of."""

    setting: dict[str, Any]
    runs: list[Record]
    rates: int = 1


class Series(NamedTuple):
    """Mean and standard deviation of the error at each step, over the seeds that are there.

    The deviation is that of a sample, with n − 1, and NaN where there is one seed only; the mean
    of the seconds is NaN where a seed has none.
    """

    steps: list[int]
    mean: list[float]
    deviation: list[float]
    seconds: list[float]


class Reach(NamedTuple):
    """Seconds and steps until the error fell below the threshold, averaged over the seeds.

    A seed that did not get there counts with its total; then `reached` is False, and the numbers
    are less than the truth.
    """

    seconds: float
    steps: float
    reached: bool


def points(run: Record) -> Iterator[tuple[int, float, float]]:
    """Give step, error and seconds of a run, where its error is a finite number."""
    steps, errors, seconds = (run["curve"].get(name) for name in ("step", "error", "seconds"))
    seconds = seconds or [math.nan] * len(steps)
    if not len(steps) == len(errors) == len(seconds):
        raise ValueError(
            "records must have as many errors and seconds as steps on their curves; got "
            f"{len(errors)}, {len(seconds)} and {len(steps)}"
        )
    for step, error, second in zip(steps, errors, seconds, strict=True):
        if error is not None and math.isfinite(error):
            yield step, error, math.nan if second is None else second


def final_error(run: Record) -> float:
    """Return the error at the end, the last of the curve if none was noted; ∞ if it diverged."""
    final = run.get("final") or {}
    error = final["error"] if "error" in final else list(points(run))[-1][1]
    if run.get("status") == "diverged" or error is None or not math.isfinite(error):
        return math.inf
    return error


def average(group: Group) -> Series:
    """Return the series of a group; a run that stopped early counts up to where it stopped."""
    found: dict[int, list[tuple[float, float]]] = {}
    for run in group.runs:
        for step, error, seconds in points(run):
            found.setdefault(step, []).append((error, seconds))
    steps = sorted(found)
    errors = [[error for error, _ in found[step]] for step in steps]
    return Series(
        steps,
        [statistics.fmean(seeds) for seeds in errors],
        [statistics.stdev(seeds) if len(seeds) > 1 else math.nan for seeds in errors],
        [statistics.fmean(seconds for _, seconds in found[step]) for step in steps],
    )


def reach(group: Group, threshold: float = THRESHOLD) -> Reach:
    """Return how long the runs of a group took until the error first fell below the threshold."""
    ends, reached = [], True
    for run in group.runs:
        curve = list(points(run))
        first = next((point for point in curve if point[1] < threshold), None)
        reached &= first is not None
        ends.append(first or curve[-1])
    return Reach(
        statistics.fmean(seconds for _, _, seconds in ends),
        statistics.fmean(step for step, _, _ in ends),
        reached,
    )
