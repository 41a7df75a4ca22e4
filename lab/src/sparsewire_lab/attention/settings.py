"""The settings of the attention experiment: which runs belong to one, their order, their names."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sparsewire_lab.attention.experiment import Attention
from sparsewire_lab.figures.series import Group, Record, grouped
from sparsewire_lab.figures.settings import Settings, plain_value, position, variants

# In the order of tables and legends.
MODELS = {
    "convnet": "plain ConvNet",
    "glimpse": "glimpse",
    "transformer": "spatial transformer",
    "reinforce": "REINFORCE glimpse",
}


def words(name: str, value: Any) -> str:
    """Return an argument and its value in words."""
    if name == "head":
        return f"{value} head"
    if name == "canvas":
        return f"{value} × {value} pixels"
    if name == "data":
        return str(value)
    return f"{name.replace('_', ' ')} {plain_value(value)}"


SETTINGS = Settings(
    Attention,
    given=("model", "preset", "glimpses", "size", "data", "canvas", "reduce", "split", "batch"),
    first=(
        *("canvas", "data", "glimpses", "size", "head", "settle", "floor", "straight", "lr"),
        *("steps", "batch", "precision"),
    ),
    unnamed=("model", "preset", "reduce"),
    words=words,
)


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


def names(every: Sequence[Group], stated: Collection[str] = ()) -> list[str]:
    """Return a name for each setting, by which it differs from all others.

    A setting that is its preset's has a plain name. The names of others state how they depart from
    the preset; those that lack arguments that others have are called an earlier version.

    Args:
        every: The settings that are shown together.
        stated: Arguments that are stated elsewhere, such as in a column of a table.
    """
    plain = [_plain_name(group.setting) for group in every]
    longer = []
    for group, name in zip(every, plain, strict=True):
        alike = [g.setting for g, other in zip(every, plain, strict=True) if other == name]
        known = {argument for other in alike for argument in other} - Attention.bookkeeping
        earlier = ["earlier version"] if known - group.setting.keys() else []
        shared = [argument for argument in known if variants(alike, [argument]) == 1]
        tried = SETTINGS.departure_words(group.setting, {*stated, *shared})
        longer.append(", ".join([name, *earlier, *tried]))
    return SETTINGS.distinguish(every, longer, stated)


def _order(setting: dict[str, Any]) -> tuple[Any, ...]:
    model = position(setting["model"], MODELS), setting["model"]
    shape = setting["glimpses"], setting["size"]
    # Of two that are alike, the one with more arguments is of the later version: it comes first.
    last = setting["preset"] != "ours", setting["reduce"], -len(setting)
    return setting["canvas"], *model, *shape, *last


def _plain_name(setting: dict[str, Any]) -> str:
    name, factor = family(setting), setting["reduce"]
    if factor > 1:
        how = "of" if setting["model"] == "convnet" else "chosen on"
        name += f", {how} the image reduced {factor} ×"
    return name + (", paper's settings" if setting["preset"] == "paper" else "")
