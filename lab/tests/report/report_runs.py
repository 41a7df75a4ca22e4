"""Folders of records for the tests of the report: small, and of every experiment."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from lab.tests.attention.attention_runs import save_looks
from lab.tests.sorting.sorting_runs import save_keys

ABOUT = {
    "key": "k",
    "date": "2026-01-02T03:04:05+00:00",
    "commit": "0123456789abcdef0123456789abcdef01234567",
    "device": "a machine",
    "versions": {"python": "3.11.0", "torch": "2.13.0"},
    "problem": None,
    "seconds": 1.5,
    "step_ms": 0.5,
    "peak_memory": 2**20,
    "at_once": 1,
}
COLUMNS = "date,commit,plan,device,case,variant,engine,mode,n,status,ms_forward,ms_forward_backward"
COLUMNS += ",extra_mib"


def curve(seed: int, points: int = 6) -> dict[str, Any]:
    steps = [100 * i for i in range(points)]
    errors = [0.5 / (i + 1 + 0.1 * seed) for i in range(points - 1)] + [0.0]
    seconds = [0.5 * i for i in range(points)]
    return {"step": steps, "seconds": seconds, "loss": [None, *errors[1:]], "error": errors}


def run(experiment: str, seed: int, arguments: dict[str, Any], **others: Any) -> dict[str, Any]:
    command = f"sparsewire {experiment} --seeds 0 1"
    found = curve(seed)
    record = {"experiment": experiment, "seed": seed, "status": "finished", "command": command}
    record |= {"arguments": arguments, "curve": found, "final": {"error": 0.25 + seed / 10}}
    return ABOUT | record | {"wiring": None} | others


def identity(seed: int = 0, **others: Any) -> dict[str, Any]:
    arguments = {"size": 8, "method": "sparse", "target": "identity", "values": "fixed"}
    arguments |= {"lr": 0.005, "steps": 500, "batch": 64}
    arguments |= {k: others.pop(k) for k in list(others) if k in arguments}
    record = run("identity", seed, arguments, key=f"i-{arguments['method']}-{arguments['size']}")
    return record | {"final": {"error": 0.25 + seed / 10, "found": 1.0}} | others


def attention(seed: int = 0, **others: Any) -> dict[str, Any]:
    arguments = {"model": "glimpse", "preset": "ours", "glimpses": 1, "size": 32, "head": "conv"}
    arguments |= {"canvas": 100, "data": "mnist", "split": "test", "reduce": 1, "steps": 500}
    arguments |= {"batch": 128, "lr": 0.001}
    arguments |= {k: others.pop(k) for k in list(others) if k in arguments}
    return run("attention", seed, arguments, key=f"a-{arguments['model']}") | others


def sorting(seed: int = 0, **others: Any) -> dict[str, Any]:
    arguments = {"method": "exact", "loss": "permutation", "preset": "ours", "size": 4}
    arguments |= {"places": 1, "data": "digits", "split": "test", "network": "paper"}
    arguments |= {"steps": 500, "batch": 64, "lr": 0.001}
    arguments |= {k: others.pop(k) for k in list(others) if k in arguments}
    return run("sorting", seed, arguments, key=f"s-{arguments['method']}") | others


def write(path: Path, *records: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def write_bench(path: Path) -> Path:
    about = "2026-01-02,0123,full,a machine,spread,"
    rows = [f"{about},auto,eager,{n},ok,{n / 200},{n / 100},1.5" for n in (64, 256, 1024)]
    rows += [f"{about},reference,eager,{n},ok,{n / 100},{n / 10},9.5" for n in (64, 256)]
    rows.append(f"{about},reference,eager,1024,skipped,,,")
    path.write_text("\n".join([COLUMNS, *rows]) + "\n")
    return path


def save_wiring(path: Path, frames: int = 6, size: int = 8) -> Path:
    """Wires that come to the diagonal on straight ways."""
    rng = np.random.default_rng(0)
    ends = np.repeat(np.arange(size)[:, None], 2, axis=1)
    starts = rng.random((size, 2)) * (size - 1)
    share = np.linspace(0, 1, frames)[:, None, None]
    arrays = {
        "step": 100 * np.arange(frames),
        "means": ((1 - share) * starts + share * ends).astype(np.float32),
        "variances": np.broadcast_to(2 - 1.9 * share, (frames, size, 2)).astype(np.float32),
        "values": np.ones((frames, size), np.float32),
        "indices": rng.integers(0, size, (frames, 6 * size, 2)),
        "shape": np.array([size, size]),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path


def fill(folder: Path) -> Path:
    """A folder with every experiment, two seeds of each method, and all files of arrays."""
    save_wiring(folder / "identity" / "wiring.npz")
    save_looks(folder / "attention.npz", boxes=2)
    save_keys(folder / "sorting.npz")
    ours = [identity(seed, size=size) for size in (8, 32) for seed in (0, 1)]
    ours[0]["wiring"] = "identity/wiring.npz"
    peers = [identity(seed, method="reinforce", size=32) for seed in (0, 1)]
    write(folder / "identity.jsonl", *ours, *peers)
    glimpse = [attention(seed, glimpses=2, size=5, canvas=30) for seed in (0, 1)]
    glimpse[0]["wiring"] = "attention.npz"
    write(folder / "attention.jsonl", *glimpse, attention(model="convnet", canvas=30))
    write(folder / "sorting.jsonl", sorting(wiring="sorting.npz"), sorting(1))
    return folder
