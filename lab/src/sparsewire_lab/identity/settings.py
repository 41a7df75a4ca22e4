"""The settings of the identity experiment: which runs belong to one, and which is the best."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from sparsewire_lab.figures.series import Group, Record, by, final_error, grouped, points
from sparsewire_lab.figures.settings import plain_value, position, variants
from sparsewire_lab.identity.experiment import Identity

# In the order of legends; others come after them.
METHODS = ("sparse", "reinforce", "rewire")
# A sweep searches the learning rate for one combination of these.
PROBLEM = ("size", "method", "target", "values")


def problem(group: Group) -> tuple[Any, ...]:
    """Return what a setting was to solve, and by which method."""
    return tuple(group.setting.get(name) for name in PROBLEM)


def rank(group: Group) -> tuple[float, float]:
    """Return the mean final error, then the mean along the curve: the lowest is the best."""
    curves = [statistics.fmean(error for _, error, _ in points(run)) for run in group.runs]
    return statistics.fmean(map(final_error, group.runs)), statistics.fmean(curves)


def groups(records: Iterable[Record]) -> list[Group]:
    """Return the settings among the records, smallest size first.

    Raises:
        ValueError: No record is of the identity experiment, with an error on its curve.
    """
    records = list(records)
    runs = [run for run in records if run["experiment"] == "identity" and any(points(run))]
    if not runs:
        raise ValueError(
            "records must hold runs of the identity experiment with an error on their curves; "
            f"got {len(records)} records, none of these"
        )
    return sorted(grouped(runs, "identity"), key=_order)


def by_problem(every: Iterable[Group]) -> list[list[Group]]:
    """Return the settings of each problem."""
    return list(by(every, problem).values())


def best_rates(every: Iterable[Group]) -> list[Group]:
    """Return the groups at the best learning rate of each problem: the lowest mean final error."""
    chosen = []
    for alike in by_problem(every):
        rate = min(alike, key=rank).setting.get("lr")
        rates = variants([group.setting for group in alike], ["lr"])
        chosen += [g._replace(rates=rates) for g in alike if g.setting.get("lr") == rate]
    return chosen


def best(every: Iterable[Group]) -> list[Group]:
    """Return one group for each problem: that with the lowest mean final error."""
    return [min(alike, key=rank) for alike in by_problem(every)]


def details(group: Group, among: Sequence[Group]) -> list[str]:
    """Return in words what distinguishes a group from others of its size and method."""
    every = [other.setting for other in among]
    words = [str(group.setting.get(n)) for n in ("target", "values") if variants(every, [n]) > 1]
    if group.rates > 1:
        words.append(f"lr {plain_value(group.setting['lr'])}")
    same = [other.setting for other in among if problem(other) == problem(group)]
    silent = Identity.bookkeeping.union(PROBLEM, ["key"])
    return words + [
        f"{name.replace('_', ' ')} {group.setting[name]}"
        for name in group.setting
        if name not in silent and variants(same, [name]) > 1
    ]


def _order(group: Group) -> tuple[int, int, str]:
    size, method = group.setting["size"], group.setting["method"]
    return size, position(method, METHODS), method
