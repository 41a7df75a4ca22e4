"""Checks of the arguments of experiments, many at once."""

import dataclasses
from collections.abc import Collection, Iterable

from sparsewire.checks import check_range
from sparsewire_lab.train.options import Experiment, check_size


def check_sizes(args: Experiment, names: Iterable[str], least: int = 1) -> None:
    """Refuse sizes below `least`, or too large for memory, of the arguments that are given."""
    for name in names:
        if (size := getattr(args, name)) is not None:
            check_size(name, size, least=least)


def check_ranges(args: Experiment, names: Iterable[str], least: float, most: float) -> None:
    """Refuse numbers outside of a range, of the arguments that are given."""
    for name in names:
        if (number := getattr(args, name)) is not None:
            check_range(name, number, least, most)


def check_needed(
    args: Experiment, names: Iterable[str], needed: str, values: Collection[str]
) -> None:
    """Refuse arguments that differ from their defaults and have no effect.

    Args:
        args: The experiment.
        names: The arguments.
        needed: Another argument, without one of whose `values` they have no effect.
        values: These values.
    """
    if (value := getattr(args, needed)) in values:
        return
    default = {field.name: field.default for field in dataclasses.fields(args)}
    for name in names:
        if getattr(args, name) != default[name]:
            words = " or ".join(values)
            raise ValueError(f"{name} has a meaning with {needed} {words} only; got {value}")
