"""Records and files of keys for the tests of the sorting experiment's figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sparsewire_lab.sorting.experiment import PRESETS


def make_sorting(
    errors: Sequence[float | None],
    *,
    key: str = "a",
    seed: int = 0,
    every: int = 100,
    strict: Sequence[float | None] | None = None,
    other: dict[str, Any] | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """A run whose error was noted every so many steps, each of which took 0.01 seconds.

    The strict error is the same, unless it is given. `other` replaces parts of the record,
    `arguments` its arguments; what they leave open is as the preset has it.
    """
    steps = [every * i for i in range(len(errors))]
    strict = errors if strict is None else strict
    setting = {"method": "likelihood", "preset": "ours", "size": 16, "places": 3}
    setting |= {"data": "mnist", "split": "test", "steps": 1000, "batch": 64}
    setting |= {"network": "wide" if arguments.get("data") == "digits" else "paper"}
    setting |= usual(setting | arguments)
    record = {
        "experiment": "sorting",
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
            "strict": list(strict),
        },
        "final": {"error": errors[-1], "strict": strict[-1]},
        "seconds": steps[-1] / 100,
        "step_ms": None,
        "peak_memory": None,
        "wiring": None,
    }
    return record | (other or {})


def usual(setting: dict[str, Any]) -> dict[str, Any]:
    """What the preset and the method make of the arguments that are open."""
    chosen = PRESETS.get(setting["preset"], PRESETS["ours"])
    method = setting["method"]
    named = ("lr", "bend", "tanh", "jitter", "dropout", "decay")
    found = {name: chosen[name] for name in named}
    if (setting["preset"], setting["data"]) == ("ours", "digits"):
        found |= {"lr": 2e-3, "jitter": 0.3}
    found["loss"] = {"likelihood": "order", "sampled": "steps"}.get(method, "permutation")
    sharp = method in ("exact", "sampled", "odd_even", "bitonic")
    found["temperature"] = 0.1 if sharp else 1.0
    if method != "likelihood":
        found["bend"] = 0.0
    if setting["network"] == "wide":
        found["tanh"] = False
    return found


def hard_half(order: Sequence[int]) -> np.ndarray:
    """A permutation: row i is all of element order[i]."""
    return np.eye(len(order))[list(order)]


def save_keys(path: Path, *, places: int = 1, **others: Any) -> Path:
    """Four numbers, whose keys are wrong at first and right at last; `others` replace arrays.

    None leaves an array out. The picture of number i is as bright as 10 · (i + 1) everywhere.
    The halves are those of quicksort: at first nothing is known, at last all is certain.
    """
    values = np.array([30, 10, 40, 20]) if places > 1 else np.array([3, 1, 4, 2])
    keys = np.array([[4, 3, 2, 1], [3, 1, 2, 4], [3, 1, 4, 2]], np.float32)
    unknown = [np.full((4, 4), 0.25), np.kron(np.eye(2), np.full((2, 2), 0.5))]
    # 3 1 4 2 → 1 2 | 3 4 → 1 2 3 4.
    certain = [hard_half([1, 3, 0, 2]), hard_half([0, 1, 2, 3])]
    bright = 10 * np.arange(1, 5, dtype=np.uint8)
    arrays: dict[str, Any] = {
        "step": np.array([0, 100, 900]),
        "keys": keys,
        "values": values,
        "halves": np.array([unknown, unknown, certain], np.float16),
        "images": np.broadcast_to(bright[:, None, None, None], (4, places, 6, 6)),
    }
    np.savez(path, **{k: v for k, v in (arrays | others).items() if v is not None})
    return path
