"""What all viewers need of a run: which frames to keep, errors at their steps, its file."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from sparsewire_lab.train.records import Record

Read = TypeVar("Read")


def read_or_note(read: Callable[[Path], Read], record: Record, notes: list[str]) -> Read | None:
    """Return what the file of a record holds; None, and a note, if it is not as expected."""
    if record["file"] is None:
        return None
    try:
        return read(record["file"])
    except (ValueError, OSError) as error:
        notes.append(str(error))
        return None


def frames_of(count: int, most: int) -> list[int]:
    """Return the numbers of up to `most` frames, evenly spaced, the first and the last among them.

    Examples:
        >>> print(frames_of(3, 10), frames_of(9, 3))
        [0, 1, 2] [0, 4, 8]
    """
    return np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist()


def errors_at(record: Record, steps: Sequence[int]) -> list[float | None]:
    """Return the error that was noted at each of these steps, None where there was none."""
    curve = record["curve"]
    noted = dict(zip(curve["step"], curve["error"], strict=True))
    return [short(noted.get(step)) for step in steps]


def short(value: float | None, scale: float = 1.0) -> float | None:
    """Return a number with as many digits as can be seen; None if it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{scale * value:.5g}")
