"""Kernels of `sparsewire.ops.images`; images lie with their channels innermost."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsewire.ops._engines import interpreted

_PIXELS = 128  # of a block of the convolution
_PROGRAMS = 1024  # that share the gradient of its weights, each with a sum of its own
_ELEMENTS = 4096  # of a block of the pool


def thin_conv(x: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> Tensor:
    """Return relu(conv2d(x, weight, bias, padding=1)) in `dtype`, channels innermost."""
    b, c, h, w = x.shape
    wide = weight.shape[0]
    like = {"device": x.device, "memory_format": torch.channels_last}
    y = torch.empty((b, wide, h, w), dtype=dtype, **like)
    taps = _taps(c)
    table = torch.zeros((taps, wide), dtype=dtype, device=x.device)
    table[: 9 * c] = weight.reshape(wide, -1).t()
    table[9 * c] = bias
    count = b * h * w
    _convolve[(triton.cdiv(count, _PIXELS),)](
        x, table, y, count, h, w,
        CHANNELS=c, TAPS=taps, WIDE=wide, PIXELS=_PIXELS, EXACT=exact(dtype),
    )  # fmt: skip
    return y


def thin_conv_backward(grad: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of weight and bias, in float32."""
    b, c, h, w = x.shape
    wide, taps, count = y.shape[1], _taps(x.shape[1]), b * h * w
    grad = grad.contiguous(memory_format=torch.channels_last)
    blocks = triton.cdiv(count, _PIXELS)
    programs = min(_PROGRAMS, blocks)
    sums = torch.empty((programs, taps, wide), dtype=torch.float32, device=x.device)
    _convolve_backward[(programs,)](
        x, y, grad, sums, count, h, w, blocks,
        CHANNELS=c, TAPS=taps, WIDE=wide, PIXELS=_PIXELS, EXACT=exact(y.dtype), num_stages=1,
    )  # fmt: skip
    total = sums.sum(0)
    return total[: 9 * c].t().reshape(wide, c, 3, 3).contiguous(), total[9 * c].clone()


def pool_relu(x: Tensor, bias: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return relu(max_pool2d(x, size) + bias), and which of each square was the largest."""
    b, d, h, w = x.shape
    rows, cols = h // size, w // size
    like = {"device": x.device, "memory_format": torch.channels_last}
    y = torch.empty((b, d, rows, cols), dtype=x.dtype, **like)
    which = torch.empty((b, d, rows, cols) if size > 1 else (0, 1, 1, 1), dtype=torch.uint8, **like)
    count, tile = b * rows * cols, tile_of(d)
    if count:
        _pool[(triton.cdiv(count, tile["PIXELS"]),)](
            x, bias, y, which, count, d, h, w, rows, cols, SIZE=size, **tile
        )
    return y, which


def pool_relu_backward(
    grad: Tensor, y: Tensor, which: Tensor, h: int, w: int, size: int
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the image, of h × w pixels, and of the bias, in float32."""
    b, d, rows, cols = y.shape
    grad = grad.contiguous(memory_format=torch.channels_last)
    like = {"dtype": y.dtype, "device": y.device, "memory_format": torch.channels_last}
    dx = torch.empty((b, d, h, w), **like)
    if h % size or w % size:
        dx.zero_()  # of pixels beyond the last square
    count, tile = b * rows * cols, tile_of(d)
    programs = triton.cdiv(count, tile["PIXELS"])
    sums = torch.empty((programs, d), dtype=torch.float32, device=y.device)
    if count:
        _pool_backward[(programs,)](
            grad, y, which, dx, sums, count, d, h, w, rows, cols, SIZE=size, **tile
        )
    return dx, sums.sum(0)


def _taps(channels: int) -> int:
    """Taps of a window and one for the bias, as many as a matrix product takes."""
    return max(16, triton.next_power_of_2(9 * channels + 1))


def exact(dtype: torch.dtype) -> bool:
    """Whether products are of float32; the interpreter has none of bfloat16."""
    return dtype == torch.float32 or interpreted()


def tile_of(channels: int) -> dict[str, int]:
    wide = triton.next_power_of_2(channels)
    return {"WIDE": wide, "PIXELS": max(1, _ELEMENTS // wide)}


@triton.jit
def _windows(
    x, place, inside, h, w, CHANNELS: tl.constexpr, TAPS: tl.constexpr
):  # fmt: skip
    """A row of taps for each pixel: its window, channel by channel, a one, and zeros."""
    tap = tl.arange(0, TAPS)
    channel, spot = tap // 9, tap % 9
    picture, pixel = place // (h * w), place % (h * w)
    row = (pixel // w)[:, None] + (spot // 3)[None, :] - 1
    col = (pixel % w)[:, None] + (spot % 3)[None, :] - 1
    within = (row >= 0) & (row < h) & (col >= 0) & (col < w) & inside[:, None]
    within = within & (tap < 9 * CHANNELS)[None, :]
    start = (picture[:, None] * CHANNELS + channel[None, :]) * h
    found = tl.load(x + (start + row) * w + col, mask=within, other=0.0).to(tl.float32)
    return tl.where((tap == 9 * CHANNELS)[None, :] & inside[:, None], 1.0, found)


@triton.jit
def _convolve(
    x, table, y, count, h, w,
    CHANNELS: tl.constexpr, TAPS: tl.constexpr, WIDE: tl.constexpr, PIXELS: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    inside = place < count
    tap, wide = tl.arange(0, TAPS), tl.arange(0, WIDE)
    weights = tl.load(table + tap[:, None] * WIDE + wide[None, :])
    weights = weights.to(tl.float32) if EXACT else weights
    windows = _windows(x, place, inside, h, w, CHANNELS, TAPS).to(weights.dtype)
    sums = tl.dot(windows, weights, input_precision="ieee")
    kept = tl.where(sums < 0, 0.0, sums).to(y.dtype.element_ty)  # a NaN stays
    tl.store(y + place[:, None] * WIDE + wide[None, :], kept, mask=inside[:, None])


@triton.jit
def _convolve_backward(
    x, y, grad, sums, count, h, w, blocks,
    CHANNELS: tl.constexpr, TAPS: tl.constexpr, WIDE: tl.constexpr, PIXELS: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    tap, wide = tl.arange(0, TAPS), tl.arange(0, WIDE)
    total = tl.zeros((TAPS, WIDE), dtype=tl.float32)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        place = block * PIXELS + tl.arange(0, PIXELS)
        inside = place < count
        spot = place[:, None] * WIDE + wide[None, :]
        kept = tl.load(y + spot, mask=inside[:, None], other=0.0)
        given = tl.load(grad + spot, mask=inside[:, None], other=0.0)
        given = tl.where(kept <= 0, 0.0, given)
        given = given.to(tl.float32) if EXACT else given
        windows = _windows(x, place, inside, h, w, CHANNELS, TAPS).to(given.dtype)
        total += tl.dot(tl.trans(windows), given, input_precision="ieee")
    at = (tl.program_id(0) * TAPS + tap)[:, None] * WIDE + wide[None, :]
    tl.store(sums + at, total)


@triton.jit
def _pool(
    x, bias, y, which, count, d, h, w, rows, cols,
    SIZE: tl.constexpr, WIDE: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.arange(0, WIDE)
    both = (place < count)[:, None] & (channel < d)[None, :]
    picture, pixel = place // (rows * cols), place % (rows * cols)
    first = (picture * h + pixel // cols * SIZE) * w + pixel % cols * SIZE
    spot = first[:, None] * d + channel[None, :]
    largest = tl.load(x + spot, mask=both, other=0.0).to(tl.float32)
    number = tl.zeros((PIXELS, WIDE), dtype=tl.int32)
    for k in tl.static_range(1, SIZE * SIZE):
        near = spot + ((k // SIZE) * w + k % SIZE) * d
        other = tl.load(x + near, mask=both, other=0.0).to(tl.float32)
        # A NaN wins, and stays.
        better = (other > largest) | (other != other)
        largest = tl.where(better, other, largest)
        number = tl.where(better, k, number)
    added = tl.load(bias + channel, mask=channel < d, other=0.0).to(tl.float32)
    sums = largest + added[None, :]
    kept = tl.where(sums < 0, 0.0, sums)
    at = place[:, None] * d + channel[None, :]
    tl.store(y + at, kept.to(y.dtype.element_ty), mask=both)
    if SIZE > 1:
        tl.store(which + at, number.to(tl.uint8), mask=both)


@triton.jit
def _pool_backward(
    grad, y, which, dx, sums, count, d, h, w, rows, cols,
    SIZE: tl.constexpr, WIDE: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.arange(0, WIDE)
    both = (place < count)[:, None] & (channel < d)[None, :]
    at = place[:, None] * d + channel[None, :]
    given = tl.load(grad + at, mask=both, other=0.0).to(tl.float32)
    kept = tl.load(y + at, mask=both, other=0.0)
    given = tl.where(kept <= 0, 0.0, given)
    # To the bias: a sum for each program, so that their order does not matter.
    total = tl.sum(given, axis=0)
    tl.store(sums + tl.program_id(0) * d + channel, total, mask=channel < d)
    given = given.to(dx.dtype.element_ty)
    if SIZE == 1:
        tl.store(dx + at, given, mask=both)
    else:
        number = tl.load(which + at, mask=both, other=0).to(tl.int32)
        picture, pixel = place // (rows * cols), place % (rows * cols)
        first = (picture * h + pixel // cols * SIZE) * w + pixel % cols * SIZE
        spot = first[:, None] * d + channel[None, :]
        zero = tl.zeros_like(given)
        for k in tl.static_range(SIZE * SIZE):
            near = spot + ((k // SIZE) * w + k % SIZE) * d
            tl.store(dx + near, tl.where(number == k, given, zero), mask=both)
