"""Settings: which runs are of one, and what tells one from another, for all experiments."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from sparsewire_lab.figures.series import Group, Record
from sparsewire_lab.train.options import Experiment


def preset_arguments(kind: type[Experiment], given: Collection[str]) -> tuple[str, ...]:
    """Return the arguments that a preset of an experiment fills in: all but those that are given.

    What every experiment has is left out too, except for the learning rate.
    """
    shared = {field.name for field in dataclasses.fields(Experiment)} - {"lr"}
    every = (field.name for field in dataclasses.fields(kind))
    return tuple(name for name in every if name not in kind.bookkeeping.union(given, shared))


def grouped(records: Iterable[Record], experiment: str) -> list[Group]:
    """Return the settings among the records of an experiment, as they come."""
    found: dict[str, list[Record]] = {}
    for record in records:
        if record["experiment"] == experiment:
            found.setdefault(record["key"], []).append(record)
    return [Group(runs[-1]["arguments"] | {"key": key}, runs) for key, runs in found.items()]


def finished(group: Group) -> list[Record]:
    """Return the runs of a setting that did not diverge."""
    return [run for run in group.runs if run["status"] != "diverged"]


def seeds(group: Group) -> str:
    """Return how many runs a setting has, and how many of them diverged, in words."""
    count, diverged = len(group.runs), len(group.runs) - len(finished(group))
    return f"{diverged} of {count} diverged" if diverged else str(count)


def beside_preset(
    kind: Callable[..., Experiment],
    setting: dict[str, Any],
    given: Iterable[str],
    asked: Iterable[str],
) -> dict[str, Any]:
    """Return which of the arguments asked for a preset alone would not make.

    What follows from other arguments is left out, and what a record does not tell. Of a preset that
    is not known nothing is returned.

    Args:
        kind: The experiment.
        setting: The arguments of a run.
        given: Names of arguments that are no matter of the preset.
        asked: Names of those that are.
    """
    known = {name: setting[name] for name in given if name in setting}
    wanted = {name: setting[name] for name in asked if name in setting}

    def different(**more: Any) -> dict[str, Any]:
        """What of the setting is not so with these arguments."""
        filled = kind(**known, **more).resolved()
        return {name: value for name, value in wanted.items() if getattr(filled, name) != value}

    try:
        found = different()
        for name in tuple(found):
            fewer = {other: value for other, value in found.items() if other != name}
            if _holds(different, fewer):
                found = fewer
    except (KeyError, TypeError, ValueError):
        return {}
    return found


def tell_apart(
    every: Sequence[Group],
    plain: Sequence[str],
    first: Sequence[str],
    silent: Collection[str],
    told: Collection[str],
    say: Callable[[str, Any], str],
) -> list[str]:
    """Return plain names, where two are the same with what tells their settings apart.

    Args:
        every: The settings that are shown together.
        plain: A name for each.
        first: Arguments that are looked at before all others.
        silent: Arguments that are never said.
        told: What is said of each elsewhere, such as in a column of its own.
        say: Returns an argument and its value in words.
    """
    found = []
    for group, name in zip(every, plain, strict=True):
        alike = [g.setting for g, other in zip(every, plain, strict=True) if other == name]
        differences = _differences(alike, first, silent, told)
        words = [say(what, group.setting.get(what)) for what in differences]
        found.append(", ".join([name, *words]))
    return found


def plain_value(value: Any) -> str:
    """Return a setting in words."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _holds(different: Callable[..., dict[str, Any]], arguments: dict[str, Any]) -> bool:
    """Whether these arguments make the setting; some cannot be without each other."""
    try:
        return not different(**arguments)
    except ValueError:
        return False


def _differences(
    alike: Sequence[dict[str, Any]],
    first: Sequence[str],
    silent: Collection[str],
    told: Collection[str],
) -> list[str]:
    """Return as few settings as tell these apart, the first of them first."""
    every = dict.fromkeys(name for setting in alike for name in setting if name != "key")
    chosen: list[str] = []
    for name in dict.fromkeys((*first, *every, "key")):
        if name in silent or name in told:
            continue
        if kinds_of(alike, (*told, *chosen, name)) > kinds_of(alike, (*told, *chosen)):
            chosen.append(name)
    return chosen


def kinds_of(alike: Sequence[dict[str, Any]], names: Iterable[str]) -> int:
    names = list(names)
    return len({tuple(str(setting.get(name)) for name in names) for setting in alike})
