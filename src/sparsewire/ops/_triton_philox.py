"""Random index tuples inside kernels: a pure function of the seed and the number of the draw.

Draw t of a pass takes its bits from Philox4x32-10 at counter (t, ⌊axis / 2⌋), 64 for each axis, so
that any kernel can draw any tuple again.
"""

import triton
import triton.language as tl


@triton.jit
def random_bits(seed, draw, PAIR: tl.constexpr):
    """Return two times 64 random bits for each draw, for the axes 2 · PAIR and 2 · PAIR + 1."""
    low, high = draw.to(tl.uint32), (draw >> 32).to(tl.uint32)
    zero = tl.zeros_like(low)
    a, b, c, d = tl.philox(seed, low, high, zero + PAIR, zero, 10)
    first = (a.to(tl.uint64) << 32) | b.to(tl.uint64)
    return first, (c.to(tl.uint64) << 32) | d.to(tl.uint64)


@triton.jit
def below(bits, bound):
    """Return an integer below a bound, from 64 bits: uniform to bound / 2⁶⁴."""
    return tl.umulhi(bits, tl.zeros_like(bits) + bound).to(tl.int64)


@triton.jit
def lowest_corner(mean, size):
    """Return the lower of the two indices nearest to each mean."""
    return _index(tl.floor(_numbers(mean)), tl.maximum(size - 2, 0))


@triton.jit
def region_start(mean, size, span):
    """Return the first index of the region around each rounded mean, pushed inside the bounds."""
    mean = _numbers(mean)
    # Halves go to the even neighbour, as torch rounds.
    whole = tl.floor(mean)
    rest = mean - whole
    odd = whole - 2 * tl.floor(whole * 0.5)
    rounded = tl.where((rest > 0.5) | ((rest == 0.5) & (odd == 1)), whole + 1, whole)
    return _index(rounded - tl.cast(span // 2, mean.dtype), size - span)


@triton.jit
def _numbers(mean):
    """Return zero for what is not a number: no bad mean becomes a bad address."""
    return tl.where(mean == mean, mean, 0)


@triton.jit
def _index(floats, last):
    """Return floats as valid indices 0 … last."""
    return tl.minimum(tl.minimum(tl.maximum(floats, 0), 9e18).to(tl.int64), last)
