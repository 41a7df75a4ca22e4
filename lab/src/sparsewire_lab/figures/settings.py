"""Settings: how they differ from their preset and from each other, for all experiments."""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sparsewire_lab.figures.series import Group
from sparsewire_lab.train.options import Experiment


@dataclass(frozen=True)
class Settings:
    """The settings of an experiment.

    Args:
        kind: The experiment.
        given: Arguments that a preset does not fill in.
        first: Arguments by which settings with the same name are distinguished first.
        unnamed: Arguments by which settings are never distinguished.
        words: Returns an argument and its value in words.
    """

    kind: type[Experiment]
    given: Collection[str]
    first: Sequence[str]
    unnamed: Collection[str]
    words: Callable[[str, Any], str]

    @property
    def arguments(self) -> tuple[str, ...]:
        """Return the arguments that a preset fills in, in their order.

        The arguments that every experiment has are left out, except for the learning rate.
        """
        shared = {field.name for field in dataclasses.fields(Experiment)} - {"lr"}
        every = (field.name for field in dataclasses.fields(self.kind))
        others = self.kind.bookkeeping.union(self.given, shared)
        return tuple(name for name in every if name not in others)

    def departures(self, setting: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments that the preset of a setting would not have made, in their order.

        Arguments that follow from others are left out, and so are those that a record lacks. If
        the preset is unknown, nothing is returned.
        """
        known = {name: setting[name] for name in self.given if name in setting}
        wanted = {name: setting[name] for name in self.arguments if name in setting}
        kind: Callable[..., Experiment] = self.kind

        def different(**more: Any) -> dict[str, Any]:
            """Return the arguments of the setting that are not so with these."""
            filled = kind(**known, **more).resolved()
            return {name: value for name, value in wanted.items() if getattr(filled, name) != value}

        def suffice(arguments: dict[str, Any]) -> bool:
            """Return whether these arguments make the setting; some need each other."""
            try:
                return not different(**arguments)
            except ValueError:
                return False

        try:
            given = different()
            for name in tuple(given):
                fewer = {other: value for other, value in given.items() if other != name}
                given = fewer if suffice(fewer) else given
        except (ArithmeticError, KeyError, TypeError, ValueError):
            return {}
        return given

    def departure_words(self, setting: dict[str, Any], stated: Collection[str] = ()) -> list[str]:
        """Return the departures of a setting in words, without those that are stated elsewhere."""
        given = self.departures(setting)
        return [self.words(name, value) for name, value in given.items() if name not in stated]

    def distinguish(
        self, groups: Sequence[Group], names: Sequence[str], stated: Collection[str]
    ) -> list[str]:
        """Return the names of settings, with their differences added where names are equal.

        Args:
            groups: The settings that are shown together.
            names: A name for each.
            stated: Arguments that are stated elsewhere, such as in a column of a table.
        """
        longer = []
        for group, name in zip(groups, names, strict=True):
            alike = [g.setting for g, other in zip(groups, names, strict=True) if other == name]
            differences = self._differences(alike, stated)
            words = [self.words(what, group.setting.get(what)) for what in differences]
            longer.append(", ".join([name, *words]))
        return longer

    def _differences(self, alike: Sequence[dict[str, Any]], stated: Collection[str]) -> list[str]:
        """Return as few arguments as distinguish these settings."""
        every = dict.fromkeys(name for setting in alike for name in setting if name != "key")
        silent = self.kind.bookkeeping.union(self.unnamed, stated)
        chosen: list[str] = []
        for name in dict.fromkeys((*self.first, *every, "key")):
            if name not in silent and (
                variants(alike, (*stated, *chosen, name)) > variants(alike, (*stated, *chosen))
            ):
                chosen.append(name)
        return chosen


def variants(alike: Sequence[dict[str, Any]], names: Iterable[str]) -> int:
    """Return the number of different values that these arguments have together."""
    names = list(names)
    return len({tuple(str(setting.get(name)) for name in names) for setting in alike})


def position(name: object, known: Iterable[str]) -> int:
    """Return the position of a name among known names; unknown ones come last."""
    names = list(known)
    return names.index(str(name)) if name in names else len(names)


def plain_value(value: Any) -> str:
    """Return the value of an argument in words."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)
