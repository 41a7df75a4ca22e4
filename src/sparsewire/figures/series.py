"""Records → series: what the figures of the identity experiment show, as plain numbers."""

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from sparsewire.experiments.identity import Identity

Record = dict[str, Any]

THRESHOLD = 1e-3
# In the order of legends; others come after them.
METHODS = ("sparse", "reinforce", "rewire")
# These do not change what is computed: runs that differ in them and their seed alone are one group.
NOT_SETTINGS = Identity.bookkeeping | {"seed"}
# A sweep is a search of the learning rate for one combination of these.
PROBLEM = ("size", "method", "target", "values")


class Group(NamedTuple):
    """The runs of one setting, one for each seed, and how many learning rates it was chosen of."""

    setting: dict[str, Any]
    runs: list[Record]
    rates: int = 1

    @property
    def problem(self) -> tuple[Any, ...]:
        """Return what the setting was to solve and how, but for the details."""
        return tuple(self.setting.get(name) for name in PROBLEM)

    @property
    def rank(self) -> tuple[float, float]:
        """Return the mean final error, then the mean along the curve: where it is less is best."""
        curves = [statistics.fmean(e for _, e, _ in points(run)) for run in self.runs]
        return statistics.fmean(map(final_error, self.runs)), statistics.fmean(curves)


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


def groups(records: Iterable[Record]) -> list[Group]:
    """Return the settings among the records, smallest size first; of a seed run twice, the last.

    Raises:
        ValueError: No record has a size, a method and a curve of errors.
    """
    records = list(records)
    found: dict[str, tuple[dict[str, Any], dict[Any, Record]]] = {}
    for record in filter(_is_curve, records):
        setting = {k: v for k, v in record["arguments"].items() if k not in NOT_SETTINGS}
        key = json.dumps(setting, sort_keys=True, default=str)
        found.setdefault(key, (setting, {}))[1][record.get("seed")] = record
    if not found:
        raise ValueError(
            "records must hold runs of the identity experiment, with size and method among their "
            f"arguments and a curve of step and error; got {len(records)} records, none of these"
        )
    every = [Group(setting, list(runs.values())) for setting, runs in found.values()]
    return sorted(every, key=_order)


def best_rates(every: Sequence[Group]) -> list[Group]:
    """Return the groups at the best learning rate of each problem: the lowest mean final error."""
    chosen = []
    for problem in _problems(every):
        rate = min(problem, key=lambda group: group.rank).setting.get("lr")
        rates = len({group.setting.get("lr") for group in problem})
        chosen += [g._replace(rates=rates) for g in problem if g.setting.get("lr") == rate]
    return chosen


def best(every: Sequence[Group]) -> list[Group]:
    """Return one group for each problem: that with the lowest mean final error."""
    return [min(problem, key=lambda group: group.rank) for problem in _problems(every)]


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


def details(group: Group, among: Sequence[Group]) -> list[str]:
    """Return in words what tells a group apart from others of its size and method."""
    words = [
        str(group.setting.get(name))
        for name in ("target", "values")
        if len({str(other.setting.get(name)) for other in among}) > 1
    ]
    if group.rates > 1:
        words.append(f"lr {group.setting['lr']:g}")
    same = [other.setting for other in among if other.problem == group.problem]
    names = [name for name in group.setting if name not in PROBLEM]
    words += [
        f"{name.replace('_', ' ')} {group.setting[name]}"
        for name in names
        if len({str(setting.get(name)) for setting in same}) > 1
    ]
    return words


def _order(group: Group) -> tuple[int, int, str]:
    size, method = group.setting["size"], str(group.setting["method"])
    return size, METHODS.index(method) if method in METHODS else len(METHODS), method


def _problems(every: Sequence[Group]) -> list[list[Group]]:
    found: dict[tuple[Any, ...], list[Group]] = {}
    for group in every:
        found.setdefault(group.problem, []).append(group)
    return list(found.values())


def _is_curve(record: Record) -> bool:
    curve, arguments = record.get("curve") or {}, record.get("arguments") or {}
    named = {"size", "method"} <= arguments.keys() and {"step", "error"} <= curve.keys()
    return named and any(True for _ in points(record))
