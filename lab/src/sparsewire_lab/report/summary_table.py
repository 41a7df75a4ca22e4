"""Records of all experiments → one small table: the paper's error, the best peer's, ours."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sparsewire_lab.attention import settings as attention
from sparsewire_lab.attention.table import PAPER as GLIMPSES
from sparsewire_lab.figures.series import Group, Record, has
from sparsewire_lab.figures.tables import NONE, fill, final_percent, markdown
from sparsewire_lab.identity.settings import best, groups
from sparsewire_lab.identity.table import PAPER as IDENTITIES
from sparsewire_lab.sorting import settings as sorting
from sparsewire_lab.train.records import aggregate

_HEAD = ("task", "paper", "best peer in the same run", "ours")
_IDENTITIES = (("sparse", 64, "fixed"), ("rewire", 1024, "ones"), ("rewire", 65536, "ones"))
_SORTED = (4, 8, 16, 32)


class Line(NamedTuple):
    """A task, and the errors of the paper, of the best peer and of ours."""

    task: str
    paper: str
    peer: str
    ours: str


def summary_table(records: Mapping[str, Sequence[Record]]) -> str:
    """Return the table of the most important tasks, of those that are recorded.

    Errors are means ± standard deviations over seeds: of identity matrices the mean squared error
    of the rounded layer, of glimpses the share of test digits that are classified wrongly, and of
    sorting the paper's share of sets in a wrong order, where equal numbers must keep their order.

    Args:
        records: The records of each experiment, by its name.
    """
    lines = [
        *_identities(records.get("identity", ())),
        *_glimpses(records.get("attention", ())),
        *_sorts(records.get("sorting", ())),
    ]
    return markdown(_HEAD, lines)


def fill_summary(page: str, records: Mapping[str, Sequence[Record]]) -> str:
    """Return a page with the table between the marks of `results`."""
    return fill(page, summary_table(records), "results")


def _identities(records: Sequence[Record]) -> Iterator[Line]:
    plain = [run for run in records if has(run, target="identity")]
    chosen = best(groups(plain)) if plain else []
    by = {tuple(g.setting[name] for name in ("method", "size", "values")): g for g in chosen}
    for method, size, values in _IDENTITIES:
        group, peer = by.get((method, size, values)), by.get(("reinforce", size, "fixed"))
        if group is not None:
            paper = IDENTITIES.get((method, size), NONE)
            rival = NONE if peer is None else f"{_error(peer)} (REINFORCE)"
            yield Line(f"identity matrix, n = {size:,}", paper, rival, _error(group))


def _error(group: Group) -> str:
    error = aggregate(group.runs)["error"]
    return "0" if error.mean == 0 else f"{error}"


def _glimpses(records: Sequence[Record]) -> Iterator[Line]:
    chosen = [run for run in records if has(run, preset="ours", split="test", data="mnist")]
    every = attention.settings(chosen)
    for group in every:
        side = group.setting["canvas"]
        if group.setting["model"] != "glimpse":
            continue
        others = [other for other in every if other.setting["canvas"] == side]
        peers = [other for other in others if other.setting["model"] != "glimpse"]
        shape = group.setting["glimpses"], group.setting["size"]
        yield Line(
            f"digit on {side} × {side} pixels, {attention.family(group.setting)}",
            GLIMPSES.get(shape, NONE) if side == 100 else NONE,
            _best(peers, "error", attention.family),
            _percent(group, "error"),
        )


def _sorts(records: Sequence[Record]) -> Iterator[Line]:
    task = {"preset": "ours", "split": "test", "data": "mnist", "places": 3, "network": "paper"}
    every = sorting.settings(run for run in records if has(run, **task))
    for size in _SORTED:
        here = [group for group in every if group.setting["size"] == size and group.finished]
        ours = [
            group
            for group in here
            if group.setting["method"] == "likelihood"
            and not sorting.SETTINGS.departures(group.setting)
        ]
        if not ours:
            continue
        longest = max(ours, key=lambda group: group.setting["steps"])
        peers = [other for other in here if other.setting["method"] not in sorting.QUICKSORTS]
        reported = sorting.reported(longest.setting)
        yield Line(
            f"order of {size} numbers of 3 digits",
            reported[0] if reported else NONE,
            _best(peers, "strict", sorting.method_name),
            _percent(longest, "strict"),
        )


def _best(peers: Iterable[Group], metric: str, name: Callable[[dict[str, Any]], str]) -> str:
    """Return the lowest error among peers, and whose it is."""
    known = [group for group in peers if _percent(group, metric) != NONE]
    if not known:
        return NONE
    lowest = min(known, key=lambda group: aggregate(group.finished)[metric].mean)
    return f"{_percent(lowest, metric)} ({name(lowest.setting)})"


def _percent(group: Group, metric: str) -> str:
    share = final_percent(group.finished, metric)
    return share if share == NONE else f"{share} %"
