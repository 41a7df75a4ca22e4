"""The kernel of `sample`: every integer tuple of a pass, in one launch."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsewire.kernels import operator
from sparsewire.ops._triton_philox import below, lowest_corner, random_bits, region_start

_BLOCK = 256


def _memory(means: Tensor, *options: Any) -> Tensor:
    q, r = means.shape
    return means.new_empty((q, 2**r + sum(options[-2:]), r), dtype=torch.int64)


def sample_tuples(means: Tensor, seed: Tensor, *options: Any) -> Tensor:
    """Return the tuples (q, s, r) of continuous tuples (q, r)."""
    indices = _memory(means, *options)
    sizes, spans, local_samples, _ = options
    q, samples, r = indices.shape
    if count := q * samples:
        _sample[(triton.cdiv(count, _BLOCK),)](
            means.contiguous(),
            seed,
            indices,
            tuple(sizes),
            tuple(spans),
            count,
            samples,
            R=r,
            LOCAL=local_samples,
            BLOCK=_BLOCK,
        )
    return indices


@triton.jit
def _sample(
    means,
    seed,
    indices,
    sizes,
    spans,
    count,
    samples,
    R: tl.constexpr,
    LOCAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    # For each continuous tuple: the 2^r nearest, LOCAL from its region, then those from everywhere.
    sample = place % samples
    nearest, near = sample < (1 << R), sample < (1 << R) + LOCAL
    key = tl.load(seed)
    other = tl.zeros([BLOCK], tl.uint64)
    for axis in tl.static_range(R):
        size, span = sizes[axis], spans[axis]
        mean = tl.load(means + place // samples * R + axis, mask=inside, other=0)
        if axis % 2 == 0:
            bits, other = random_bits(key, place, axis // 2)
        else:
            bits = other
        corner = tl.minimum((sample >> (R - 1 - axis)) & 1, size - 1) + lowest_corner(mean, size)
        local = region_start(mean, size, span) + below(bits, span)
        index = tl.where(nearest, corner, tl.where(near, local, below(bits, size)))
        tl.store(indices + place * R + axis, index, mask=inside)


sample = operator(
    "sample(Tensor means, Tensor seed, SymInt[] sizes, SymInt[] spans, SymInt local_samples, "
    "SymInt global_samples) -> Tensor",
    sample_tuples,
    _memory,
)
