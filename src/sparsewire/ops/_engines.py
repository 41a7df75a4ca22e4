"""Which engine computes a stage: chosen by device and size, or by the person in doubt.

- `"reference"`: the specification, plain PyTorch that keeps whole tables
- `"chunked"`: plain PyTorch in chunks, made again in the backward pass
- `"compiled"`: the same, compiled by `torch.compile` (CPU; needs a C++ compiler)
- `"triton"`: fused kernels (CUDA, or anywhere under Triton's interpreter)
- `"auto"`: the fastest of these that the tensors and the machine allow
"""

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import torch

from sparsewire.ops._checks import check_choice

Engine = Literal["auto", "reference", "chunked", "compiled", "triton"]
ENGINES: tuple[Engine, ...] = get_args(Engine)
VARIABLE = "SPARSEWIRE_ENGINE"

# One for the process, a plain global: `torch.compile` can guard on it.
_chosen: Engine = check_choice(VARIABLE, os.environ.get(VARIABLE) or "auto", ENGINES)


@contextmanager
def engine(name: Engine) -> Iterator[None]:
    """Choose the engine of every stage, for as long as the block runs.

    The environment variable `SPARSEWIRE_ENGINE` does the same for a whole process. Engines agree to
    rounding; only the random numbers that `sample` draws from a seed differ between `"triton"` and
    the others. A stage that has no such engine uses its next simpler one. The choice holds for the
    process, not for one thread, and the backward pass keeps the engine of its forward pass.

    Args:
        name: `"auto"`, `"reference"`, `"chunked"`, `"compiled"` or `"triton"`.

    Examples:
        >>> import sparsewire as sw
        >>> layer, x = sw.SparseLayer((8,), (8,), tuples=8), torch.randn(4, 8)
        >>> with sw.engine("reference"):
        ...     y = layer(x)
    """
    global _chosen
    before, _chosen = _chosen, check_choice("name", name, ENGINES)
    try:
        yield
    finally:
        _chosen = before


def chosen() -> Engine:
    """Return the engine that was asked for."""
    return _chosen


def uses_kernels(device: torch.device) -> bool:
    """Whether the Triton kernels compute on this device; refuse a wish that cannot be met."""
    if _chosen not in ("auto", "triton"):
        return False
    able = has_triton() and (device.type == "cuda" or (interpreted() and device.type == "cpu"))
    if _chosen == "triton":
        if not able:
            raise RuntimeError(_why_no_kernels(device))
        return True
    return able and device.type == "cuda"


def deterministic(device: torch.device) -> bool:
    """Whether sums must have an order on a device where atomic additions have none."""
    return device.type == "cuda" and torch.are_deterministic_algorithms_enabled()


def has_triton() -> bool:
    """Whether Triton is installed."""
    return _TRITON


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on any device and slowly."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def has_compiler() -> bool:
    """Whether there is a C++ compiler that `torch.compile` can use."""
    return _COMPILER


_TRITON = importlib.util.find_spec("triton") is not None
_COMPILER = any(shutil.which(name) for name in (os.environ.get("CXX"), "g++", "clang++") if name)


def _why_no_kernels(device: torch.device) -> str:
    if not has_triton():
        return "the engine 'triton' needs the package triton, which comes with CUDA builds of torch"
    return (
        "the engine 'triton' needs tensors on a CUDA device (or TRITON_INTERPRET=1 in the "
        f"environment, to run the kernels slowly on the CPU); got {device}"
    )
