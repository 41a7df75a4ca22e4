"""The times that this library set out to reach, and what a record has for them."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from sparsewire_lab.bench import cases
from sparsewire_lab.bench.record import Row

# Peers to be faster than: the fastest soft sorts of others.
_FASTEST = (cases.TORCHSORT, cases.SOFTTORCH, cases.SOFTTORCH_FAST, cases.LAPSUM)
_BOTH = ("soft_rank", "soft_sort")
_ALL, _FLOOR, _NEVER = cases.ALL_PAIRS, cases.FLOOR_VARIANCES, "cannot run"


class Target(NamedTuple):
    """A case with the most time it may take: milliseconds, or a multiple of the fastest peer's."""

    work: str
    case: str
    n: int
    most: float
    variant: str | None = None  # None: any
    mib: float | None = None  # the most extra memory
    peers: tuple[str, ...] = ()
    batch: int = 64
    before: str = ""  # of the code published with the paper, timed before this record began


ONE_THREAD = (
    *(
        Target(f"`{case}`, n = {n:,}", case, n, most)
        for case in _BOTH
        for n, most in ((64, 0.69), (1024, 4.4), (4096, 20.8))
    ),
    *(
        Target(f"`{case}`, n = {n:,}", case, n, 1.0, peers=_FASTEST)
        for case in _BOTH
        for n in (256, 1024, 4096, 10**4, 10**5)
    ),
)
GPU = (
    Target("training step, n = 64", "step", 64, 0.15, "", before="16.9 ms"),
    Target("training step, n = 1,024", "step", 1024, 0.5, "", 2.0**6, before="3,902 ms, 82.5 GiB"),
    Target(f"training step, n = 16,384, {_ALL}", "step", 2**14, 40.0, _ALL, 2.0**10, before=_NEVER),
    Target(
        f"training step, n = 65,536, {_FLOOR}", "step", 2**16, 20.0, _FLOOR, 2.0**12, before=_NEVER
    ),
    Target(
        f"training step, n = 1,048,576, {_FLOOR}",
        "step",
        2**20,
        500.0,
        _FLOOR,
        2.0**15,
        before=_NEVER,
    ),
    Target("glimpse 1×32×32", "glimpse", 1024, 0.3, mib=32.0, before="31.4 ms, 1.2 GiB"),
    Target("glimpse 8×12×12", "glimpse", 1152, 0.4, mib=32.0, before="35.3 ms, 1.4 GiB"),
    *(
        Target(f"`{case}`, n = {n:,}", case, n, most)
        for case in _BOTH
        for n, most in ((64, 0.02), (1024, 0.04))
    ),
    *(Target(f"`{case}`, n = 10⁷, one row", case, 10**7, 3.0, batch=1) for case in _BOTH),
    *(
        Target(f"`sort_by`, payload 3×784, n = {n:,}", "sort_by", n, most, "3×784", before=before)
        for n, most, before in ((16, 0.1, "122.8 ms"), (64, 0.25, "904 ms"), (1024, 3.0, ""))
    ),
)


def targets_for(device: str) -> tuple[Target, ...]:
    """Return the targets that were set for a device, as a record names it."""
    if "H200" in device:
        return GPU
    return ONE_THREAD if re.search(r", 1 of \d+ threads$", device) else ()


def find(target: Target, rows: Sequence[Row]) -> tuple[Row, Row | None, bool | None] | None:
    """Return our row of a run, that of the fastest peer, and whether the target is reached.

    The last is None where no peer was measured, the whole where ours was not. Ours counts as
    captured where it was captured.
    """
    same = [
        row
        for row in rows
        if (row["case"], row["n"]) == (target.case, target.n)
        and target.variant in (None, row["variant"])
        and (target.case not in cases.LEAGUE or row["batch"] == target.batch)
        and row["ms_forward_backward"]
    ]
    ours = [row for row in same if row["engine"] == cases.OURS]
    if not ours:
        return None
    best = max(ours, key=lambda row: row["mode"] == "captured")
    peers = [row for row in same if row["engine"] in target.peers]
    fastest = min(peers, key=lambda row: row["ms_forward_backward"], default=None)
    if target.peers and fastest is None:
        return best, None, None
    time = best["ms_forward_backward"]
    if fastest is not None:
        return best, fastest, time < target.most * fastest["ms_forward_backward"]
    fits = target.mib is None or best["extra_mib"] is None or best["extra_mib"] <= target.mib
    return best, None, time <= target.most and fits
