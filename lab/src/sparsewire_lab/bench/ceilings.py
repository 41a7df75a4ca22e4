"""The most that the machine can do, measured: copies, exponentials, matrix products."""

import importlib
import importlib.util
from typing import Any, NamedTuple, no_type_check

import torch

from sparsewire_lab.bench.measure import Measured, Meter

ROUNDS = 512
BLOCK = 1024

_INSTALLED = importlib.util.find_spec("triton") is not None
triton: Any = importlib.import_module("triton") if _INSTALLED else None
tl: Any = importlib.import_module("triton.language") if _INSTALLED else None


class Ceiling(NamedTuple):
    """A rate, its unit, the time it follows from, and how it was measured."""

    rate: float
    unit: str
    measured: Measured
    note: str


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
    numbers = 2**28 if meter.device.type == "cuda" else 2**25
    source = torch.randn(numbers, device=meter.device)
    target = torch.empty_like(source)
    measured = meter.time(lambda: target.copy_(source))
    rate = 2 * source.nbytes / (measured.ms * 1e-3)
    return Ceiling(rate, "B/s", measured, f"copy of {source.nbytes >> 20} MiB, read and written")


def _exp(meter: Meter) -> Ceiling:
    """Compute exponentials of cached numbers: this measures arithmetic, not memory."""
    on_gpu, why = meter.device.type == "cuda", ""
    if on_gpu and _INSTALLED:
        x = torch.rand(2**22, device=meter.device)
        try:
            measured = meter.time(lambda: exponentials(x))
            rate = x.numel() * ROUNDS / (measured.ms * 1e-3)
            return Ceiling(rate, "exp/s", measured, "exp2 in a Triton kernel, in registers")
        except Exception as error:  # floors need a rate, even a lower one
            why = f", as the Triton kernel failed: {type(error).__name__}"
    x = torch.randn(2**22 if on_gpu else 2**14, device=meter.device)
    out = torch.empty_like(x)
    measured = meter.time(lambda: torch.exp(x, out=out))
    note = f"torch.exp of cached numbers{why}"
    return Ceiling(x.numel() / (measured.ms * 1e-3), "exp/s", measured, note)


def _matmul(meter: Meter, dtype: torch.dtype) -> Ceiling:
    n = 8192 if meter.device.type == "cuda" else 1024
    torch.set_float32_matmul_precision("highest")  # float32 itself, not a shorter format
    a, b = (torch.randn(n, n, device=meter.device, dtype=dtype) for _ in range(2))
    measured = meter.time(lambda: a @ b)
    return Ceiling(2 * n**3 / (measured.ms * 1e-3), "flop/s", measured, f"{n}×{n} by {n}×{n}")


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
