"""A Triton kernel that computes only exponentials, to measure how many a GPU computes a second."""

import importlib
import importlib.util
from typing import Any, no_type_check

import torch

ROUNDS = 512
BLOCK = 1024

_INSTALLED = importlib.util.find_spec("triton") is not None
triton: Any = importlib.import_module("triton") if _INSTALLED else None
tl: Any = importlib.import_module("triton.language") if _INSTALLED else None


def available() -> bool:
    """Whether Triton is installed."""
    return _INSTALLED


def run(x: torch.Tensor) -> int:
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
