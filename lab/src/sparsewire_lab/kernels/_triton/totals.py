"""Sums of the partial sums of programs, in one launch.

Torch's own reduction is slow for many programs with few numbers each.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 256  # programs that are added at once
COLS = 8  # numbers of a program: a sector of memory
_MANY = 1024  # numbers from which on there is enough to do with whole lines of memory
WARPS = 8


def total(sums: Tensor) -> Tensor:
    """Return sums.sum(0) of a contiguous float32 tensor, always added in the same order."""
    result = torch.empty(sums.shape[1:], dtype=sums.dtype, device=sums.device)
    count = result.numel()
    rows, cols = (ROWS, COLS) if count < _MANY else (ROWS // 4, COLS * 4)
    _add_up[(triton.cdiv(count, cols),)](
        sums, result, len(sums), count, ROWS=rows, COLS=cols, num_warps=WARPS
    )
    return result


@triton.jit
def added_up(sums, rows, count, start, col, known, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Of rows of `count` numbers, sum those `start` + `col`, in float64, where they are known."""
    found = tl.zeros((ROWS, COLS), dtype=tl.float64)
    for first in range(0, rows, ROWS):
        row = first + tl.arange(0, ROWS)
        there = (row < rows)[:, None] & known[None, :]
        at = row[:, None] * count + (start + col)[None, :]
        found += tl.load(sums + at, mask=there, other=0.0)
    return tl.sum(found, axis=0)


@triton.jit
def _add_up(sums, out, rows, count, ROWS: tl.constexpr, COLS: tl.constexpr):
    col = tl.program_id(0) * COLS + tl.arange(0, COLS)
    found = added_up(sums, rows, count, 0, col, col < count, ROWS, COLS)
    tl.store(out + col, found.to(tl.float32), mask=col < count)
