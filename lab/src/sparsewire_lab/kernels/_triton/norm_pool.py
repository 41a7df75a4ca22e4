"""Kernels of ReLU, batch normalisation and pool; images have their channels innermost.

Activation and normalisation are not stored but recomputed from the input, at the cost of one
multiplication. Only the largest pixels have a gradient, so its sums read the pooled image only.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsewire_lab.kernels._triton import totals
from sparsewire_lab.kernels._triton.images import tile_of
from sparsewire_lab.kernels._triton.totals import added_up

_PROGRAMS = 1056  # that share sums over pixels, each with a sum of its own
_FINISH = {"ROWS": totals.ROWS, "COLS": totals.COLS, "num_warps": totals.WARPS}


def statistics(x: Tensor, scale: Tensor, shift: Tensor, eps: float) -> tuple[Tensor, ...]:
    """Return four times (d,) in float32, of each channel's positive part.

    They are its mean; its variance, not corrected; and the factor and the summand that normalise
    it: scale / √(variance + eps), and what makes the mean into shift.
    """
    b, d, h, w = x.shape
    count, tile = b * h * w, tile_of(d)
    blocks = triton.cdiv(count, tile["PIXELS"])
    programs = min(_PROGRAMS, blocks)
    sums = torch.empty((programs, 2, d), dtype=torch.float32, device=x.device)
    _sum_squares[(programs,)](x, sums, count, d, blocks, **tile)
    found = tuple(torch.empty(d, dtype=torch.float32, device=x.device) for _ in range(4))
    _state[(triton.cdiv(d, totals.COLS),)](
        sums, scale, shift, *found, programs, d, count, eps, **_FINISH
    )
    return found


def norm_pool(x: Tensor, factor: Tensor, added: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the largest relu(x) · factor + added of every square, relu(x) there, and its index.

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


def norm_pool_backward(
    grad: Tensor, kept: Tensor, which: Tensor, x: Tensor, scale: Tensor, mean: Tensor,
    variance: Tensor, eps: float, size: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of x, and of scale and shift in float32.

    Args:
        grad: Of the small image, channels innermost.
        kept: relu(x) of the largest pixels of squares.
        which: Their indices in the squares.
        x: Input of the forward pass.
        scale: Input of the forward pass.
        mean: Of the statistics.
        variance: Of the statistics.
        eps: As in the forward pass.
        size: Side of the squares.
    """
    (b, d, h, w), (rows, cols) = x.shape, grad.shape[2:]
    like = {"dtype": torch.float32, "device": x.device}
    count, tile = b * rows * cols, tile_of(d)
    blocks = triton.cdiv(count, tile["PIXELS"])
    programs = min(_PROGRAMS, blocks)
    sums = torch.empty((programs, 2, d), **like)
    _sum_products[(programs,)](grad, kept, mean, variance, eps, sums, count, d, blocks, **tile)
    table, to_scale, to_shift = (torch.empty(n, **like) for n in ((5, d), d, d))
    _return[(triton.cdiv(d, totals.COLS),)](
        sums, scale, mean, variance, table, to_scale, to_shift, programs, d, b * h * w, eps,
        **_FINISH,
    )  # fmt: skip
    dx = torch.empty_like(x, memory_format=torch.channels_last)
    count = b * h * w
    _largest_backward[(triton.cdiv(count, tile["PIXELS"]),)](
        grad, which, x, table, dx, count, d, h, w, rows, cols, SIZE=size, **tile
    )
    return dx, to_scale, to_shift


@triton.jit
def _positive(x):
    x = x.to(tl.float32)
    return tl.where(x < 0, 0.0, x)  # a NaN stays


@triton.jit
def _slope(variance, eps):
    """1 / deviation; rounded as it should be, since all of an image is multiplied by it."""
    return 1 / tl.sqrt_rn(variance + eps)


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
def _state(
    sums, scale, shift, means, variances, factors, summands, programs, d, count, eps,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """From sums and sums of squares: mean, variance, factor, summand."""
    channel = tl.program_id(0) * COLS + tl.arange(0, COLS)
    known = channel < d
    mean = added_up(sums, programs, 2 * d, 0, channel, known, ROWS, COLS) / count
    square = added_up(sums, programs, 2 * d, d, channel, known, ROWS, COLS) / count
    variance = square - mean * mean
    variance = tl.where(variance < 0, 0.0, variance)  # a NaN stays
    mean, variance = mean.to(tl.float32), variance.to(tl.float32)
    factor = tl.load(scale + channel, mask=known, other=0.0).to(tl.float32)
    factor *= _slope(variance, eps)
    added = tl.load(shift + channel, mask=known, other=0.0).to(tl.float32) - mean * factor
    tl.store(means + channel, mean, mask=known)
    tl.store(variances + channel, variance, mask=known)
    tl.store(factors + channel, factor, mask=known)
    tl.store(summands + channel, added, mask=known)


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
    grad, kept, mean, variance, eps, sums, count, d, blocks,
    WIDE: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    channel = tl.arange(0, WIDE)
    middle = tl.load(mean + channel, mask=channel < d, other=0.0)[None, :]
    steep = _slope(tl.load(variance + channel, mask=channel < d, other=1.0), eps)[None, :]
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
def _return(
    sums, scale, mean, variance, table, to_scale, to_shift, programs, d, count, eps,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """What the gradient needs of each channel.

    Mean; 1 / deviation; factor of what comes back; and the means, over all pixels, of what comes
    back and of that times the normalised values, whose sums are gradients.
    """
    channel = tl.program_id(0) * COLS + tl.arange(0, COLS)
    known = channel < d
    given = added_up(sums, programs, 2 * d, 0, channel, known, ROWS, COLS).to(tl.float32)
    product = added_up(sums, programs, 2 * d, d, channel, known, ROWS, COLS).to(tl.float32)
    tl.store(to_shift + channel, given, mask=known)
    tl.store(to_scale + channel, product, mask=known)
    slope = _slope(tl.load(variance + channel, mask=known, other=1.0), eps)
    times = tl.load(scale + channel, mask=known, other=0.0).to(tl.float32) * slope
    tl.store(table + channel, tl.load(mean + channel, mask=known, other=0.0), mask=known)
    tl.store(table + d + channel, slope, mask=known)
    tl.store(table + 2 * d + channel, times, mask=known)
    tl.store(table + 3 * d + channel, given / count, mask=known)
    tl.store(table + 4 * d + channel, product / count, mask=known)


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
