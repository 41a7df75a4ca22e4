"""The settings of each experiment as the page shows them: which are ours, and their names."""

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from sparsewire_lab.attention.settings import names, settings
from sparsewire_lab.attention.table import PAPER as ATTENTION_PAPER
from sparsewire_lab.figures.series import Group, final_error
from sparsewire_lab.figures.settings import finished
from sparsewire_lab.identity.settings import details, groups, problem
from sparsewire_lab.identity.table import PAPER as IDENTITY_PAPER
from sparsewire_lab.sorting.settings import papers, sorting_names, sorting_settings
from sparsewire_lab.train.records import Record

_IDENTITY_NAMES = {
    "sparse": "sparse layer",
    "rewire": "sparse layer with rewiring",
    "reinforce": "REINFORCE",
}
_VALUES = {"fixed": "", "ones": "values learned", "normal": "values learned, from N(0, 1)"}
_OURS = {
    "identity": ("sparse", "rewire"),
    "attention": ("glimpse",),
    "sorting": ("likelihood", "exact", "sampled"),
}


class Line(NamedTuple):
    """One setting: the runs that differ in their seed alone."""

    task: str
    """What was to be learned, in words; settings of one task are compared."""
    name: str
    """How: the words that tell it from the others of its task."""
    ours: bool
    """Whether it is of this library, not a baseline."""
    paper: str
    """What the paper says of it; empty if nothing."""
    group: Group

    @property
    def runs(self) -> list[Record]:
        """Return the runs that did not diverge."""
        return finished(self.group)

    @property
    def command(self) -> str:
        """Return the commands of all runs, each once, a line for each."""
        commands = (str(run.get("command") or "") for run in self.group.runs)
        return "\n".join(filter(None, dict.fromkeys(commands)))

    @property
    def label(self) -> str:
        """Return task and name."""
        return f"{self.task}: {self.name}"


def lines_of(experiment: str, records: Sequence[Record]) -> list[Line]:
    """Return the settings of an experiment, those of one task one after the other."""
    if not records:
        return []
    make = {"identity": _identity, "attention": _attention, "sorting": _sorting}[experiment]
    return make(records)


def by_task(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """Return the settings of each task, in the order in which tasks come."""
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(line.task, []).append(line)
    return found


def _is_ours(experiment: str, method: object) -> bool:
    return method in _OURS[experiment]


def _identity(records: Sequence[Record]) -> list[Line]:
    chosen = _best(groups(records))
    lines = []
    for group in chosen:
        setting = group.setting
        method, size, target = (setting[name] for name in ("method", "size", "target"))
        plain = target == "identity" and setting["values"] == "fixed"
        lines.append(
            Line(
                f"{target} matrix, n\u00a0=\u00a0{size:,}",
                _identity_name(group, chosen),
                _is_ours("identity", method),
                IDENTITY_PAPER.get((method, size), "") if plain else "",
                group,
            )
        )
    order = {"identity": 0, "permutation": 1, "band": 2}
    lines.sort(key=lambda line: _identity_order(line.group.setting, order))
    return lines


def _identity_order(setting: dict[str, Any], order: dict[str, int]) -> tuple[int, int, str]:
    target = str(setting["target"])
    return order.get(target, len(order)), setting["size"], target


def _identity_name(group: Group, among: Sequence[Group]) -> str:
    setting = group.setting
    words = [_IDENTITY_NAMES.get(setting["method"], str(setting["method"]))]
    # Rewiring learns values unless told otherwise.
    values = _VALUES.get(setting["values"], f"values {setting['values']}")
    if values and setting["method"] != "rewire":
        words.append(values)
    alike = [other for other in among if problem(other) == problem(group)]
    return ", ".join(words + (details(group, alike) if len(alike) > 1 else []))


def _best(every: Sequence[Group]) -> list[Group]:
    """Of each problem the setting with most seeds, of these the lowest mean final error."""
    found: dict[tuple[Any, ...], list[Group]] = {}
    for group in every:
        found.setdefault(problem(group), []).append(group)

    def worth(group: Group) -> tuple[int, float]:
        return -len(group.runs), statistics.fmean(map(final_error, group.runs))

    return [min(alike, key=worth) for alike in found.values()]


def _attention(records: Sequence[Record]) -> list[Line]:
    found = settings(records)
    tasks = [_attention_task(group.setting) for group in found]
    lines = []
    for task in dict.fromkeys(tasks):
        here = [group for group, other in zip(found, tasks, strict=True) if other == task]
        for group, name in zip(here, names(here), strict=True):
            setting = group.setting
            ours = _is_ours("attention", setting["model"])
            task_of_paper = (setting["canvas"], setting["data"], setting["split"])
            known = ours and task_of_paper == (100, "mnist", "test")
            shape = setting["glimpses"], setting["size"]
            paper = ATTENTION_PAPER.get(shape, "") if known else ""
            lines.append(Line(task, name, ours, paper, group))
    return sorted(lines, key=lambda line: line.group.setting["split"] != "test")


def _attention_task(setting: dict[str, Any]) -> str:
    canvas = setting["canvas"]
    data = _data_words(setting)
    split = "" if setting["split"] == "test" else f", {setting['split']} digits"
    return f"digits on canvases of {canvas} × {canvas}{data}{split}"


def _sorting(records: Sequence[Record]) -> list[Line]:
    found = sorting_settings(records)
    tasks = [_sorting_task(group.setting) for group in found]
    lines = []
    for task in dict.fromkeys(tasks):
        here = [group for group, other in zip(found, tasks, strict=True) if other == task]
        for group, name in zip(here, sorting_names(here), strict=True):
            ours = _is_ours("sorting", group.setting["method"])
            said = papers(group.setting)
            lines.append(Line(task, name, ours, said[0] if said else "", group))
    return sorted(lines, key=lambda line: line.group.setting["split"] != "test")


def _data_words(setting: dict[str, Any]) -> str:
    """Nothing of MNIST, on which the paper's experiments are."""
    known = {"mnist": "", "digits": ", small digits"}
    return known.get(setting["data"], f", {setting['data']}")


def _sorting_task(setting: dict[str, Any]) -> str:
    places = setting["places"]
    data = _data_words(setting)
    split = "" if setting["split"] == "test" else f", {setting['split']} digits"
    digits = f"{places} digit{'' if places == 1 else 's'}"
    return f"sort {setting['size']} numbers of {digits}{data}{split}"
