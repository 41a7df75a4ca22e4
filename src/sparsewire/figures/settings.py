"""The settings of the attention experiment: which runs are of one, their order, their names.

And what this takes for the settings of any experiment.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from sparsewire.experiments.attention import Attention
from sparsewire.figures.series import Group, Record
from sparsewire.training.options import Experiment

# In the order of tables and legends.
MODELS = {
    "convnet": "plain ConvNet",
    "glimpse": "glimpse",
    "transformer": "spatial transformer",
    "reinforce": "REINFORCE glimpse",
}
# What a name says of every setting.
_NAMED = ("model", "preset", "reduce")
# What is looked at first, if these leave two settings with the same name.
_FIRST = ("canvas", "data", "glimpses", "size", "head", "settle", "floor", "straight", "lr")
_FIRST += ("steps", "batch", "precision")
# What is to be done, with what, and how much of it: a preset fills in the rest.
_GIVEN = ("model", "preset", "glimpses", "size", "data", "canvas", "reduce", "split", "batch")
_EARLIER = "earlier version"


def preset_arguments(kind: type[Experiment], given: Collection[str]) -> tuple[str, ...]:
    """Return the arguments that a preset of an experiment fills in: all but those that are given.

    What every experiment has is left out too, except for the learning rate.
    """
    shared = {field.name for field in dataclasses.fields(Experiment)} - {"lr"}
    every = (field.name for field in dataclasses.fields(kind))
    return tuple(name for name in every if name not in kind.bookkeeping.union(given, shared))


PRESET_ARGUMENTS = preset_arguments(Attention, _GIVEN)


def settings(records: Iterable[Record]) -> list[Group]:
    """Return the settings among the records of the attention experiment, in the order of tables."""
    return sorted(grouped(records, "attention"), key=lambda group: _order(group.setting))


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


def family(setting: dict[str, Any]) -> str:
    """Return the name of a model, of glimpses with their number and size."""
    model = setting["model"]
    if model != "glimpse":
        return MODELS.get(model, str(model))
    count, size = setting["glimpses"], setting["size"]
    return f"{count} glimpse{'' if count == 1 else 's'} of {size} × {size}"


def names(every: Sequence[Group], told: Collection[str] = ()) -> list[str]:
    """Return a name for each setting, by which it differs from all others.

    A setting that is its preset's has a plain name. Others of that name say in what they differ
    from the preset, and those that lack arguments that others have, that they are older.

    Args:
        every: The settings that are shown together.
        told: What is said of each elsewhere, such as in a column of its own.
    """
    plain = [_plain_name(group.setting) for group in every]
    longer = []
    for group, name in zip(every, plain, strict=True):
        alike = [g.setting for g, other in zip(every, plain, strict=True) if other == name]
        longer.append(", ".join([name, *_tried(group.setting, alike, told)]))
    silent = Attention.bookkeeping.union(_NAMED)
    return tell_apart(every, longer, _FIRST, silent, told, _say)


def departures(setting: dict[str, Any]) -> dict[str, Any]:
    """Return what was given to a setting beside its preset, in the order of the arguments."""
    return beside_preset(Attention, setting, _GIVEN, PRESET_ARGUMENTS)


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


def departure_words(setting: dict[str, Any]) -> list[str]:
    """Return in words what was given to a setting beside its preset."""
    return [_say(name, value) for name, value in departures(setting).items()]


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


def _order(setting: dict[str, Any]) -> tuple[Any, ...]:
    known = list(MODELS)
    model = setting["model"]
    rank = known.index(model) if model in known else len(known)
    looks = setting["glimpses"], setting["size"]
    # Of two that are alike, the one with more arguments is of the later version: it comes first.
    last = setting["preset"] != "ours", setting["reduce"], -len(setting)
    return setting["canvas"], rank, model, *looks, *last


def _plain_name(setting: dict[str, Any]) -> str:
    name, factor = family(setting), setting["reduce"]
    if factor > 1:
        how = "of" if setting["model"] == "convnet" else "chosen on"
        name += f", {how} the image reduced {factor} ×"
    return name + (", paper's settings" if setting["preset"] == "paper" else "")


def _holds(different: Callable[..., dict[str, Any]], arguments: dict[str, Any]) -> bool:
    """Whether these arguments make the setting; some cannot be without each other."""
    try:
        return not different(**arguments)
    except ValueError:
        return False


def _tried(
    setting: dict[str, Any], alike: Sequence[dict[str, Any]], told: Collection[str]
) -> list[str]:
    """What tells a setting from its preset, as far as others of its name do not share it."""
    known = {name for other in alike for name in other} - Attention.bookkeeping
    words = [_EARLIER] if known - setting.keys() else []
    for name, value in departures(setting).items():
        if name not in told and _kinds(alike, [name]) > 1:
            words.append(_say(name, value))
    return words


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
        if _kinds(alike, (*told, *chosen, name)) > _kinds(alike, (*told, *chosen)):
            chosen.append(name)
    return chosen


def _kinds(alike: Sequence[dict[str, Any]], names: Iterable[str]) -> int:
    names = list(names)
    return len({tuple(str(setting.get(name)) for name in names) for setting in alike})


def _say(name: str, value: Any) -> str:
    if name == "head":
        return f"{value} head"
    if name == "canvas":
        return f"{value} × {value} pixels"
    if name == "data":
        return str(value)
    return f"{name.replace('_', ' ')} {plain_value(value)}"
