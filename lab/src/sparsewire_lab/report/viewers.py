"""Runs → data for the page's viewers: frames, errors at their steps, pictures, numbers."""

import base64
import math
from collections.abc import Iterable
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from sparsewire_lab.train.records import Record

# The kinds of numbers that the page's script knows, by their names there.
_KINDS = {"u1": "<u1", "u2": "<u2", "f4": "<f4"}


def frames_of(count: int, most: int) -> list[int]:
    """Return the numbers of up to `most` frames, evenly spaced, the first and the last among them.

    Examples:
        >>> print(frames_of(3, 10), frames_of(9, 3))
        [0, 1, 2] [0, 4, 8]
    """
    return np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist()


def moving(name: str, record: Record, steps: Iterable[int]) -> dict[str, Any]:
    """Return what all viewers need of a run: its name, its command, and errors at its steps."""
    curve = record["curve"]
    errors = dict(zip(curve["step"], curve["error"], strict=True))
    steps = list(steps)
    return {
        "name": name,
        "command": record["command"],
        "step": steps,
        "error": [short(errors.get(step)) for step in steps],
    }


def short(value: float | None, scale: float = 1.0) -> float | None:
    """Return a number with as many digits as can be seen; None if it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{scale * value:.5g}")


def picture(image: np.ndarray) -> str:
    """Return a picture in greys as a data URI.

    Args:
        image: (height, width) bytes, or floats from 0, black, to 1.
    """
    if image.dtype != np.uint8:
        image = (255 * np.clip(np.nan_to_num(image.astype(np.float64)), 0, 1)).round()
    file = BytesIO()
    Image.fromarray(image.astype(np.uint8)).save(file, "png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def packed(array: np.ndarray, kind: str) -> dict[str, Any]:
    """Return numbers for the page's script: their kind, shape and bytes in base64.

    Args:
        array: The numbers; integers must fit the kind.
        kind: "u1", "u2" or "f4".
    """
    if kind != "f4" and array.size and not 0 <= array.min() <= array.max() < 256 ** int(kind[1]):
        raise ValueError(f"numbers must fit {kind}; got {array.min()} to {array.max()}")
    data = np.ascontiguousarray(array, _KINDS[kind]).tobytes()
    return {"kind": kind, "shape": list(array.shape), "data": base64.b64encode(data).decode()}
