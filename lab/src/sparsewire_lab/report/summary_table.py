"""Records of all experiments → one small table: what the paper reports, ours, what is beside it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sparsewire_lab.attention.settings import family, settings
from sparsewire_lab.attention.table import PAPER as GLIMPSES
from sparsewire_lab.figures.cells import NONE, percent
from sparsewire_lab.figures.pages import fill, markdown
from sparsewire_lab.figures.series import THRESHOLD, Group, Record, reach
from sparsewire_lab.figures.settings import finished
from sparsewire_lab.identity.settings import best, groups
from sparsewire_lab.sorting.settings import (
    QUICKSORTS,
    method_name,
    papers,
    sorting_departures,
    sorting_settings,
)
from sparsewire_lab.train.records import aggregate

RESULTS_BEGIN, RESULTS_END = "<!-- results: begin -->", "<!-- results: end -->"
_HEAD = ("task", "paper", "here", "beside it")
_IDENTITIES = (("sparse", 64, "fixed"), ("rewire", 1024, "ones"), ("rewire", 65536, "ones"))
_SORTED = (4, 8, 16, 32)
# How the paper counts: equal numbers are wrong unless they stand as they came.
_STRICT = "with ties as they came"


class Row(NamedTuple):
    """A task, what the paper reports, ours, and a baseline in words."""

    task: str
    paper: str
    here: str
    beside: str


def summary_table(records: Mapping[str, Sequence[Record]]) -> str:
    """Return the table of the most important settings, of those that are recorded.

    Args:
        records: By the name of their experiment.
    """
    rows = [
        *_identities(records.get("identity", ())),
        *_glimpses(records.get("attention", ())),
        *_sorts(records.get("sorting", ())),
    ]
    return markdown(_HEAD, rows)


def fill_summary(page: str, records: Mapping[str, Sequence[Record]]) -> str:
    """Return a page with the table between its marks."""
    return fill(page, summary_table(records), RESULTS_BEGIN, RESULTS_END)


def _identities(records: Sequence[Record]) -> Iterator[Row]:
    found = best(groups(records)) if records else []
    by = {(g.setting["method"], g.setting["size"], g.setting["values"]): g for g in found
          if g.setting["target"] == "identity"}  # fmt: skip
    for method, size, values in _IDENTITIES:
        group, rival = by.get((method, size, values)), by.get(("reinforce", size, "fixed"))
        if group is None:
            continue
        how = "" if method == "sparse" else ", with rewiring"
        beside = NONE if rival is None else f"REINFORCE: {aggregate(rival.runs)['error']}"
        took = f"{_error(group)}; below {THRESHOLD:g} after {reach(group).seconds:.2g} s"
        paper = "converges" if method == "sparse" else NONE
        yield Row(f"identity matrix of {size:,}, rounded error{how}", paper, took, beside)


def _error(group: Group) -> str:
    error = aggregate(group.runs)["error"]
    return "0" if error.mean == 0 else f"{error.mean:.2g}"


def _glimpses(records: Sequence[Record]) -> Iterator[Row]:
    ours = [
        group
        for group in settings(records)
        if (group.setting["preset"], group.setting["split"], group.setting["data"])
        == ("ours", "test", "mnist")
    ]
    for group in ours:
        setting = group.setting
        if setting["model"] != "glimpse":
            continue
        side, count, size = (setting[name] for name in ("canvas", "glimpses", "size"))
        look = f"{count} glimpse{'' if count == 1 else 's'} of {size} × {size}"
        said = GLIMPSES.get((count, size)) if side == 100 else None
        yield Row(
            f"digit among clutter, {side} × {side} pixels, {look}",
            NONE if said is None else f"{said}, perhaps of training digits",
            f"{_percents(group)} of test digits",
            _rivals([g for g in ours if g.setting["canvas"] == side]),
        )


def _rivals(there: Sequence[Group]) -> str:
    """Return the error of each other model, with the best of its settings."""
    found: dict[str, list[Group]] = {}
    for group in there:
        if group.setting["model"] != "glimpse" and finished(group):
            found.setdefault(family(group.setting), []).append(group)
    words = (f"{name}: {_percents(min(g, key=_mean_error))}" for name, g in found.items())
    return "; ".join(words) or NONE


def _sorts(records: Sequence[Record]) -> Iterator[Row]:
    found = [g for g in sorting_settings(records) if _is_main_sort(g.setting) and finished(g)]
    for size in _SORTED:
        same = [g for g in found if g.setting["size"] == size]
        ours = [g for g in same if _is_our_sort(g.setting)]
        if not ours:
            continue
        longest = max(ours, key=lambda group: group.setting["steps"])
        peers = [g for g in same if g.setting["method"] not in QUICKSORTS]
        said = papers(longest.setting)
        yield Row(
            f"order of {size} numbers of 3 digits, wrong sets",
            NONE if said is None else f"{said[0]}, {_STRICT}",
            f"{_percents(longest)} of test sets{_strictly(longest)}",
            _best_peer(peers),
        )


def _is_main_sort(setting: Mapping[str, Any]) -> bool:
    task = setting["preset"], setting["split"], setting["data"], setting["places"]
    return task == ("ours", "test", "mnist", 3) and setting["network"] == "paper"


def _is_our_sort(setting: dict[str, Any]) -> bool:
    """Whether it is our preset as it is."""
    return setting["method"] == "likelihood" and not sorting_departures(setting)


def _strictly(group: Group) -> str:
    """The error in the paper's terms, if it is known."""
    found = percent([run["final"].get("strict") for run in finished(group)])
    return "" if found == NONE else f"; {found} % {_STRICT}"


def _best_peer(peers: Sequence[Group]) -> str:
    best_one = min(peers, key=_mean_error, default=None)
    return NONE if best_one is None else f"{method_name(best_one.setting)}: {_percents(best_one)}"


def _mean_error(group: Group) -> float:
    return aggregate(finished(group))["error"].mean


def _percents(group: Group) -> str:
    return f"{percent([run['final'].get('error') for run in finished(group)])} %"
