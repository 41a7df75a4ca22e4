"""What this library set out to reach in sorting, and what its record says."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from sparsewire_lab.bench import targets
from sparsewire_lab.bench.case import OURS
from sparsewire_lab.bench.sorting_cases import NETWORKS, OTT, SIZES, TORCHSORT

Row = dict[str, Any]

# Peers to be faster than: they make a matrix, or iterate.
SLOWER = ("softsort", "neuralsort", "odd-even", "bitonic", *NETWORKS, OTT)


class SortingTarget(NamedTuple):
    """A case with the most time it may take: milliseconds, or a share of the fastest of some."""

    work: str
    case: str
    n: int
    most: float
    peers: tuple[str, ...] = ()
    before: str = ""  # what the code published with the paper took, timed before this record began


class Found(NamedTuple):
    """What a record says of a target."""

    ms: float
    fastest: Row | None  # of the peers
    reached: bool | None  # None where there is nothing to compare with


def _one_thread() -> tuple[SortingTarget, ...]:
    faster = [
        SortingTarget(f"`{case}`, n = {n:,}", case, n, 1.0, SLOWER)
        for case in ("soft_rank", "soft_sort")
        for n in SIZES
        if n >= 64
    ]
    near = [
        SortingTarget(f"`{case}`, n = 1,024", case, 1024, 3.0, (TORCHSORT,))
        for case in ("soft_rank", "soft_sort")
    ]
    return (*faster, *near, SortingTarget("`sort_by`, n = 1,024", "sort_by", 1024, 1000.0))


ONE_THREAD = _one_thread()
GPU = (
    SortingTarget("sort layer, payload 3×784, n = 16", "sort_by", 16, 0.3, before="122.8 ms"),
    SortingTarget("n = 64", "sort_by", 64, 1.0, before="904 ms"),
    SortingTarget("n = 1,024", "sort_by", 1024, 20.0),
)


def targets_for(device: str) -> tuple[SortingTarget, ...]:
    """Return the targets that were set for a device, as a record names it."""
    if targets.DEVICE in device:
        return GPU
    return ONE_THREAD if re.search(r", 1 of \d+ threads$", device) else ()


def find(target: SortingTarget, rows: Sequence[Row]) -> Found | None:
    """Return what was found, None where ours was not measured."""
    same = [
        row
        for row in rows
        if (row["case"], row["n"]) == (target.case, target.n) and row["ms_forward_backward"]
    ]
    ours = min((row for row in same if row["engine"] == OURS), key=_time, default=None)
    if ours is None:
        return None
    if not target.peers:
        return Found(_time(ours), None, _time(ours) <= target.most)
    fastest = min((row for row in same if row["engine"] in target.peers), key=_time, default=None)
    reached = None if fastest is None else _time(ours) < target.most * _time(fastest)
    return Found(_time(ours), fastest, reached)


def _time(row: Row) -> float:
    return row["ms_forward_backward"]
