"""The settings of the attention experiment: which runs are of one, their order, their names."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sparsewire_lab.attention.experiment import Attention
from sparsewire_lab.figures.series import Group, Record
from sparsewire_lab.figures.settings import (
    beside_preset,
    grouped,
    kinds_of,
    plain_value,
    preset_arguments,
    tell_apart,
)

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
PRESET_ARGUMENTS = preset_arguments(Attention, _GIVEN)


def settings(records: Iterable[Record]) -> list[Group]:
    """Return the settings among the records of the attention experiment, in the order of tables."""
    return sorted(grouped(records, "attention"), key=lambda group: _order(group.setting))


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


def departure_words(setting: dict[str, Any]) -> list[str]:
    """Return in words what was given to a setting beside its preset."""
    return [_say(name, value) for name, value in departures(setting).items()]


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


def _tried(
    setting: dict[str, Any], alike: Sequence[dict[str, Any]], told: Collection[str]
) -> list[str]:
    """What tells a setting from its preset, as far as others of its name do not share it."""
    known = {name for other in alike for name in other} - Attention.bookkeeping
    words = [_EARLIER] if known - setting.keys() else []
    for name, value in departures(setting).items():
        if name not in told and kinds_of(alike, [name]) > 1:
            words.append(_say(name, value))
    return words


def _say(name: str, value: Any) -> str:
    if name == "head":
        return f"{value} head"
    if name == "canvas":
        return f"{value} × {value} pixels"
    if name == "data":
        return str(value)
    return f"{name.replace('_', ' ')} {plain_value(value)}"
