"""The settings of the identity experiment: which runs are of one, and which of them is the best."""

import json
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from sparsewire_lab.figures.series import Group, Record, final_error, points
from sparsewire_lab.identity.experiment import Identity

# In the order of legends; others come after them.
METHODS = ("sparse", "reinforce", "rewire")
# These do not change what is computed: runs that differ in them and their seed alone are one group.
NOT_SETTINGS = Identity.bookkeeping | {"seed"}
# A sweep is a search of the learning rate for one combination of these.
PROBLEM = ("size", "method", "target", "values")


def problem(group: Group) -> tuple[Any, ...]:
    """Return what a setting was to solve and how, but for the details."""
    return tuple(group.setting.get(name) for name in PROBLEM)


def rank(group: Group) -> tuple[float, float]:
    """Return the mean final error, then the mean along the curve: where it is less is best."""
    curves = [statistics.fmean(e for _, e, _ in points(run)) for run in group.runs]
    return statistics.fmean(map(final_error, group.runs)), statistics.fmean(curves)


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
    for alike in _problems(every):
        rate = min(alike, key=rank).setting.get("lr")
        rates = len({group.setting.get("lr") for group in alike})
        chosen += [g._replace(rates=rates) for g in alike if g.setting.get("lr") == rate]
    return chosen


def best(every: Sequence[Group]) -> list[Group]:
    """Return one group for each problem: that with the lowest mean final error."""
    return [min(alike, key=rank) for alike in _problems(every)]


def details(group: Group, among: Sequence[Group]) -> list[str]:
    """Return in words what tells a group apart from others of its size and method."""
    words = [
        str(group.setting.get(name))
        for name in ("target", "values")
        if len({str(other.setting.get(name)) for other in among}) > 1
    ]
    if group.rates > 1:
        words.append(f"lr {group.setting['lr']:g}")
    same = [other.setting for other in among if problem(other) == problem(group)]
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
        found.setdefault(problem(group), []).append(group)
    return list(found.values())


def _is_curve(record: Record) -> bool:
    curve, arguments = record.get("curve") or {}, record.get("arguments") or {}
    named = {"size", "method"} <= arguments.keys() and {"step", "error"} <= curve.keys()
    return named and any(True for _ in points(record))
