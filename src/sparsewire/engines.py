"""Engines: the implementations of a function, listed in one ordered table, chosen in one place.

- `"reference"`: the specification; plain PyTorch that may store whole tables
- `"chunked"`: plain PyTorch in chunks
- `"fourier"`: a sum in closed form, plain PyTorch (`order_loss`)
- `"numpy"`: NumPy (CPU; repeats)
- `"grid"`: the whole index space, where it is hardly larger than what was sampled from it (CPU)
- `"triton"`: fused kernels (CUDA, or anywhere under Triton's interpreter)
- `"auto"`: the first of these, from the end, that takes the arguments and pays for their sizes
"""

import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from sparsewire.checks import check_choice

Name = Literal["auto", "reference", "chunked", "fourier", "numpy", "grid", "triton"]
NAMES: tuple[Name, ...] = get_args(Name)
VARIABLE = "SPARSEWIRE_ENGINE"

# One for the process, in a plain global on which `torch.compile` can guard.
_chosen: Name = check_choice(VARIABLE, os.environ.get(VARIABLE) or "auto", NAMES)


def _always(*_: Any, **__: Any) -> bool:
    return True


class Engine(NamedTuple):
    """One way to compute a function; all three callables take the arguments of the call."""

    name: Name
    run: Callable[..., Any]
    takes: Callable[..., bool] = _always
    """Whether the engine can compute this call."""
    pays: Callable[..., bool] = _always
    """Whether `"auto"` uses it for this call; evaluated before `takes`."""


def dispatch(engines: Sequence[Engine], device: torch.device, *args: Any) -> Any:
    """Compute a call with the first engine of a table that applies, see `select`."""
    return select(engines, device, *args).run(*args)


def select(engines: Sequence[Engine], device: torch.device, *args: Any) -> Engine:
    """Return the first engine of a table that is not above the chosen one and takes the call.

    Args:
        engines: Ordered from the fastest to the reference, which takes every call.
        device: Where the call is computed.
        *args: The arguments of the call, all of them and the same for every engine.

    Raises:
        RuntimeError: `"triton"` is chosen, the function has such an engine, and kernels cannot run
            on this device.
    """
    for engine in engines[:-1]:
        if _chosen == "auto":
            if not engine.pays(*args):
                continue
        elif NAMES.index(engine.name) > NAMES.index(_chosen):
            continue
        if (engine.name != "triton" or kernels_run(device)) and engine.takes(*args):
            return engine
    return engines[-1]


def chosen() -> Name:
    """Return the engine that is chosen for every function, or `"auto"`."""
    return _chosen


@contextmanager
def engine(name: Name) -> Iterator[None]:
    """Choose the engine of every function while the block runs.

    The environment variable `SPARSEWIRE_ENGINE` does the same for a whole process. Engines agree up
    to rounding; only the tuples that `sample` returns for a seed differ between `"triton"` and the
    others. A function without this engine, or whose engine does not take the arguments of a call,
    uses its next simpler one. The choice applies to the process, not to one thread, and the
    backward pass uses the engine of its forward pass.

    Args:
        name: `"auto"`, `"reference"`, `"chunked"`, `"fourier"`, `"numpy"`, `"grid"`
            or `"triton"`.

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
    """Whether Triton's kernels compute on this device.

    Raises:
        RuntimeError: `"triton"` is chosen, and they cannot run there.
    """
    if _chosen not in ("auto", "triton"):
        return False
    able = has_triton() and (device.type == "cuda" or (interpreted() and device.type == "cpu"))
    if _chosen == "triton" and not able:
        raise RuntimeError(_why_no_kernels(device))
    return able and (device.type == "cuda" or _chosen == "triton")


def concrete(x: Tensor) -> bool:
    """Whether the tensor is concrete: not traced, not fake, not under `torch.func`."""
    plain = type(x) in (Tensor, torch.nn.Parameter) and not x.is_meta
    return plain and not torch.compiler.is_compiling() and not transformed()


def transformed() -> bool:
    """Whether a transform of `torch.func` is active, outside a trace."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def deterministic(device: torch.device) -> bool:
    """Whether atomic additions are ruled out on this device, since their order is random."""
    return device.type == "cuda" and torch.are_deterministic_algorithms_enabled()


def has_triton() -> bool:
    """Whether Triton is installed."""
    return _TRITON


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on any device and slowly."""
    return os.environ.get("TRITON_INTERPRET") == "1"


_TRITON = importlib.util.find_spec("triton") is not None


def _why_no_kernels(device: torch.device) -> str:
    if not has_triton():
        return "the engine 'triton' needs the package triton, which comes with CUDA builds of torch"
    return (
        "the engine 'triton' needs tensors on a CUDA device (or TRITON_INTERPRET=1 in the "
        f"environment, to run the kernels slowly on the CPU); got {device}"
    )
