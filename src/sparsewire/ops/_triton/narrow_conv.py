"""Convolutions between few channels, which libraries made for many leave far above the floor.

Images lie with their channels innermost, so that three pixels side by side are one run of numbers:
a 3 × 3 window is three runs, and a convolution three products of runs with weights.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsewire.ops._triton.images import exact

_PIXELS = 64  # of a block
_PROGRAMS = 1056  # that share the gradient of the weights, each with a sum of its own
# Loads are not made ahead: what neighbours read too comes from the first cache only if they are
# plain, and in float32 there is no room for more.
_STAGES = 1


def narrow_conv(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """Return conv2d(x, weight, bias, padding=1), in the dtype of x; with `relu`, its positive part.

    Args:
        x: (b, c, h, w) with channels innermost.
        weight: (d, c, 3, 3), c and d powers of two from 16 on.
        bias: (d,), or None for none.
        relu: Whether to keep what is positive.
    """
    b, c, h, w = x.shape
    wide, count = weight.shape[0], b * h * w
    like = {"dtype": x.dtype, "device": x.device, "memory_format": torch.channels_last}
    y = torch.empty((b, wide, h, w), **like)
    _convolve[(triton.cdiv(count, _PIXELS),)](
        x, _table(weight, x.dtype), y if bias is None else bias, y, count,
        HEIGHT=h, WIDTH=w, CHANNELS=c, RUN=_run(c), WIDE=wide, PIXELS=_PIXELS,
        BIAS=bias is not None, RELU=relu, EXACT=exact(x.dtype),
    )  # fmt: skip
    return y


def narrow_conv_backward(
    grad: Tensor, x: Tensor, weight: Tensor, y: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, and of weight and bias in float32.

    Args:
        grad: Of the output.
        x: As it came.
        weight: As it came.
        y: The output, where only what was positive was kept.
    """
    (b, c, h, w), wide = x.shape, weight.shape[0]
    grad = grad.contiguous(memory_format=torch.channels_last).to(x.dtype)
    kept = grad if y is None else torch.empty_like(grad)
    count, run = b * h * w, _run(c)
    blocks = triton.cdiv(count, _PIXELS)
    programs = min(_PROGRAMS, blocks)
    sums = torch.empty((programs, 3, run, wide), dtype=torch.float32, device=x.device)
    added = torch.empty((programs, wide), dtype=torch.float32, device=x.device)
    _convolve_backward[(programs,)](
        x, kept if y is None else y, grad, kept, sums, added, count, blocks,
        HEIGHT=h, WIDTH=w, CHANNELS=c, RUN=run, WIDE=wide, PIXELS=_PIXELS,
        RELU=y is not None, EXACT=exact(x.dtype), num_stages=_STAGES,
    )  # fmt: skip
    total = sums.sum(0)[:, : 3 * c].reshape(3, 3, c, wide).permute(3, 2, 0, 1).contiguous()
    # What a pixel gave to its neighbours comes back from them: the same windows, turned around.
    back = narrow_conv(kept, weight.transpose(0, 1).flip(2, 3), None, relu=False)
    return back, total, added.sum(0)


def _run(channels: int) -> int:
    """Numbers of three pixels, as many as a matrix product takes."""
    return triton.next_power_of_2(3 * channels)


def _table(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """The weights of each run: (3, run, d), zeros beyond the channels of three pixels."""
    wide, channels = weight.shape[:2]
    table = torch.zeros((3, _run(channels), wide), dtype=dtype, device=weight.device)
    table[:, : 3 * channels] = weight.permute(2, 3, 1, 0).reshape(3, 3 * channels, wide)
    return table


# Sizes of images are constants of the kernels: places are divided by them for every pixel.


@triton.jit
def _rows_and_columns(place, count, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """Where pixels are in their picture; those after the last are far above it."""
    pixel = place % (HEIGHT * WIDTH)
    return tl.where(place < count, pixel // WIDTH, -2), pixel % WIDTH


@triton.jit
def _runs(
    x, place, row, col, dy: tl.constexpr,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """For each pixel: those on its left, above or below it or itself, and right; 0 outside.

    What is beyond these three in a run belongs to weights that are zero, or to sums that no one
    reads. Without a sign, what is left of or above the picture is far beyond its end.
    """
    lane = tl.arange(0, RUN)
    row = (row + (dy - 1)).to(tl.uint32, bitcast=True)
    col = (col[:, None] + (lane // CHANNELS)[None, :] - 1).to(tl.uint32, bitcast=True)
    within = (row < HEIGHT)[:, None] & (col < WIDTH)
    start = (place + ((dy - 1) * WIDTH - 1)) * CHANNELS
    return tl.load(x + start[:, None] + lane[None, :], mask=within, other=0.0)


@triton.jit
def _convolve(
    x, table, bias, y, count,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, RUN: tl.constexpr,
    WIDE: tl.constexpr, PIXELS: tl.constexpr, BIAS: tl.constexpr, RELU: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    inside = place < count
    row, col = _rows_and_columns(place, count, HEIGHT, WIDTH)
    lane, wide = tl.arange(0, RUN), tl.arange(0, WIDE)
    sums = tl.zeros((PIXELS, WIDE), dtype=tl.float32)
    for dy in tl.static_range(3):
        weights = tl.load(table + (dy * RUN + lane)[:, None] * WIDE + wide[None, :])
        runs = _runs(x, place, row, col, dy, HEIGHT, WIDTH, CHANNELS, RUN)
        if EXACT:
            weights, runs = weights.to(tl.float32), runs.to(tl.float32)
        sums = tl.dot(runs, weights, sums, input_precision="ieee")
    if BIAS:
        sums += tl.load(bias + wide).to(tl.float32)[None, :]
    if RELU:
        sums = tl.where(sums < 0, 0.0, sums)  # a NaN stays
    at = place[:, None] * WIDE + wide[None, :]
    tl.store(y + at, sums.to(y.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _convolve_backward(
    x, y, grad, kept, sums, added, count, blocks,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, RUN: tl.constexpr,
    WIDE: tl.constexpr, PIXELS: tl.constexpr, RELU: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    lane, wide = tl.arange(0, RUN), tl.arange(0, WIDE)
    above = tl.zeros((RUN, WIDE), dtype=tl.float32)
    beside = tl.zeros((RUN, WIDE), dtype=tl.float32)
    below = tl.zeros((RUN, WIDE), dtype=tl.float32)
    total = tl.zeros((PIXELS, WIDE), dtype=tl.float32)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        place = block * PIXELS + tl.arange(0, PIXELS)
        inside = place < count
        row, col = _rows_and_columns(place, count, HEIGHT, WIDTH)
        at = place[:, None] * WIDE + wide[None, :]
        given = tl.load(grad + at, mask=inside[:, None], other=0.0)
        if RELU:
            found = tl.load(y + at, mask=inside[:, None], other=0.0)
            given = tl.where(found <= 0, 0.0, given).to(grad.dtype.element_ty)
            tl.store(kept + at, given, mask=inside[:, None])
        total += given.to(tl.float32)
        first = _runs(x, place, row, col, 0, HEIGHT, WIDTH, CHANNELS, RUN)
        second = _runs(x, place, row, col, 1, HEIGHT, WIDTH, CHANNELS, RUN)
        third = _runs(x, place, row, col, 2, HEIGHT, WIDTH, CHANNELS, RUN)
        if EXACT:
            given = given.to(tl.float32)
            first, second, third = first.to(tl.float32), second.to(tl.float32), third.to(tl.float32)
        above = tl.dot(tl.trans(first), given, above, input_precision="ieee")
        beside = tl.dot(tl.trans(second), given, beside, input_precision="ieee")
        below = tl.dot(tl.trans(third), given, below, input_precision="ieee")
    one = tl.program_id(0)
    spot = lane[:, None] * WIDE + wide[None, :]
    tl.store(sums + one * 3 * RUN * WIDE + spot, above)
    tl.store(sums + (one * 3 + 1) * RUN * WIDE + spot, beside)
    tl.store(sums + (one * 3 + 2) * RUN * WIDE + spot, below)
    tl.store(added + one * WIDE + wide, tl.sum(total, axis=0))
