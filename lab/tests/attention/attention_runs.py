"""Records and files of looks for the tests of the attention experiment's figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def make_attention(
    errors: Sequence[float | None],
    *,
    key: str = "a",
    seed: int = 0,
    every: int = 100,
    other: dict[str, Any] | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """A run whose error was noted every so many steps, each of which took 0.01 seconds.

    `other` replaces parts of the record, `arguments` its arguments.
    """
    steps = [every * i for i in range(len(errors))]
    setting = {"model": "glimpse", "preset": "ours", "glimpses": 1, "size": 32, "head": "conv"}
    setting |= {"canvas": 100, "data": "mnist", "split": "test", "reduce": 1, "steps": 1000}
    setting |= {"batch": 128, "lr": 0.001, "settle": 0.7, "floor": 0.1, "straight": 1.0}
    record = {
        "experiment": "attention",
        "key": key,
        "seed": seed,
        "status": "finished",
        "date": "2026-01-01",
        "arguments": setting | arguments,
        "curve": {
            "step": steps,
            "seconds": [step / 100 for step in steps],
            "loss": [None] * len(steps),
            "error": list(errors),
        },
        "final": {"error": errors[-1]},
        "seconds": steps[-1] / 100,
        "step_ms": None,
        "peak_memory": None,
        "wiring": None,
    }
    return record | (other or {})


def save_looks(
    path: Path,
    *,
    frames: int = 5,
    watched: int = 4,
    mistakes: int = 2,
    boxes: int = 1,
    size: int = 5,
    canvas: int = 30,
    **others: Any,
) -> Path:
    """Boxes that jump at every hundredth step; `others` replace arrays, None leaves out."""
    rng, count = np.random.default_rng(0), watched + mistakes
    ends = np.sort(rng.uniform(0, canvas - 1, (frames, count, boxes, 2, 2)), axis=-2)
    # Of (top, left) and (bottom, right): top left, top right, bottom left, bottom right.
    corners = ends[..., [0, 0, 1, 1], :].copy()
    corners[..., 1] = ends[..., [0, 1, 0, 1], 1]
    along = np.linspace(0, 1, size)
    spans = ends[-1, ..., :1, :] + along[:, None] * (ends[-1, ..., 1:, :] - ends[-1, ..., :1, :])
    points = np.empty((count, boxes, size, size, 2))
    points[..., 0] = spans[..., :, None, 0]
    points[..., 1] = spans[..., None, :, 1]
    labels = np.arange(count) % 10
    arrays = {
        "step": 100 * np.arange(frames),
        "corners": corners[:, :watched].astype(np.float32),
        "images": rng.integers(0, 256, (count, canvas, canvas), dtype=np.uint8),
        "labels": labels,
        "predicted": np.where(np.arange(count) < watched, labels, labels + 1),
        "points": points.astype(np.float32),
        "sampled": rng.integers(0, canvas, (count, boxes, size**2, 2)),
        "glimpses": rng.random((count, boxes, size, size), dtype=np.float32),
    }
    np.savez(path, **{k: v for k, v in (arrays | others).items() if v is not None})
    return path
