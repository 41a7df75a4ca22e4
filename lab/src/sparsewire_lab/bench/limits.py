"""Which cases are skipped, and why: they would need too much memory or too much time."""

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

from sparsewire_lab.bench.cases import (
    DIFFTOPK,
    OTT,
    OURS,
    PACKAGES,
    SOFTTORCH,
    SORTS,
    TABLE_ENGINES,
    Case,
    payload_of,
)
from sparsewire_lab.bench.floors import sizes_of
from sparsewire_lab.bench.record import Row

# Tables of float32 that an engine holds at the peak of forward and backward, by measurement: of
# all pairs; of (n, n) for each instance; of (n, n) for each instance and layer of a network.
_TABLES = 12
_SORT_TABLES = {"softsort": 12, "neuralsort": 12, SOFTTORCH: 20, OTT: 40}
_LAYER_TABLES = {"diffsort odd-even": 4, "diffsort bitonic": 5, DIFFTOPK: 4}
# What is returned, its gradient, and what both are computed from.
_PERMUTATION_TABLES = 12
# Numbers of four bytes for a key and for a number of its payload, where an engine stores no table.
_KEY_NUMBERS, _PAYLOAD_NUMBERS = 75, 28
# Of ours, only the likelihood of many elements in a graph stores such tables.
_LOSS_TABLES = 14
_SHORT_MS = 250.0
_POWER = "this network needs a power of two"
# Powers of n: pairs grow with its square, an engine that leaves most of them out grows linearly,
# a network of n layers that moves a matrix with the cube.
_LEAST, _MOST, _MOST_SORTING, _MARGIN = 1.0, 2.0, 3.0, 0.3


class Limits(NamedTuple):
    """The most that a case may need."""

    memory: int  # bytes
    seconds: float  # of one forward and backward pass
    absent: Collection[str] = ()  # engines whose package is not installed


def reason_to_skip(case: Case, rows: Sequence[Row], limits: Limits) -> str | None:
    """Return why a case is skipped, or None; times of smaller sizes in `rows` are extrapolated."""
    if case.engine in limits.absent:
        module, package = PACKAGES[case.engine]
        return f"{module} is not installed: pip install {package}"
    if case.engine == "diffsort bitonic" and case.n & (case.n - 1):
        return _POWER
    if case.mode == "captured" and (reason := _after_eager(case, rows)):
        return reason
    if (need := bytes_of(case)) > limits.memory:
        need, allowed = (f"{size / 2**30:,.1f} GiB" for size in (need, limits.memory))
        return f"it would need about {need}; {allowed} are allowed"
    return _too_slow(case, rows, limits.seconds)


def bytes_of(case: Case) -> int:
    """Return the bytes that an engine stores, about; 0 if these are less than its inputs."""
    if case.case not in SORTS:
        sizes = sizes_of(case)
        return sizes.pairs * 4 * _TABLES if sizes and case.engine in TABLE_ENGINES else 0
    tables = _SORT_TABLES.get(case.engine, 0)
    if case.case == "soft_permutation":
        tables = max(tables, _PERMUTATION_TABLES)
    if (case.case, case.engine, case.mode) == ("order_loss", OURS, "captured"):
        tables = _LOSS_TABLES
    if case.engine in _LAYER_TABLES:
        steps = math.ceil(math.log2(max(case.n, 2)))
        layers = steps * (steps + 1) // 2 if case.engine.endswith("bitonic") else case.n
        tables = _LAYER_TABLES[case.engine] * layers
    numbers = _KEY_NUMBERS + _PAYLOAD_NUMBERS * math.prod(payload_of(case) or (0,))
    return (tables * case.n + numbers) * case.batch * case.n * 4


def _too_slow(case: Case, rows: Sequence[Row], allowed: float) -> str | None:
    """Expect time to grow from the last size as it grew to it, a little faster, up to a power."""
    before = [row for row in rows if _same_series(case, row) and row["n"] < case.n]
    before = [row for row in before if row["note"] != _POWER]
    if not before:
        return None
    *others, last = sorted(before, key=lambda row: row["n"])
    if last["ms_forward_backward"] is None:
        given_up = last["status"] == "skipped" or "stopped after" in last["note"]
        return f"n={last['n']:,} was given up already" if given_up else None
    power, most = _MOST, _MOST_SORTING if case.case in SORTS else _MOST
    if others and (earlier := others[-1])["ms_forward_backward"]:
        slower = last["ms_forward_backward"] / earlier["ms_forward_backward"]
        seen = math.log(slower) / math.log(last["n"] / earlier["n"])
        power = min(max(seen + _MARGIN, _LEAST), most)
    seconds = last["ms_forward_backward"] * 1e-3 * (case.n / last["n"]) ** power
    if seconds <= allowed:
        return None
    return f"would take up to {seconds:,.1f} s a call; {allowed:g} s are allowed"


def _after_eager(case: Case, rows: Sequence[Row]) -> str | None:
    """Skip a graph whose eager call failed, or is so long that its launches take no time."""
    for row in rows:
        if row["n"] == case.n and _same_series(case, row, mode="eager"):
            if row["status"] != "ok":
                return f"eager was {row['status']}"
            if (row["ms_forward_backward"] or 0) > _SHORT_MS:
                return "a call takes so long that its launches do not matter"
    return None


def _same_series(case: Case, row: Row, mode: str | None = None) -> bool:
    want = (case.case, case.engine, case.variant, mode or case.mode, case.batch)
    return want == tuple(row[name] for name in ("case", "engine", "variant", "mode", "batch"))
