"""Which engine computes a function: one ordered table for each function, one place that chooses.

- `"reference"`: the specification, plain PyTorch that may store whole tables
- `"chunked"`: plain PyTorch in chunks, recomputed in the backward pass
- `"fourier"`: a sum in closed form, plain PyTorch (`order_loss`)
- `"numpy"`: NumPy's vector instructions (CPU; soft sorting)
- `"compiled"`: chunks compiled by `torch.compile` (CPU; needs a C++ compiler)
- `"triton"`: fused kernels (CUDA, or anywhere under Triton's interpreter)
- `"auto"`: the fastest of these that takes the arguments and is worth it
"""

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from sparsewire.checks import check_choice

Name = Literal["auto", "reference", "chunked", "fourier", "numpy", "compiled", "triton"]
NAMES: tuple[Name, ...] = get_args(Name)
VARIABLE = "SPARSEWIRE_ENGINE"

# One for the process, a plain global: `torch.compile` can guard on it.
_chosen: Name = check_choice(VARIABLE, os.environ.get(VARIABLE) or "auto", NAMES)


def _always(*_: Any, **__: Any) -> bool:
    return True


class Engine(NamedTuple):
    """One way to compute a function. All functions below get the arguments of the call."""

    name: Name
    run: Callable[..., Any]
    takes: Callable[..., bool] = _always
    """Whether the engine can compute this call; what it cannot, a simpler one computes."""
    pays: Callable[..., bool] = _always
    """Whether `"auto"` chooses it for this call."""


def dispatch(engines: Sequence[Engine], device: torch.device, *args: Any) -> Any:
    """Compute a call by the first engine of a table that takes it.

    Args:
        engines: From the fastest to the reference, which takes every call.
        device: Where the call is computed.
        *args: The arguments of the call, all of them, the same for every engine.
    """
    return select(engines, device, *args).run(*args)


def select(engines: Sequence[Engine], device: torch.device, *args: Any) -> Engine:
    """Return the engine that `dispatch` would call.

    Raises:
        RuntimeError: `"triton"` was asked for, the function has such an engine, and kernels cannot
            run on this device.
    """
    for engine in engines:
        if _chosen != "auto" and NAMES.index(engine.name) > NAMES.index(_chosen):
            continue
        if engine.name == "triton" and not kernels_run(device):
            continue
        if engine.takes(*args) and (_chosen != "auto" or engine.pays(*args)):
            return engine
    return engines[-1]


def chosen() -> Name:
    """Return the engine that was asked for."""
    return _chosen


@contextmanager
def engine(name: Name) -> Iterator[None]:
    """Choose the engine of every function, for as long as the block runs.

    The environment variable `SPARSEWIRE_ENGINE` does the same for a whole process. Engines agree to
    rounding; only the random numbers that `sample` draws from a seed differ between `"triton"` and
    the others. A function that has no such engine, or whose engine does not take the arguments of a
    call, uses its next simpler one. The choice holds for the process, not for one thread, and the
    backward pass uses the engine of its forward pass.

    Args:
        name: `"auto"`, `"reference"`, `"chunked"`, `"fourier"`, `"numpy"`, `"compiled"` or
            `"triton"`.

    Examples:
        >>> import sparsewire as sw
        >>> layer, x = sw.SparseLayer((8,), (8,), tuples=8), torch.randn(4, 8)
        >>> with sw.engine("reference"):
        ...     y = layer(x)
    """
    global _chosen
    before, _chosen = _chosen, check_choice("name", name, NAMES)
    try:
        yield
    finally:
        _chosen = before


def kernels_run(device: torch.device) -> bool:
    """Whether Triton's kernels compute on this device; refuse a wish that cannot be met."""
    if _chosen not in ("auto", "triton"):
        return False
    able = has_triton() and (device.type == "cuda" or (interpreted() and device.type == "cpu"))
    if _chosen == "triton" and not able:
        raise RuntimeError(_why_no_kernels(device))
    return able and (device.type == "cuda" or _chosen == "triton")


def concrete(x: Tensor) -> bool:
    """Whether the tensor is concrete: not traced, not fake, not under `torch.func`."""
    plain = type(x) in (Tensor, torch.nn.Parameter) and not x.is_meta
    transformed = torch._C._are_functorch_transforms_active()
    return plain and not torch.compiler.is_compiling() and not transformed


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
