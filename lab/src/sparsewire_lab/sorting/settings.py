"""The settings of the sorting experiment: which runs are of one, their order, their names."""

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from sparsewire_lab.figures.series import Group, Record
from sparsewire_lab.figures.settings import (
    beside_preset,
    grouped,
    plain_value,
    preset_arguments,
    tell_apart,
)
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
# What the paper says of its error, and where a line would be, by the numbers in a set.
PAPER = {4: ("below 10 %", 0.1), 8: ("about 10 %", 0.1), 16: ("around 40 %", 0.4)}
QUICKSORTS = ("likelihood", "exact", "sampled")
# What is to be done, and by which method and loss: a preset fills in the rest.
_GIVEN = ("size", "places", "method", "loss", "preset", "data", "split")
SORTING_ARGUMENTS = preset_arguments(Sorting, _GIVEN)
# The four-digit protocol: what it has that our preset has not.
PROTOCOL = {"lr": 10**-3.5, "network": "wide", "jitter": 0.0, "cosine": False}
_PROTOCOL_PLACES = 4
# What is looked at first, if two settings would have the same name.
_FIRST = ("size", "places", "data", "split", "loss", "network", "samples", "temperature", "jitter")
_FIRST += (
    "bend",
    "reach",
    "tanh",
    "dropout",
    "decay",
    "lr",
    "cosine",
    "steps",
    "batch",
    "precision",
)


def sorting_settings(records: Iterable[Record]) -> list[Group]:
    """Return the settings among the records of the sorting experiment, in the order of tables."""
    return sorted(grouped(records, "sorting"), key=lambda group: _order(group.setting))


def method_name(setting: dict[str, Any]) -> str:
    """Return the method of a setting in words."""
    return METHODS.get(setting["method"], str(setting["method"]))


def rank(setting: dict[str, Any]) -> int:
    """Return the place of a setting's method in tables, unknown ones last."""
    known = list(METHODS)
    return known.index(setting["method"]) if setting["method"] in known else len(known)


def sorting_names(every: Sequence[Group], told: Collection[str] = ()) -> list[str]:
    """Return a name for each setting, by which it differs from all others.

    A name says what is not as its preset has it, too: nobody shall take it for that.

    Args:
        every: The settings that are shown together.
        told: What is said of each elsewhere, such as in a column of its own.
    """
    plain = [_plain_name(group.setting, told) for group in every]
    silent = Sorting.bookkeeping | {"method", "preset"}
    return tell_apart(every, plain, _FIRST, silent, told, _say)


def sorting_departures(setting: dict[str, Any]) -> dict[str, Any]:
    """Return what was given to a setting beside its preset, in the order of the arguments.

    What follows from method, loss, number of things or data is left out.
    """
    return beside_preset(Sorting, setting, _GIVEN, SORTING_ARGUMENTS)


def sorting_words(setting: dict[str, Any], told: Collection[str] = ()) -> list[str]:
    """Return in words what was given to a setting beside its preset, but for what is told.

    The arguments of the four-digit protocol are one word, where they are all there.
    """
    found = {n: value for n, value in sorting_departures(setting).items() if n not in told}
    whole = setting["places"] == _PROTOCOL_PLACES and all(
        name in found and agrees(found[name], value) for name, value in PROTOCOL.items()
    )
    known = PROTOCOL if whole else {}
    words = [_say(name, value) for name, value in found.items() if name not in known]
    return ["protocol", *words] if whole else words


def agrees(one: Any, other: Any) -> bool:
    """Whether two values of an argument are equal, but for how a number was rounded."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other)
    return bool(one == other)


def papers(setting: dict[str, Any]) -> tuple[str, float] | None:
    """Return what the paper reports of a setting's task, unless its method is a peer's."""
    task = setting["places"], setting["data"], setting.get("network", "paper")
    if task != (3, "mnist", "paper") or setting["method"] not in QUICKSORTS:
        return None
    return PAPER.get(setting["size"])


def _order(setting: dict[str, Any]) -> tuple[Any, ...]:
    """Tasks, methods, the presets as they are, what differs from them; the longest runs first."""
    task = setting["data"] != "mnist", setting["places"], setting["size"]
    method = rank(setting), setting["method"], str(setting["loss"])
    differs = [
        (SORTING_ARGUMENTS.index(name), float(value) if isinstance(value, int | float) else 0.0)
        for name, value in sorting_departures(setting).items()
    ]
    return *task, *method, setting["preset"] != "ours", differs, -setting["steps"], setting["key"]


def _plain_name(setting: dict[str, Any], told: Collection[str]) -> str:
    words = [method_name(setting)]
    if setting["preset"] == "paper" and "preset" not in told:
        words.append("paper's settings")
    return ", ".join([*words, *sorting_words(setting, told)])


def _say(name: str, value: Any) -> str:
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
