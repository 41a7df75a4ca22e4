"""The kernel of `mark_repeats`: small contexts are compared pair by pair, in one launch."""

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsewire.kernels import operator


def _run(indices: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return which tuples of contexts (c, m, r) occurred earlier in their context."""
    c, m, r = indices.shape
    repeated = indices.new_empty((c, m), dtype=torch.bool)
    if c and m:
        wide = min(256, max(triton.next_power_of_2(m), 16))
        block = min(32, wide)
        tiles = triton.cdiv(m, block)
        _mark[(c * tiles,)](
            indices.contiguous(),
            repeated.view(torch.uint8),
            tuple(sizes),
            m,
            tiles,
            R=r,
            BLOCK=block,
            WIDE=wide,
            SHORT=math.prod(sizes) < 2**31,
            num_warps=max(block * wide // 1024, 1),
        )
    return repeated


@triton.jit
def _numbers(indices, sizes, place, m, R: tl.constexpr, SHORT: tl.constexpr):
    """Return the flat index of each tuple."""
    number = tl.zeros_like(place).to(tl.int64)
    for axis in tl.static_range(R):
        column = tl.load(indices + place.to(tl.int64) * R + axis, mask=place < m, other=0)
        number = number * sizes[axis] + column
    if SHORT:
        number = number.to(tl.int32)
    return number


@triton.jit
def _mark(
    indices,
    repeated,
    sizes,
    m,
    tiles,
    R: tl.constexpr,
    BLOCK: tl.constexpr,
    WIDE: tl.constexpr,
    SHORT: tl.constexpr,
):
    tile, context = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    indices += context * m * R
    place, lane = tile * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDE)
    mine = _numbers(indices, sizes, place, m, R, SHORT)[:, None]
    equal = tl.zeros([BLOCK, WIDE], tl.int32)
    # Whole tiles of earlier tuples, then the tile that holds this one.
    whole = tile * BLOCK // WIDE
    for part in range(whole):
        theirs = _numbers(indices, sizes, part * WIDE + lane, m, R, SHORT)[None, :]
        equal |= (mine == theirs).to(tl.int32)
    theirs = _numbers(indices, sizes, whole * WIDE + lane, m, R, SHORT)[None, :]
    earlier = (whole * WIDE + lane)[None, :] < place[:, None]
    equal |= ((mine == theirs) & earlier).to(tl.int32)
    tl.store(repeated + context * m + place, tl.max(equal, 1).to(tl.uint8), mask=place < m)


mark_repeats = operator(
    "mark_repeats(Tensor indices, SymInt[] sizes) -> Tensor",
    _run,
    lambda indices, sizes: indices.new_empty(indices.shape[:-1], dtype=torch.bool),
)
