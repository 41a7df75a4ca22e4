"""The settings of each experiment as the page shows them: task, name, the paper's result."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sparsewire_lab.attention import settings as attention
from sparsewire_lab.attention.table import PAPER as ATTENTION_PAPER
from sparsewire_lab.figures.series import Group, by
from sparsewire_lab.figures.settings import position
from sparsewire_lab.figures.tables import Shown
from sparsewire_lab.identity.settings import by_problem, details, groups, problem, rank
from sparsewire_lab.identity.table import PAPER as IDENTITY_PAPER
from sparsewire_lab.sorting import settings as sorting
from sparsewire_lab.train.records import Record

_IDENTITY_NAMES = {
    "sparse": "sparse layer",
    "rewire": "sparse layer with rewiring",
    "reinforce": "REINFORCE",
}
_VALUES = {"fixed": "", "ones": "values learned", "normal": "values learned, from N(0, 1)"}
_TARGETS = ("identity", "permutation", "band")
# MNIST, on which the paper's experiments are, is not mentioned.
_DATA = {"mnist": "", "digits": ", small digits"}


@dataclass(frozen=True)
class Entry(Shown):
    """One setting: the runs that differ in their seed alone."""

    task: str
    """What was to be learned, in words; settings of one task are compared."""
    name: str
    """The words that distinguish it from the others of its task."""
    ours: bool
    """Whether it is of this library, not a baseline or peer."""
    paper: str
    """What the paper reports of it; empty if nothing."""

    @property
    def command(self) -> str:
        """Return the commands of all runs, each once, a line for each."""
        commands = (run["command"] for run in self.group.runs)
        return "\n".join(filter(None, dict.fromkeys(commands)))

    @property
    def label(self) -> str:
        """Return task and name."""
        return f"{self.task}: {self.name}"

    @property
    def shown_run(self) -> Record | None:
        """Return the run with the lowest seed of those with a file of arrays."""
        runs = [run for run in self.runs if run["file"] is not None]
        return min(runs, key=lambda run: run["seed"], default=None)


def entries_of(experiment: str, records: Sequence[Record]) -> list[Entry]:
    """Return the settings of an experiment, those of one task one after the other."""
    if not records:
        return []
    make = {"identity": _identity, "attention": _attention, "sorting": _sorting}[experiment]
    return make(records)


def by_task(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Return the settings of each task, in the order in which tasks come."""
    return by(entries, lambda entry: entry.task)


def _identity(records: Sequence[Record]) -> list[Entry]:
    # Of each problem the setting with most seeds, of these the lowest mean final error.
    chosen = [
        min(alike, key=lambda group: (-len(group.runs), rank(group)))
        for alike in by_problem(groups(records))
    ]
    entries = []
    for group in chosen:
        setting = group.setting
        method, size, target = (setting[name] for name in ("method", "size", "target"))
        plain = target == "identity" and setting["values"] == "fixed"
        entries.append(
            Entry(
                group,
                f"{target} matrix, n\u00a0=\u00a0{size:,}",
                _identity_name(group, chosen),
                method in ("sparse", "rewire"),
                IDENTITY_PAPER.get((method, size), "") if plain else "",
            )
        )

    def order(entry: Entry) -> tuple[int, int, str]:
        target = entry.setting["target"]
        return position(target, _TARGETS), entry.setting["size"], target

    return sorted(entries, key=order)


def _identity_name(group: Group, among: Sequence[Group]) -> str:
    setting = group.setting
    words = [_IDENTITY_NAMES.get(setting["method"]) or setting["method"]]
    values = _VALUES.get(setting["values"], f"values {setting['values']}")
    # With rewiring, values are learned by default.
    if values and setting["method"] != "rewire":
        words.append(values)
    alike = [other for other in among if problem(other) == problem(group)]
    return ", ".join(words + (details(group, alike) if len(alike) > 1 else []))


def _attention(records: Sequence[Record]) -> list[Entry]:
    def task(setting: dict[str, Any]) -> str:
        side = setting["canvas"]
        return f"digits on canvases of {side} × {side}{_data_words(setting)}"

    def paper(setting: dict[str, Any]) -> str:
        known = (setting["model"], setting["canvas"], setting["data"], setting["split"])
        shape = setting["glimpses"], setting["size"]
        return ATTENTION_PAPER.get(shape, "") if known == ("glimpse", 100, "mnist", "test") else ""

    every = attention.settings(records)
    return _entries(every, task, attention.names, lambda s: s["model"] == "glimpse", paper)


def _sorting(records: Sequence[Record]) -> list[Entry]:
    def task(setting: dict[str, Any]) -> str:
        digits = f"{setting['places']} digit{'' if setting['places'] == 1 else 's'}"
        return f"sort {setting['size']} numbers of {digits}{_data_words(setting)}"

    def paper(setting: dict[str, Any]) -> str:
        reported = sorting.reported(setting)
        return reported[0] if reported else ""

    def is_ours(setting: dict[str, Any]) -> bool:
        return setting["method"] in sorting.QUICKSORTS

    return _entries(sorting.settings(records), task, sorting.names, is_ours, paper)


def _entries(
    every: Sequence[Group],
    task: Callable[[dict[str, Any]], str],
    names: Callable[[Sequence[Group]], list[str]],
    is_ours: Callable[[dict[str, Any]], bool],
    paper: Callable[[dict[str, Any]], str],
) -> list[Entry]:
    """Return the entries of settings, named within their task; those on test digits first."""
    entries = [
        Entry(group, words, name, is_ours(group.setting), paper(group.setting))
        for words, here in by(every, lambda group: task(group.setting)).items()
        for group, name in zip(here, names(here), strict=True)
    ]
    return sorted(entries, key=lambda entry: entry.setting["split"] != "test")


def _data_words(setting: dict[str, Any]) -> str:
    """Return data and split, if they are not those of the paper."""
    split = "" if setting["split"] == "test" else f", {setting['split']} digits"
    return _DATA.get(setting["data"], f", {setting['data']}") + split
