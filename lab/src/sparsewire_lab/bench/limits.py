"""What is not tried, and why: cases that would need too much memory or too much time."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sparsewire import ops
from sparsewire_lab.bench.cases import ALL_PAIRS, TABLE_ENGINES, Case, Sizes, sizes_of
from sparsewire_lab.bench.problems import has_tolerance
from sparsewire_lab.bench.sorting_cases import SORTING, reason_not_to_sort, sorting_table_bytes

# Tables of float32 that plain PyTorch holds at its peak, forward and backward, by measurement.
_TABLES = 12
_SHORT_MS = 250.0
# Powers of n: pairs grow with its square, what an engine that leaves most of them out linearly.
_LEAST, _MOST, _MARGIN = 1.0, 2.0, 0.3
# A network of n layers that moves a matrix grows with the cube.
_MOST_SORTING = 3.0

Row = dict[str, Any]


@dataclass(frozen=True)
class Limits:
    """The most a case may need."""

    memory: int  # bytes
    seconds: float  # of one forward and backward pass
    keops: bool = True  # whether it is installed
    absent: Collection[str] = ()  # engines of soft sorts that are not


def reason_to_skip(case: Case, rows: Sequence[Row], limits: Limits) -> str | None:
    """Say why a case is not tried, or None if it is.

    Args:
        case: The case.
        rows: What was found in this run so far: the times of smaller sizes say what to expect.
        limits: The most it may need.
    """
    if case.case == "ceilings":
        return None
    if case.case == "spread" and case.variant == ALL_PAIRS and not has_tolerance(ops.spread):
        return "spread has no option tolerance: it never leaves a pair out"
    if case.engine == "keops" and not limits.keops:
        return "pykeops is not installed: pip install 'sparsewire[keops]'"
    if case.case in SORTING and (reason := reason_not_to_sort(case, limits.absent)):
        return reason
    return _after_eager(case, rows) or _too_large(case, limits) or _too_slow(case, rows, limits)


def table_bytes(sizes: Sizes) -> int:
    """Bytes that an engine which keeps tables needs, about."""
    return sizes.pairs * 4 * _TABLES


def _too_large(case: Case, limits: Limits) -> str | None:
    if case.case in SORTING:
        need = sorting_table_bytes(case)
    else:
        need = table_bytes(sizes_of(case)) if case.engine in TABLE_ENGINES else 0
    if need <= limits.memory:
        return None
    return (
        f"its tables would need about {need / 2**30:,.1f} GiB; "
        f"{limits.memory / 2**30:,.1f} GiB are allowed"
    )


def _too_slow(case: Case, rows: Sequence[Row], limits: Limits) -> str | None:
    """Expect time to grow from the last size as it grew to it, a little faster, up to a power."""
    before = [row for row in rows if _same_series(case, row) and row["n"] < case.n]
    if not before:
        return None
    before.sort(key=lambda row: row["n"])
    last = before[-1]
    if last["ms_forward_backward"] is None:
        given_up = last["status"] == "skipped" or "stopped after" in last["note"]
        return f"n={last['n']:,} was given up already" if given_up else None
    power = most = _MOST_SORTING if case.case in SORTING else _MOST
    if len(before) > 1 and (earlier := before[-2])["ms_forward_backward"]:
        slower = last["ms_forward_backward"] / earlier["ms_forward_backward"]
        seen = math.log(slower) / math.log(last["n"] / earlier["n"])
        power = min(max(seen + _MARGIN, _LEAST), most)
    seconds = last["ms_forward_backward"] * 1e-3 * (case.n / last["n"]) ** power
    if seconds <= limits.seconds:
        return None
    return f"would take up to {seconds:,.1f} s a call; {limits.seconds:g} s are allowed"


def _after_eager(case: Case, rows: Sequence[Row]) -> str | None:
    """A graph is worth capturing where the launches of a call that works take part of its time."""
    if case.mode != "captured":
        return None
    for row in rows:
        if row["n"] == case.n and _same_series(case, row, mode="eager"):
            if row["status"] != "ok":
                return f"eager was {row['status']}"
            if row["ms_forward_backward"] > _SHORT_MS:
                return "a call takes so long that launching is nothing beside it"
    return None


def _same_series(case: Case, row: Row, mode: str | None = None) -> bool:
    want = (case.case, case.engine, case.variant, mode or case.mode)
    return want == (row["case"], row["engine"], row["variant"], row["mode"])
