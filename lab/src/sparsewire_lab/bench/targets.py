"""What this library set out to reach on one H200, and what its record says."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sparsewire_lab.bench.cases import ALL_PAIRS, FLOOR_VARIANCES

Row = dict[str, Any]

DEVICE = "H200"
_NEVER = "cannot run"


class Target(NamedTuple):
    """A case, captured, with the most time and extra memory it may take."""

    work: str
    case: str
    n: int
    variant: str
    ms: float
    mib: float | None
    before: str  # what the code published with the paper took, timed before this record began


TARGETS = (
    Target("free layer, n = 64, training step", "step", 64, "", 0.15, None, "16.9 ms"),
    Target("n = 1,024", "step", 1024, "", 0.5, 64.0, "3,902 ms, 82.5 GiB"),
    Target("n = 16,384, all pairs", "step", 16384, ALL_PAIRS, 40.0, 2.0**10, _NEVER),
    Target("n = 65,536, floor variances", "step", 65536, FLOOR_VARIANCES, 20.0, 2.0**12, _NEVER),
    Target(
        "n = 1,048,576, floor variances", "step", 2**20, FLOOR_VARIANCES, 500.0, 2.0**15, _NEVER
    ),
    Target("glimpse 1×32×32, batch 128", "glimpse", 1024, "1×32×32", 0.3, 32.0, "31.4 ms, 1.2 GiB"),
    Target("glimpse 8×12×12, batch 128", "glimpse", 1152, "8×12×12", 0.4, 32.0, "35.3 ms, 1.4 GiB"),
)


def find(target: Target, rows: Sequence[Row]) -> Row | None:
    """Return the row that a target is about: captured, or eager where launching is nothing."""
    same = [
        row
        for row in rows
        if (row["case"], row["n"], row["variant"]) == (target.case, target.n, target.variant)
        and row["engine"] == "auto"
        and row["ms_forward_backward"]
    ]
    return max(same, key=lambda row: row["mode"] == "captured", default=None)
