"""What is common to performing any case: how it is measured, and how its row is filled."""

import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from sparsewire_lab.bench import exactness
from sparsewire_lab.bench.case import Case
from sparsewire_lab.bench.measure import CudaMeter, Measured, Meter, captured

Row = dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """How a run measures."""

    device: str = "cpu"
    threads: int | None = None
    budget: float = 0.5  # seconds for the repeats of a call
    table_pairs: int = 2**25  # up to so many pairs, the float64 reference is computed
    checked_pairs: int = 2**25  # up to so many, float64 in chunks


def explain(error: BaseException) -> str:
    """Say in one line what went wrong, and where."""
    lines = str(error).strip().splitlines()
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    message = lines[0][:200] if lines else "no message"
    return f"{type(error).__name__}: {message}{where}"


def add_note(row: Row, note: str) -> None:
    """Add to the note of a row."""
    row["note"] = "; ".join(filter(None, (row.get("note"), note)))


def judge(row: Row, error: float, worst: str, against: str) -> None:
    """Enter the error of an engine; call it wrong if it is large."""
    row.update(error=error if math.isfinite(error) else None, checked_against=against)
    if not error <= exactness.WRONG:
        row["status"] = "wrong"
        add_note(row, f"wrong: relative error {error:.1e} in {worst}, not timed")


def enter(row: Row, found: Measured, capture_mib: float | None) -> None:
    """Enter the time and the memory of a forward and backward pass."""
    extra = found.extra_mib if capture_mib is None else capture_mib
    row.update(ms_forward_backward=found.ms, repeats=found.repeats)
    row.update(noise=found.noise, extra_mib=extra)


def in_mode(
    case: Case, meter: Meter, forward: Callable[[], Tensor], both: Callable[[], list[Tensor]]
) -> tuple[Callable[[], Tensor], Callable[[], list[Tensor]], float | None]:
    """Return the two calls as they are, or as graphs, and the memory that capturing needed."""
    if case.mode != "captured":
        return forward, both, None
    if not isinstance(meter, CudaMeter):
        raise ValueError(f"mode must be 'eager' without a GPU; got {case.mode!r}")
    both()
    extra, replay = meter.peak(lambda: captured(both))
    return captured(forward), replay, extra
