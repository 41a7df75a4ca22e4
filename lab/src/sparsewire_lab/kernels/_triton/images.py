"""Kernels of thin convolutions and pools; images have their channels innermost."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsewire.engines import interpreted
from sparsewire_lab.kernels._triton.totals import total

_PIXELS = 128  # of a block of the convolution
_PROGRAMS = 1024  # that share the gradient of its weights, each with a sum of its own
_ELEMENTS = 4096  # of a block of the pool
_POOL_PROGRAMS = 2112  # that share its gradient: enough to keep memory busy


def thin_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, relu: bool, dtype: torch.dtype
) -> Tensor:
    """Return conv2d(x, weight, bias, padding=padding) in `dtype`, channels innermost.

    Args:
        x: (b, c, h, w), contiguous.
        weight: (d, c, k, k), d a power of two from 16 on, windows of at most 31 numbers.
        bias: (d,), or None for none.
        padding: Zeros around the image.
        relu: Whether to apply a ReLU.
        dtype: Of the result; inputs are rounded to it.
    """
    wide, taps, sizes = weight.shape[0], weight[0].numel(), _sizes(x, weight.shape, padding)
    like = {"dtype": dtype, "device": x.device, "memory_format": torch.channels_last}
    y = torch.empty((len(x), wide, sizes["ROWS"], sizes["COLS"]), **like)
    count = y.numel() // wide
    table = torch.zeros((sizes["TAPS"], wide), dtype=dtype, device=x.device)
    table[:taps] = weight.reshape(wide, -1).t()
    if bias is not None:
        table[taps] = bias
    _convolve[(triton.cdiv(count, _PIXELS),)](
        x, table, y, count, **sizes, PIXELS=_PIXELS, RELU=relu, EXACT=exact(dtype)
    )
    return y


def thin_conv_backward(
    grad: Tensor, x: Tensor, y: Tensor | None, shape: Sequence[int], padding: int
) -> tuple[Tensor, Tensor]:
    """Return the gradients of weight and bias, in float32.

    Args:
        grad: Of the output.
        x: Input of the forward pass.
        y: Its output, if a ReLU was applied.
        shape: Of the weight.
        padding: As in the forward pass.
    """
    sizes, count = _sizes(x, shape, padding), grad.numel() // shape[0]
    wide, taps = shape[0], shape[1] * shape[2] ** 2
    grad = grad.contiguous(memory_format=torch.channels_last)
    # The fewer warps, the fewer sums are added up between them, as long as all fits into registers.
    pixels, warps = (2 * _PIXELS, 2) if wide == sizes["TAPS"] == 16 else (_PIXELS, 4)
    blocks = triton.cdiv(count, pixels)
    programs = min(_PROGRAMS, blocks)
    sums = torch.empty((programs, sizes["TAPS"], wide), dtype=torch.float32, device=x.device)
    _convolve_backward[(programs,)](
        x, grad if y is None else y, grad, sums, count, blocks,
        **sizes, PIXELS=pixels, RELU=y is not None, EXACT=exact(grad.dtype),
        num_stages=1, num_warps=warps,
    )  # fmt: skip
    gradients = total(sums)
    return gradients[:taps].t().reshape(shape).contiguous(), gradients[taps].clone()


def pool_relu(x: Tensor, bias: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return relu(max_pool2d(x, size) + bias), and the index of the largest in each square."""
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
    blocks = triton.cdiv(count, tile["PIXELS"])
    programs = min(_POOL_PROGRAMS, blocks)
    if not count:
        return dx, torch.zeros(d, device=y.device)
    sums = torch.empty((programs, d), dtype=torch.float32, device=y.device)
    _pool_backward[(programs,)](
        grad, y, which, dx, sums, count, d, h, w, rows, cols, blocks, SIZE=size, **tile
    )
    return dx, total(sums)


def _sizes(x: Tensor, shape: Sequence[int], padding: int) -> dict[str, int]:
    """What a convolution's kernels are compiled for: places are divided by some for every pixel."""
    (_, c, h, w), (wide, _, side, _) = x.shape, shape
    grown = 2 * padding - side + 1
    return {
        "HEIGHT": h, "WIDTH": w, "ROWS": h + grown, "COLS": w + grown, "CHANNELS": c, "SIDE": side,
        "PADDING": padding, "WIDE": wide,
        # Taps of a window and one for the bias, as many as a matrix product takes.
        "TAPS": max(16, triton.next_power_of_2(c * side * side + 1)),
    }  # fmt: skip


def exact(dtype: torch.dtype) -> bool:
    """Whether products are of float32; the interpreter has none of bfloat16."""
    return dtype == torch.float32 or interpreted()


def tile_of(channels: int) -> dict[str, int]:
    wide = triton.next_power_of_2(channels)
    return {"WIDE": wide, "PIXELS": max(1, _ELEMENTS // wide)}


@triton.jit
def _windows(
    x, place, inside, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    COLS: tl.constexpr, CHANNELS: tl.constexpr, SIDE: tl.constexpr, PADDING: tl.constexpr,
    TAPS: tl.constexpr,
):  # fmt: skip
    """A row of taps for each pixel: its window, channel by channel, a one, and zeros."""
    tap = tl.arange(0, TAPS)
    channel, spot = tap // (SIDE * SIDE), tap % (SIDE * SIDE)
    picture, pixel = place // (ROWS * COLS), place % (ROWS * COLS)
    row = tl.where(inside, pixel // COLS, -SIDE)[:, None] + (spot // SIDE - PADDING)[None, :]
    col = (pixel % COLS)[:, None] + (spot % SIDE - PADDING)[None, :]
    # Without a sign, what is left of or above the picture is far beyond its end.
    within = row.to(tl.uint32, bitcast=True) < HEIGHT
    within = within & (col.to(tl.uint32, bitcast=True) < WIDTH)
    within = within & (tap < SIDE * SIDE * CHANNELS)[None, :]
    start = (picture[:, None] * CHANNELS + channel[None, :]) * HEIGHT
    found = tl.load(x + (start + row) * WIDTH + col, mask=within, other=0.0).to(tl.float32)
    return tl.where((tap == SIDE * SIDE * CHANNELS)[None, :] & inside[:, None], 1.0, found)


@triton.jit
def _convolve(
    x, table, y, count, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
    COLS: tl.constexpr, CHANNELS: tl.constexpr, SIDE: tl.constexpr, PADDING: tl.constexpr,
    WIDE: tl.constexpr, TAPS: tl.constexpr, PIXELS: tl.constexpr, RELU: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    inside = place < count
    tap, wide = tl.arange(0, TAPS), tl.arange(0, WIDE)
    weights = tl.load(table + tap[:, None] * WIDE + wide[None, :])
    weights = weights.to(tl.float32) if EXACT else weights
    windows = _windows(
        x, place, inside, HEIGHT, WIDTH, ROWS, COLS, CHANNELS, SIDE, PADDING, TAPS
    ).to(weights.dtype)
    sums = tl.dot(windows, weights, input_precision="ieee")
    if RELU:
        sums = tl.where(sums < 0, 0.0, sums)  # a NaN stays
    at = place[:, None] * WIDE + wide[None, :]
    tl.store(y + at, sums.to(y.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _convolve_backward(
    x, y, grad, sums, count, blocks, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, CHANNELS: tl.constexpr, SIDE: tl.constexpr,
    PADDING: tl.constexpr, WIDE: tl.constexpr, TAPS: tl.constexpr, PIXELS: tl.constexpr,
    RELU: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    tap, wide = tl.arange(0, TAPS), tl.arange(0, WIDE)
    total = tl.zeros((TAPS, WIDE), dtype=tl.float32)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        place = block * PIXELS + tl.arange(0, PIXELS)
        inside = place < count
        spot = place[:, None] * WIDE + wide[None, :]
        given = tl.load(grad + spot, mask=inside[:, None], other=0.0)
        if RELU:
            kept = tl.load(y + spot, mask=inside[:, None], other=0.0)
            given = tl.where(kept <= 0, 0.0, given)
        given = given.to(tl.float32) if EXACT else given
        windows = _windows(
            x, place, inside, HEIGHT, WIDTH, ROWS, COLS, CHANNELS, SIDE, PADDING, TAPS
        ).to(given.dtype)
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
    grad, y, which, dx, sums, count, d, h, w, rows, cols, blocks,
    SIZE: tl.constexpr, WIDE: tl.constexpr, PIXELS: tl.constexpr,
):  # fmt: skip
    channel = tl.arange(0, WIDE)
    # To the bias: a sum for each program, so that their order does not matter.
    total = tl.zeros((PIXELS, WIDE), dtype=tl.float32)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        place = block * PIXELS + tl.arange(0, PIXELS)
        both = (place < count)[:, None] & (channel < d)[None, :]
        at = place[:, None] * d + channel[None, :]
        given = tl.load(grad + at, mask=both, other=0.0).to(tl.float32)
        kept = tl.load(y + at, mask=both, other=0.0)
        given = tl.where(kept <= 0, 0.0, given)
        total += given
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
    at = tl.program_id(0) * d + channel
    tl.store(sums + at, tl.sum(total, axis=0), mask=channel < d)
