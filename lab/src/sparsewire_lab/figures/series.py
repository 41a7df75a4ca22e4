"""Records → series: what figures and tables show, as plain numbers."""

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from sparsewire_lab.train.records import Record

THRESHOLD = 1e-3
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class Group(NamedTuple):
    """The runs of one setting, one for each seed."""

    setting: dict[str, Any]
    """The arguments of the runs, and their key."""
    runs: list[Record]
    rates: int = 1
    """The number of learning rates that this one was chosen from."""

    @property
    def finished(self) -> list[Record]:
        """Return the runs that did not diverge."""
        return [run for run in self.runs if run["status"] != "diverged"]

    @property
    def seeds(self) -> str:
        """Return the number of runs, or how many of them diverged, in words."""
        count, diverged = len(self.runs), len(self.runs) - len(self.finished)
        return f"{diverged} of {count} diverged" if diverged else str(count)

    @property
    def mean_error(self) -> float:
        """Return the mean final error of the runs that did not diverge."""
        return statistics.fmean(map(final_error, self.finished))


class Series(NamedTuple):
    """Mean and standard deviation of a metric at each step, over the seeds that have it.

    The deviation is that of a sample, with n − 1, and NaN for a single seed; the mean of the
    seconds is NaN where a seed has none.
    """

    steps: list[int]
    mean: list[float]
    deviation: list[float]
    seconds: list[float]


class Reach(NamedTuple):
    """Seconds and steps until the error fell below the threshold, averaged over the seeds.

    A seed that did not reach it counts with its total; then `reached` is False, and the numbers
    are lower bounds.
    """

    seconds: float
    steps: float
    reached: bool


def grouped(records: Iterable[Record], experiment: str) -> list[Group]:
    """Return the settings among the records of an experiment, in the order of the records."""
    known = (record for record in records if record["experiment"] == experiment)
    groups = by(known, lambda record: record["key"])
    return [Group(runs[-1]["arguments"] | {"key": key}, runs) for key, runs in groups.items()]


def by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return items by their keys, in the order in which keys first come."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def has(run: Record, **arguments: Any) -> bool:
    """Return whether a run has these arguments."""
    return all(run["arguments"].get(name) == value for name, value in arguments.items())


def points(run: Record, metric: str = "error") -> Iterator[tuple[int, float, float]]:
    """Yield step, metric and seconds of a run, where the metric is a finite number."""
    curve = run["curve"]
    seconds = curve.get("seconds") or [math.nan] * len(curve["step"])
    for step, value, second in zip(curve["step"], curve[metric], seconds, strict=True):
        if value is not None and math.isfinite(value):
            yield step, value, math.nan if second is None else second


def final_error(run: Record) -> float:
    """Return the final error, the last of the curve if none was recorded; ∞ if it diverged."""
    final = run["final"] or {}
    error = final["error"] if "error" in final else list(points(run))[-1][1]
    if run["status"] == "diverged" or error is None or not math.isfinite(error):
        return math.inf
    return error


def average(runs: Sequence[Record], metric: str = "error") -> Series:
    """Return the series of runs; a run that stopped early counts up to where it stopped."""
    by_step: dict[int, list[tuple[float, float]]] = {}
    for run in runs:
        for step, value, seconds in points(run, metric):
            by_step.setdefault(step, []).append((value, seconds))
    steps = sorted(by_step)
    values = [[value for value, _ in by_step[step]] for step in steps]
    return Series(
        steps,
        [statistics.fmean(seeds) for seeds in values],
        [statistics.stdev(seeds) if len(seeds) > 1 else math.nan for seeds in values],
        [statistics.fmean(seconds for _, seconds in by_step[step]) for step in steps],
    )


def reach(runs: Sequence[Record], threshold: float = THRESHOLD) -> Reach:
    """Return how long runs took until their error first fell below the threshold."""
    ends, reached = [], True
    for run in runs:
        curve = list(points(run))
        first = next((point for point in curve if point[1] < threshold), None)
        reached &= first is not None
        ends.append(first or curve[-1])
    return Reach(
        statistics.fmean(seconds for _, _, seconds in ends),
        statistics.fmean(step for step, _, _ in ends),
        reached,
    )


def reach_words(runs: Sequence[Record]) -> str:
    """Return after how many steps the error fell below the threshold, or in how many seeds."""
    reached = [reach([run]).reached for run in runs]
    if not all(reached) or not runs:
        return f"{sum(reached)} of {len(runs)} seeds" if any(reached) else "never"
    whole = reach(runs)
    seconds = f", {whole.seconds:.2g} s" if math.isfinite(whole.seconds) else ""
    return f"{whole.steps:,.0f} steps{seconds}"


def drawable(groups: Iterable[Group], *metrics: str) -> list[Group]:
    """Return the groups with a run that did not diverge and with these metrics on their curves."""
    return [
        group
        for group in groups
        if all(set(metrics) <= run["curve"].keys() for run in group.finished)
        and average(group.finished).steps
    ]


def lowest(groups: Sequence[Group], most: int, key: Callable[[Group], Any]) -> list[Group]:
    """Return the groups with the lowest keys, up to this number, still in their order."""
    best = {id(group) for group in sorted(groups, key=key)[:most]}
    return [group for group in groups if id(group) in best]


def split_words(groups: Iterable[Group]) -> str:
    """Return the set on which groups were measured."""
    splits = {group.setting["split"] for group in groups}
    return splits.pop() if len(splits) == 1 else "test or validation"


def measured(runs: Sequence[Record], can_be_drawn: Callable[[list[Record]], Any]) -> list[Record]:
    """Return the runs on the test set if they can be drawn, else those on the validation set."""
    for split in ("test", "validation"):
        chosen = [run for run in runs if has(run, split=split)]
        if can_be_drawn(chosen):
            return chosen
    return []


def representatives(
    groups: Iterable[Group],
    name: Callable[[dict[str, Any]], str],
    worth: Callable[[Record], tuple[Any, ...]],
) -> dict[str, Record]:
    """Return one run with a file of arrays for each name of a figure.

    It is the run with the lowest seed of its setting; of settings with the same name, the last one
    of the highest worth.

    Args:
        groups: The settings.
        name: Returns the name of a setting's figure.
        worth: Returns what the runs of one name are ordered by.
    """
    chosen: dict[str, Record] = {}
    for group in groups:
        runs = [run for run in group.finished if run["file"] is not None]
        if not runs:
            continue
        run, title = min(runs, key=lambda run: run["seed"]), name(group.setting)
        if title not in chosen or worth(run) >= worth(chosen[title]):
            chosen[title] = run
    return chosen
