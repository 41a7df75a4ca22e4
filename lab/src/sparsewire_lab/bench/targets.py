"""The times that this library set out to reach, and what a record has for them."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sparsewire_lab.bench import cases
from sparsewire_lab.bench.record import Row

# Peers to be faster than: they compute a matrix, or iterate.
SLOWER = ("softsort", "neuralsort", "odd-even", "bitonic", *cases.NETWORKS, cases.OTT)
_FASTER = (cases.TORCHSORT,)
_NEVER = "cannot run"


class Target(NamedTuple):
    """A case with the most time it may take: milliseconds, or a multiple of the fastest peer's."""

    work: str
    case: str
    n: int
    most: float
    variant: str | None = None  # None: any
    mib: float | None = None  # the most extra memory
    peers: tuple[str, ...] = ()
    before: str = ""  # of the code published with the paper, timed before this record began


class Result(NamedTuple):
    """What a record has for a target."""

    row: Row
    fastest: Row | None  # of the peers
    reached: bool | None  # None where there is nothing to compare with


_PLACES = ("soft_rank", "soft_sort")
ONE_THREAD = (
    *(
        Target(f"`{case}`, n = {n:,}", case, n, 1.0, peers=SLOWER)
        for case in _PLACES
        for n in (64, 256, 1024, 4096)
    ),
    *(
        Target(f"`{case}`, n = 1,024", case, 1024, 3.0, peers=(cases.TORCHSORT,))
        for case in _PLACES
    ),
    Target("`sort_by`, n = 1,024", "sort_by", 1024, 1000.0),
)


def _steps() -> Iterator[Target]:
    """Yield the training steps of a free layer: their size, variant, time and memory."""
    for n, variant, most, mib, before in (
        (64, "", 0.15, None, "16.9 ms"),
        (1024, "", 0.5, 2.0**6, "3,902 ms, 82.5 GiB"),
        (2**14, cases.ALL_PAIRS, 40.0, 2.0**10, _NEVER),
        (2**16, cases.FLOOR_VARIANCES, 20.0, 2.0**12, _NEVER),
        (2**20, cases.FLOOR_VARIANCES, 500.0, 2.0**15, _NEVER),
    ):
        work = ", ".join(filter(None, (f"training step, n = {n:,}", variant)))
        yield Target(work, "step", n, most, variant, mib, before=before)


GPU = (
    *_steps(),
    Target("glimpse 1×32×32", "glimpse", 1024, 0.3, mib=32.0, before="31.4 ms, 1.2 GiB"),
    Target("glimpse 8×12×12", "glimpse", 1152, 0.4, mib=32.0, before="35.3 ms, 1.4 GiB"),
    Target("sort layer, payload 3×784, n = 16", "sort_by", 16, 0.3, before="122.8 ms"),
    Target("sort layer, n = 64", "sort_by", 64, 1.0, before="904 ms"),
    Target("sort layer, n = 1,024", "sort_by", 1024, 20.0),
)


def targets_for(device: str) -> tuple[Target, ...]:
    """Return the targets that were set for a device, as a record names it."""
    if "H200" in device:
        return GPU
    return ONE_THREAD if re.search(r", 1 of \d+ threads$", device) else ()


def find(target: Target, rows: Sequence[Row]) -> Result | None:
    """Return what the rows of a run have for a target, None where ours was not measured.

    Ours counts as captured where it was captured.
    """
    same = [
        row
        for row in rows
        if (row["case"], row["n"]) == (target.case, target.n)
        and target.variant in (None, row["variant"])
        and row["ms_forward_backward"]
    ]
    ours = [row for row in same if row["engine"] == cases.OURS]
    if not ours:
        return None
    best = max(ours, key=lambda row: row["mode"] == "captured")
    peers = [row for row in same if row["engine"] in target.peers]
    fastest = min(peers, key=lambda row: row["ms_forward_backward"], default=None)
    time = best["ms_forward_backward"]
    if not target.peers:
        fits = target.mib is None or best["extra_mib"] is None or best["extra_mib"] <= target.mib
        return Result(best, None, time <= target.most and fits)
    if fastest is None:
        return Result(best, None, None)
    return Result(best, fastest, time < target.most * fastest["ms_forward_backward"])
