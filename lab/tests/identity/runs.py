"""Records and wirings for the tests of figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def make_run(
    errors: Sequence[float | None], *, seed: int = 0, every: int = 100, **arguments: Any
) -> dict[str, Any]:
    """A run whose error was noted every so many steps, each of which took 0.01 seconds."""
    steps = [every * i for i in range(len(errors))]
    setting = {"size": 8, "method": "sparse", "target": "identity", "values": "fixed"}
    setting |= {"lr": 0.005, "steps": 1000, "batch": 64}
    return {
        "experiment": "identity",
        "seed": seed,
        "status": "finished",
        "arguments": setting | arguments,
        "curve": {
            "step": steps,
            "seconds": [step / 100 for step in steps],
            "loss": [None] * len(steps),
            "error": list(errors),
            "found": [0.0] * len(steps),
        },
        "final": {"error": errors[-1], "found": 0.0},
        "wiring": None,
    }


def save_wiring(path: Path, *, frames: int = 5, sizes: tuple[int, ...] = (6, 4), **others: Any):
    """Three wires that move at every hundredth step; `others` replace arrays, None leaves out."""
    rng, axes = np.random.default_rng(0), len(sizes)
    size = np.array(sizes)
    arrays = {
        "step": 100 * np.arange(frames),
        "means": (rng.random((frames, 3, axes)) * (size - 1)).astype(np.float32),
        "variances": (0.1 + rng.random((frames, 3, axes))).astype(np.float32),
        "values": np.ones((frames, 3), dtype=np.float32),
        "indices": rng.integers(0, size, (frames, 12, axes)),
        "shape": size,
    }
    np.savez(path, **{k: v for k, v in (arrays | others).items() if v is not None})
    return path
