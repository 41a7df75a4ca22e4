"""Small records and files of arrays, for the tests of figures, tables and the report."""

import json
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from sparsewire_lab.sorting.experiment import PRESETS

Errors = Sequence[float | None]

ABOUT: dict[str, Any] = {
    "date": "2026-01-02T03:04:05+00:00",
    "commit": "0123456789abcdef0123456789abcdef01234567",
    "device": "a machine",
    "versions": {"python": "3.11.0", "torch": "2.13.0"},
    "at_once": 1,
}
IDENTITY = {"size": 8, "method": "sparse", "target": "identity", "values": "fixed"}
IDENTITY |= {"lr": 0.005, "steps": 1000, "batch": 64}
ATTENTION = {"model": "glimpse", "preset": "ours", "glimpses": 1, "size": 32, "head": "conv"}
ATTENTION |= {"canvas": 100, "data": "mnist", "split": "test", "reduce": 1, "steps": 1000}
ATTENTION |= {"batch": 128, "lr": 0.001, "settle": 0.7, "floor": 0.1, "straight": 1.0}
SORTING = {"method": "likelihood", "preset": "ours", "size": 16, "places": 3, "data": "mnist"}
SORTING |= {"split": "test", "steps": 1000, "batch": 64}


def make_record(
    experiment: str,
    defaults: dict[str, Any],
    errors: Errors,
    key: str | None = None,
    seed: int = 0,
    every: int = 100,
    other: dict[str, Any] | None = None,
    **given: Any,
) -> dict[str, Any]:
    """A run whose error was recorded every so many steps, each of which took 0.01 seconds.

    Runs with the same arguments have the same key, unless it is given. `other` replaces parts of
    the record, `given` its arguments.
    """
    arguments = defaults | given
    steps = [every * i for i in range(len(errors))]
    seconds = [step / 100 for step in steps]
    curve = {"step": steps, "seconds": seconds, "loss": [None] * len(steps), "error": [*errors]}
    record = {
        "experiment": experiment,
        "key": key or f"k{zlib.crc32(json.dumps(arguments, sort_keys=True).encode())}",
        "seed": seed,
        "status": "finished",
        "date": "2026-01-01",
        "arguments": arguments,
        "curve": curve,
        "final": {"error": errors[-1], "found": 0.0},
        "seconds": seconds[-1],
        "step_ms": None,
        "peak_memory": None,
        "wiring": None,
    }
    return record | (other or {})


make_identity = partial(make_record, "identity", IDENTITY)


def make_attention(errors: Errors, key: str = "a", *args: Any, **others: Any) -> dict[str, Any]:
    return make_record("attention", ATTENTION, errors, key, *args, **others)


def make_sorting(
    errors: Errors,
    key: str = "a",
    *args: Any,
    strict: Errors | None = None,
    other: dict[str, Any] | None = None,
    **given: Any,
) -> dict[str, Any]:
    """A run whose strict error is the same unless it is given, and its arguments the preset's."""
    strict = [*(errors if strict is None else strict)]
    setting = SORTING | {"network": "wide" if given.get("data") == "digits" else "paper"}
    setting |= preset_arguments(setting | given)
    run = make_record("sorting", setting, errors, key, *args, **given)
    run["curve"]["strict"], run["final"]["strict"] = strict, strict[-1]
    return run | (other or {})


def preset_arguments(setting: dict[str, Any]) -> dict[str, Any]:
    """The arguments that preset and method make of those that are open."""
    chosen = PRESETS.get(setting["preset"], PRESETS["ours"])
    method = setting["method"]
    made = {name: chosen[name] for name in ("lr", "bend", "tanh", "jitter", "dropout", "decay")}
    if (setting["preset"], setting["data"]) == ("ours", "digits"):
        made |= {"lr": 2e-3, "jitter": 0.3}
    made["loss"] = {"likelihood": "order", "sampled": "steps"}.get(method, "permutation")
    sharp = method in ("exact", "sampled", "odd_even", "bitonic")
    made["temperature"] = 0.1 if sharp else 1.0
    if method != "likelihood":
        made["bend"] = 0.0
    if setting["network"] == "wide":
        made["tanh"] = False
    return made


def for_report(experiment: str, seed: int = 0, **others: Any) -> dict[str, Any]:
    """A run with six points, all provenance, and arguments or parts that replace others."""
    arguments = {
        "identity": IDENTITY,
        "attention": ATTENTION,
        "sorting": SORTING
        | {"method": "exact", "loss": "permutation", "size": 4, "places": 1, "data": "digits"}
        | {"network": "paper", "lr": 0.001},
    }[experiment]
    arguments = arguments | {k: others.pop(k) for k in list(others) if k in arguments}
    key = f"{experiment[0]}-{arguments.get('method') or arguments.get('model')}-{arguments['size']}"
    errors = [0.5 / (i + 1 + 0.1 * seed) for i in range(5)] + [0.0]
    run = make_record(experiment, arguments, errors, key=key, seed=seed, other=ABOUT)
    run["curve"]["loss"] = [None, *errors[1:]]
    command = f"sparsewire {experiment} --seeds 0 1"
    run |= {"command": command, "final": {"error": 0.25 + seed / 10, "found": 1.0}}
    return run | others


def write(path: Path, *records: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def write_bench(path: Path) -> Path:
    head = "date,commit,plan,device,case,variant,engine,mode,n,status,ms_forward"
    about = "2026-01-02,0123,full,a machine,spread,"
    rows = [f"{about},auto,eager,{n},ok,{n / 200},{n / 100},1.5" for n in (64, 256, 1024)]
    rows += [f"{about},reference,eager,{n},ok,{n / 100},{n / 10},9.5" for n in (64, 256)]
    rows.append(f"{about},reference,eager,1024,skipped,,,")
    path.write_text("\n".join([f"{head},ms_forward_backward,extra_mib", *rows]) + "\n")
    return path


def save(path: Path, arrays: dict[str, Any], others: dict[str, Any]) -> Path:
    """Write arrays; `others` replace some, None leaves one out."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{k: v for k, v in (arrays | others).items() if v is not None})
    return path


def save_wiring(path: Path, *, frames: int = 5, sizes: tuple[int, ...] = (6, 4), **others: Any):
    """Three wires that move at every hundredth step."""
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
    return save(path, arrays, others)


def save_frames(
    path: Path,
    *,
    frames: int = 5,
    tracked: int = 4,
    mistakes: int = 2,
    boxes: int = 1,
    size: int = 5,
    canvas: int = 30,
    **others: Any,
) -> Path:
    """Boxes that jump at every hundredth step."""
    rng, count = np.random.default_rng(0), tracked + mistakes
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
        "corners": corners[:, :tracked].astype(np.float32),
        "images": rng.integers(0, 256, (count, canvas, canvas), dtype=np.uint8),
        "labels": labels,
        "predicted": np.where(np.arange(count) < tracked, labels, labels + 1),
        "points": points.astype(np.float32),
        "sampled": rng.integers(0, canvas, (count, boxes, size**2, 2)),
        "glimpses": rng.random((count, boxes, size, size), dtype=np.float32),
    }
    return save(path, arrays, others)


def words(figure: Figure) -> list[str]:
    """The entries of a figure's legend."""
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def title(figure: Figure) -> str:
    """The title of a figure's legend."""
    return figure.legends[0].get_title().get_text()


def rows(table: str) -> list[list[str]]:
    """The cells of a table in Markdown, without its head."""
    return [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]


def hard_half(order: Sequence[int]) -> np.ndarray:
    """A permutation: row i is all of element order[i]."""
    return np.eye(len(order))[list(order)]


def save_keys(path: Path, *, places: int = 1, **others: Any) -> Path:
    """Four numbers, whose keys are wrong at first and right at last.

    The picture of number i is as bright as 10 · (i + 1) everywhere. The halves are those of
    quicksort: at first nothing is known, at last all is certain.
    """
    values = np.array([30, 10, 40, 20]) if places > 1 else np.array([3, 1, 4, 2])
    unknown = [np.full((4, 4), 0.25), np.kron(np.eye(2), np.full((2, 2), 0.5))]
    # 3 1 4 2 → 1 2 | 3 4 → 1 2 3 4.
    certain = [hard_half([1, 3, 0, 2]), hard_half([0, 1, 2, 3])]
    bright = 10 * np.arange(1, 5, dtype=np.uint8)
    arrays: dict[str, Any] = {
        "step": np.array([0, 100, 900]),
        "keys": np.array([[4, 3, 2, 1], [3, 1, 2, 4], [3, 1, 4, 2]], np.float32),
        "values": values,
        "halves": np.array([unknown, unknown, certain], np.float16),
        "images": np.broadcast_to(bright[:, None, None, None], (4, places, 6, 6)),
    }
    return save(path, arrays, others)


def fill(folder: Path) -> Path:
    """A folder with every experiment, two seeds of each method, and all files of arrays."""
    save_wiring(folder / "identity" / "wiring.npz", frames=6, sizes=(8, 8))
    save_frames(folder / "attention.npz", boxes=2)
    save_keys(folder / "sorting.npz")
    ours = [for_report("identity", seed, size=size) for size in (8, 32) for seed in (0, 1)]
    ours[0]["wiring"] = "identity/wiring.npz"
    peers = [for_report("identity", seed, method="reinforce", size=32) for seed in (0, 1)]
    write(folder / "identity.jsonl", *ours, *peers)
    shape = {"glimpses": 2, "size": 5, "canvas": 30}
    glimpse = [for_report("attention", seed, **shape) for seed in (0, 1)]
    glimpse[0]["wiring"] = "attention.npz"
    plain = for_report("attention", model="convnet", canvas=30)
    write(folder / "attention.jsonl", *glimpse, plain)
    sorts = [for_report("sorting", 0, wiring="sorting.npz"), for_report("sorting", 1)]
    write(folder / "sorting.jsonl", *sorts)
    return folder
