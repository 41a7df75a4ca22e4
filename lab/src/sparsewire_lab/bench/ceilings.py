"""The most that the machine can do, measured: copies, exponentials, matrix products."""

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, no_type_check

import torch

from sparsewire_lab.bench.measure import Measured, Meter

ROUNDS = 512
BLOCK = 1024

_INSTALLED = importlib.util.find_spec("triton") is not None
triton: Any = importlib.import_module("triton") if _INSTALLED else None
tl: Any = importlib.import_module("triton.language") if _INSTALLED else None


# A rate, its unit, the time it follows from, and how it was measured.
Ceiling = tuple[float, str, Measured, str]


def measure(name: str, meter: Meter) -> Ceiling:
    """Measure one of the ceilings by name, see `sparsewire_lab.bench.cases.CEILINGS`."""
    if name == "copy":
        return _copy(meter)
    if name == "exp":
        return _exp(meter)
    dtype = {"matmul float32": torch.float32, "matmul bfloat16": torch.bfloat16}[name]
    return _matmul(meter, dtype)


def _copy(meter: Meter) -> Ceiling:
    """Copy between buffers far larger than any cache: bytes read and written."""
    source = torch.randn(2**28 if meter.device.type == "cuda" else 2**25, device=meter.device)
    target = torch.empty_like(source)
    note = f"copy of {source.nbytes >> 20} MiB, read and written"
    return _rate(meter, lambda: target.copy_(source), 2 * source.nbytes, "B/s", note)


def _exp(meter: Meter) -> Ceiling:
    """Compute exponentials of cached numbers: this measures arithmetic, not memory."""
    on_gpu, why = meter.device.type == "cuda", ""
    if on_gpu and _INSTALLED:
        x = torch.rand(2**22, device=meter.device)
        note = "exp2 in a Triton kernel, in registers"
        try:
            return _rate(meter, lambda: exponentials(x), x.numel() * ROUNDS, "exp/s", note)
        except Exception as error:  # floors need a rate, even a lower one
            why = f", as the Triton kernel failed: {type(error).__name__}"
    x = torch.randn(2**22 if on_gpu else 2**14, device=meter.device)
    out = torch.empty_like(x)
    note = f"torch.exp of cached numbers{why}"
    return _rate(meter, lambda: torch.exp(x, out=out), x.numel(), "exp/s", note)


def _matmul(meter: Meter, dtype: torch.dtype) -> Ceiling:
    n = 8192 if meter.device.type == "cuda" else 1024
    torch.set_float32_matmul_precision("highest")  # float32 itself, not a shorter format
    a, b = (torch.randn(n, n, device=meter.device, dtype=dtype) for _ in range(2))
    return _rate(meter, lambda: a @ b, 2 * n**3, "flop/s", f"{n}×{n} by {n}×{n}")


def _rate(meter: Meter, call: Callable[[], Any], count: int, unit: str, note: str) -> Ceiling:
    measured = meter.time(call)
    return count / (measured.ms * 1e-3), unit, measured, note


def exponentials(x: torch.Tensor) -> int:
    """Replace each number x by 2^−x, `ROUNDS` times; return how many exponentials that took.

    The numbers converge to the solution of 2^−x = x, and no round can be optimised away.

    Args:
        x: A multiple of `BLOCK` float32 numbers, on a GPU.
    """
    if x.numel() % BLOCK:
        raise ValueError(f"x must have a multiple of {BLOCK} elements; got {x.numel()}")
    kernel: Any = _exponentials
    kernel[(x.numel() // BLOCK,)](x, ROUNDS=ROUNDS, BLOCK=BLOCK, num_warps=4)
    return x.numel() * ROUNDS


if _INSTALLED:

    @triton.jit
    @no_type_check  # jaxtyping would wrap it under pytest, and Triton could not read its source
    def _exponentials(x, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        number = tl.load(x + place)
        for _ in range(ROUNDS):
            number = tl.exp2(-number)
        tl.store(x + place, number)
