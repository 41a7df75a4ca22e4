"""The settings of the sorting experiment: which runs belong to one, their order, their names."""

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sparsewire_lab.figures.series import Group, Record, grouped
from sparsewire_lab.figures.settings import Settings, plain_value, position
from sparsewire_lab.sorting.experiment import Sorting

# In the order of tables and legends: ours, the paper's, peers.
METHODS = {
    "likelihood": "likelihood",
    "exact": "exact quicksort",
    "sampled": "sampled quicksort",
    "neuralsort": "NeuralSort",
    "softsort": "SoftSort",
    "sinkhorn": "Gumbel-Sinkhorn",
    "odd_even": "odd-even network",
    "bitonic": "bitonic network",
    "projection": "projected ranks",
}
# The paper's error in words, and as a share for a line, by the numbers in a set.
PAPER = {4: ("below 10 %", 0.1), 8: ("about 10 %", 0.1), 16: ("around 40 %", 0.4)}
QUICKSORTS = ("likelihood", "exact", "sampled")
# What the four-digit protocol has and our preset has not.
PROTOCOL = {"lr": 10**-3.5, "network": "wide", "jitter": 0.0, "cosine": False}
_PROTOCOL_PLACES = 4


def words(name: str, value: Any) -> str:
    """Return an argument and its value in words."""
    if name == "size":
        return f"n = {value}"
    if name == "places":
        return f"{value} digit{'' if value == 1 else 's'}"
    if name in ("loss", "network"):
        return f"{value} {name}"
    if name in ("data", "split"):
        return str(value)
    if isinstance(value, bool):
        return f"{'with' if value else 'without'} {name.replace('_', ' ')}"
    return f"{name.replace('_', ' ')} {plain_value(value)}"


SETTINGS = Settings(
    Sorting,
    given=("size", "places", "method", "loss", "preset", "data", "split"),
    first=(
        *("size", "places", "data", "split", "loss", "network", "samples", "temperature"),
        *("jitter", "bend", "reach", "tanh", "dropout", "decay", "lr", "cosine", "steps"),
        *("batch", "precision"),
    ),
    unnamed=("method", "preset"),
    words=words,
)


def settings(records: Iterable[Record]) -> list[Group]:
    """Return the settings among the records of the sorting experiment, in the order of tables."""
    return sorted(grouped(records, "sorting"), key=lambda group: _order(group.setting))


def method_name(setting: dict[str, Any]) -> str:
    """Return the method of a setting in words."""
    return METHODS.get(setting["method"], str(setting["method"]))


def rank(setting: dict[str, Any]) -> int:
    """Return the position of a setting's method in tables, unknown ones last."""
    return position(setting["method"], METHODS)


def names(every: Sequence[Group], stated: Collection[str] = ()) -> list[str]:
    """Return a name for each setting, by which it differs from all others.

    The name states how the setting departs from its preset, too.

    Args:
        every: The settings that are shown together.
        stated: Arguments that are stated elsewhere, such as in a column of a table.
    """
    plain = []
    for group in every:
        paper = group.setting["preset"] == "paper" and "preset" not in stated
        parts = [method_name(group.setting), *(["paper's settings"] if paper else [])]
        plain.append(", ".join([*parts, *departure_words(group.setting, stated)]))
    return SETTINGS.distinguish(every, plain, stated)


def departure_words(setting: dict[str, Any], stated: Collection[str] = ()) -> list[str]:
    """Return in words how a setting departs from its preset, without what is stated elsewhere.

    The arguments of the four-digit protocol become one word if all of them are there.
    """
    given = {n: value for n, value in SETTINGS.departures(setting).items() if n not in stated}
    whole = setting["places"] == _PROTOCOL_PLACES and all(
        name in given and agrees(given[name], value) for name, value in PROTOCOL.items()
    )
    known = PROTOCOL if whole else {}
    parts = [words(name, value) for name, value in given.items() if name not in known]
    return ["protocol", *parts] if whole else parts


def agrees(one: Any, other: Any) -> bool:
    """Return whether two values of an argument are equal, up to the rounding of floats."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other)
    return bool(one == other)


def reported(setting: dict[str, Any]) -> tuple[str, float] | None:
    """Return what the paper reports of a setting's task, unless its method is a peer's."""
    task = setting["places"], setting["data"], setting.get("network", "paper")
    if task != (3, "mnist", "paper") or setting["method"] not in QUICKSORTS:
        return None
    return PAPER.get(setting["size"])


def _order(setting: dict[str, Any]) -> tuple[Any, ...]:
    """Order by task, method, and departure from the preset; the longest runs first."""
    task = setting["data"] != "mnist", setting["places"], setting["size"]
    method = rank(setting), setting["method"], str(setting["loss"])
    departures = [
        (SETTINGS.arguments.index(name), float(value) if isinstance(value, int | float) else 0.0)
        for name, value in SETTINGS.departures(setting).items()
    ]
    last = departures, -setting["steps"], setting["key"]
    return *task, *method, setting["preset"] != "ours", *last
