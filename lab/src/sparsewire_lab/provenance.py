"""What a run says of itself: device, versions, commit, date."""

import datetime
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

import sparsewire

COMMIT_VARIABLE = "SPARSEWIRE_COMMIT"
_CPU_SHARE, _GPU_SHARE = 0.5, 0.6


def describe(device: torch.device) -> dict[str, Any]:
    """Return the columns of a row that are the same for a whole run, but for commit and date."""
    return {
        "device": device_name(device),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": _version("numpy"),
        "triton": _version("triton"),
        "keops": _version("pykeops"),
        "sparsewire": sparsewire.__version__,
    }


def device_name(device: torch.device) -> str:
    """Return the name of a GPU, or of a processor and how many of its threads are used."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{processor()}, {threads} of {os.cpu_count()} threads"


def processor() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def memory_limit(device: torch.device) -> int:
    """Bytes that a case may be expected to need: a good part of what is free."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * _GPU_SHARE)
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
        return int(free[0] * _CPU_SHARE)
    except (OSError, IndexError):
        return 4 * 2**30  # nothing is known: what nearly every machine has


def commit(folder: Path) -> str:
    """Return the commit of a clone, marked if its source was changed; "unknown" elsewhere."""
    if said := os.environ.get(COMMIT_VARIABLE):
        return said
    if (head := _git(folder, "rev-parse", "HEAD")) is None:
        return "unknown"
    changed = _git(folder, "status", "--porcelain", "--", "src", "lab/src")
    return f"{head}+changes" if changed else head


def now() -> str:
    """Return the date and time, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def clone() -> Path | None:
    """Return the root of the clone that this package, or the current folder, lies in."""
    here = Path(__file__).resolve()
    for folder in (*here.parents, *(Path.cwd() / "here").parents):
        if (folder / "src" / "sparsewire").is_dir() and (folder / "lab").is_dir():
            return folder
    return None


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *words], cwd=folder, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
