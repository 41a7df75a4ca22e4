"""Activation, batch normalisation and pool together; images lie with their channels innermost.

Activation and normalisation are not stored: they are made again from what was given wherever they
are needed, which is one multiplication. The gradient that comes back is that of the few pixels that
were the largest, so that its sums need the small image only.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsewire.ops._triton.images import tile_of

_PROGRAMS = 1056  # that share sums over pixels, each with a sum of its own


def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance (not corrected) of each channel's positive part, in float32."""
    b, d, h, w = x.shape
    count, tile = b * h * w, tile_of(d)
    blocks = triton.cdiv(count, tile["PIXELS"])
    programs = min(_PROGRAMS, blocks)
    sums = torch.empty((programs, 2, d), dtype=torch.float32, device=x.device)
    _sum_squares[(programs,)](x, sums, count, d, blocks, **tile)
    mean, square = sums.sum(0, dtype=torch.float64) / count
    return mean.float(), (square - mean * mean).clamp(min=0).float()


def norm_pool(x: Tensor, factor: Tensor, added: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the largest relu(x) · factor + added of every square; relu(x) there; and which it was.

    Args:
        x: (b, d, h, w) with channels innermost.
        factor: (d,) float32.
        added: (d,) float32.
        size: Side of the squares.
    """
    b, d, h, w = x.shape
    rows, cols = h // size, w // size
    like = {"device": x.device, "memory_format": torch.channels_last}
    y, kept = (torch.empty((b, d, rows, cols), dtype=x.dtype, **like) for _ in range(2))
    which = torch.empty((b, d, rows, cols), dtype=torch.uint8, **like)
    count, tile = b * rows * cols, tile_of(d)
    tile["PIXELS"] = max(1, tile["PIXELS"] // 2)  # with what is kept of each, registers are full
    _largest[(triton.cdiv(count, tile["PIXELS"]),)](
        x, factor, added, y, kept, which, count, d, h, w, rows, cols, SIZE=size, **tile
    )
    return y, kept, which


def norm_pool_sums(grad: Tensor, kept: Tensor, mean: Tensor, slope: Tensor) -> Tensor:
    """Return the sums of grad, and of grad times the normalised value it is of: (2, d) float32."""
    b, d, rows, cols = grad.shape
    count, tile = b * rows * cols, tile_of(d)
    blocks = triton.cdiv(count, tile["PIXELS"])
    programs = min(_PROGRAMS, blocks)
    sums = torch.empty((programs, 2, d), dtype=torch.float32, device=grad.device)
    _sum_products[(programs,)](grad, kept, mean, slope, sums, count, d, blocks, **tile)
    return sums.sum(0)


def norm_pool_backward(grad: Tensor, which: Tensor, x: Tensor, table: Tensor, size: int) -> Tensor:
    """Return the gradient of x.

    Args:
        grad: Of the small image, channels innermost.
        which: The numbers of the largest pixels in their squares.
        x: As it came.
        table: (5, d) float32: mean; 1 / deviation; factor of what comes back; and the means, over
            all pixels, of what comes back and of that times the normalised values.
        size: Side of the squares.
    """
    (b, d, h, w), (rows, cols) = x.shape, grad.shape[2:]
    dx = torch.empty_like(x, memory_format=torch.channels_last)
    count, tile = b * h * w, tile_of(d)
    _largest_backward[(triton.cdiv(count, tile["PIXELS"]),)](
        grad, which, x, table, dx, count, d, h, w, rows, cols, SIZE=size, **tile
    )
    return dx


@triton.jit
def _positive(x):
    x = x.to(tl.float32)
    return tl.where(x < 0, 0.0, x)  # a NaN stays


@triton.jit
def _store_pair(sums, first, second, channel, d):
    """Write a program's two sums over its pixels."""
    at = tl.program_id(0) * 2 * d + channel
    tl.store(sums + at, tl.sum(first, axis=0), mask=channel < d)
    tl.store(sums + at + d, tl.sum(second, axis=0), mask=channel < d)


@triton.jit
def _sum_squares(x, sums, count, d, blocks, WIDE: tl.constexpr, PIXELS: tl.constexpr):
    channel = tl.arange(0, WIDE)
    # Summed over pixels at the end: threads then meet once.
    total = tl.zeros((PIXELS, WIDE), dtype=tl.float32)
    squares = tl.zeros((PIXELS, WIDE), dtype=tl.float32)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        place = block * PIXELS + tl.arange(0, PIXELS)
        both = (place < count)[:, None] & (channel < d)[None, :]
        found = _positive(tl.load(x + place[:, None] * d + channel[None, :], mask=both, other=0.0))
        total += found
        squares += found * found
    _store_pair(sums, total, squares, channel, d)


@triton.jit
def _largest(
    x, factor, added, y, kept, which, count, d, h, w, rows, cols,
    SIZE: tl.constexpr, WIDE: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.arange(0, WIDE)
    both = (place < count)[:, None] & (channel < d)[None, :]
    times = tl.load(factor + channel, mask=channel < d, other=0.0)[None, :]
    plus = tl.load(added + channel, mask=channel < d, other=0.0)[None, :]
    picture, pixel = place // (rows * cols), place % (rows * cols)
    first = (picture * h + pixel // cols * SIZE) * w + pixel % cols * SIZE
    spot = first[:, None] * d + channel[None, :]
    value = _positive(tl.load(x + spot, mask=both, other=0.0))
    largest = value * times + plus
    number = tl.zeros((PIXELS, WIDE), dtype=tl.int32)
    for k in tl.static_range(1, SIZE * SIZE):
        near = spot + ((k // SIZE) * w + k % SIZE) * d
        found = _positive(tl.load(x + near, mask=both, other=0.0))
        other = found * times + plus
        better = (other > largest) | (other != other)  # a NaN wins, and stays
        largest = tl.where(better, other, largest)
        value = tl.where(better, found, value)
        number = tl.where(better, k, number)
    at = place[:, None] * d + channel[None, :]
    tl.store(y + at, largest.to(y.dtype.element_ty), mask=both)
    tl.store(kept + at, value.to(kept.dtype.element_ty), mask=both)
    tl.store(which + at, number.to(tl.uint8), mask=both)


@triton.jit
def _sum_products(
    grad, kept, mean, slope, sums, count, d, blocks, WIDE: tl.constexpr, PIXELS: tl.constexpr
):  # fmt: skip
    channel = tl.arange(0, WIDE)
    middle = tl.load(mean + channel, mask=channel < d, other=0.0)[None, :]
    steep = tl.load(slope + channel, mask=channel < d, other=0.0)[None, :]
    total = tl.zeros((PIXELS, WIDE), dtype=tl.float32)
    products = tl.zeros((PIXELS, WIDE), dtype=tl.float32)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        place = block * PIXELS + tl.arange(0, PIXELS)
        both = (place < count)[:, None] & (channel < d)[None, :]
        at = place[:, None] * d + channel[None, :]
        given = tl.load(grad + at, mask=both, other=0.0).to(tl.float32)
        value = tl.load(kept + at, mask=both, other=0.0).to(tl.float32)
        total += given
        products += given * (value - middle) * steep
    _store_pair(sums, total, products, channel, d)


@triton.jit
def _largest_backward(
    grad, which, x, table, dx, count, d, h, w, rows, cols,
    SIZE: tl.constexpr, WIDE: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.arange(0, WIDE)
    known = channel < d
    mean = tl.load(table + channel, mask=known, other=0.0)[None, :]
    slope = tl.load(table + d + channel, mask=known, other=0.0)[None, :]
    times = tl.load(table + 2 * d + channel, mask=known, other=0.0)[None, :]
    given_mean = tl.load(table + 3 * d + channel, mask=known, other=0.0)[None, :]
    product_mean = tl.load(table + 4 * d + channel, mask=known, other=0.0)[None, :]
    picture, pixel = place // (h * w), place % (h * w)
    row, col = pixel // w, pixel % w
    in_square = (place < count) & (row < rows * SIZE) & (col < cols * SIZE)
    small = (picture * rows + row // SIZE) * cols + col // SIZE
    number = row % SIZE * SIZE + col % SIZE
    both = in_square[:, None] & known[None, :]
    at = small[:, None] * d + channel[None, :]
    chosen = tl.load(which + at, mask=both, other=0).to(tl.int32) == number[:, None]
    given = tl.load(grad + at, mask=both, other=0.0).to(tl.float32)
    given = tl.where(chosen & both, given, 0.0)
    both = (place < count)[:, None] & known[None, :]
    at = place[:, None] * d + channel[None, :]
    found = _positive(tl.load(x + at, mask=both, other=0.0))
    normal = (found - mean) * slope
    back = times * (given - given_mean - normal * product_mean)
    tl.store(dx + at, tl.where(found <= 0, 0.0, back).to(dx.dtype.element_ty), mask=both)
