"""Kernels of convolutions between 16 channels, for which cuDNN is far above the bound of memory.

Images have their channels innermost, so that three neighbouring pixels of a row are contiguous: a
3 × 3 window is three such runs, and a convolution three products of runs with weights.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsewire_lab.kernels._triton.images import exact
from sparsewire_lab.kernels._triton.totals import total

# Chosen by measurement, forward and backward.
_PIXELS, _PIXELS_BACK = 64, 128  # of a block
_PROGRAMS, _PROGRAMS_BACK = 1056, 528  # that share the blocks; each sums gradients of the weights
# Backward, loads are not made ahead: what neighbours read too comes from the first cache only if
# they are plain, and in float32 there is no room for more.
_STAGES, _STAGES_BACK = 3, 1


def narrow_conv(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    """Return conv2d(x, weight, bias, padding=1), in the dtype of x; with `relu`, its positive part.

    Args:
        x: (b, c, h, w) with channels innermost.
        weight: (d, c, 3, 3), c and d powers of two from 16 on.
        bias: (d,), or None for none.
        relu: Whether to apply a ReLU.
    """
    b, c, h, w = x.shape
    wide, count = weight.shape[0], b * h * w
    like = {"dtype": x.dtype, "device": x.device, "memory_format": torch.channels_last}
    y = torch.empty((b, wide, h, w), **like)
    blocks = triton.cdiv(count, _PIXELS)
    _convolve[(min(_PROGRAMS, blocks),)](
        x, _table(weight, x.dtype), y if bias is None else bias, y, count, blocks,
        HEIGHT=h, WIDTH=w, CHANNELS=c, RUN=_run(c), WIDE=wide, PIXELS=_PIXELS,
        BIAS=bias is not None, RELU=relu, EXACT=exact(x.dtype), num_stages=_STAGES,
    )  # fmt: skip
    return y


def narrow_conv_backward(
    grad: Tensor, x: Tensor, weight: Tensor, y: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, and of weight and bias in float32.

    Args:
        grad: Of the output.
        x: Input of the forward pass.
        weight: Input of the forward pass.
        y: Its output, if a ReLU was applied.
    """
    (b, c, h, w), wide = x.shape, weight.shape[0]
    grad = grad.contiguous(memory_format=torch.channels_last).to(x.dtype)
    kept = grad if y is None else torch.empty_like(grad)
    count, run = b * h * w, _run(c)
    blocks = triton.cdiv(count, _PIXELS_BACK)
    programs = min(_PROGRAMS_BACK, blocks)
    sums = torch.empty((programs, 3, run, wide), dtype=torch.float32, device=x.device)
    _convolve_backward[(programs,)](
        x, kept if y is None else y, grad, kept, sums, count, blocks,
        HEIGHT=h, WIDTH=w, CHANNELS=c, RUN=run, WIDE=wide, PIXELS=_PIXELS_BACK,
        RELU=y is not None, EXACT=exact(x.dtype), num_stages=_STAGES_BACK,
    )  # fmt: skip
    found = total(sums)
    to_weight = found[:, : 3 * c].reshape(3, 3, c, wide).permute(3, 2, 0, 1).contiguous()
    # What a pixel gave to its neighbours comes back from them: the same windows, turned around.
    back = narrow_conv(kept, weight.transpose(0, 1).flip(2, 3), None, relu=False)
    return back, to_weight, found[1, 3 * c].clone()


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
    x, table, bias, y, count, blocks,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, RUN: tl.constexpr,
    WIDE: tl.constexpr, PIXELS: tl.constexpr, BIAS: tl.constexpr, RELU: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    lane, wide = tl.arange(0, RUN), tl.arange(0, WIDE)
    spot = lane[:, None] * WIDE + wide[None, :]
    above = tl.load(table + spot)
    beside = tl.load(table + RUN * WIDE + spot)
    below = tl.load(table + 2 * RUN * WIDE + spot)
    if EXACT:
        above, beside, below = above.to(tl.float32), beside.to(tl.float32), below.to(tl.float32)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        place = block * PIXELS + tl.arange(0, PIXELS)
        row, col = _rows_and_columns(place, count, HEIGHT, WIDTH)
        first = _runs(x, place, row, col, 0, HEIGHT, WIDTH, CHANNELS, RUN)
        second = _runs(x, place, row, col, 1, HEIGHT, WIDTH, CHANNELS, RUN)
        third = _runs(x, place, row, col, 2, HEIGHT, WIDTH, CHANNELS, RUN)
        if EXACT:
            first, second, third = first.to(tl.float32), second.to(tl.float32), third.to(tl.float32)
        sums = tl.dot(first, above, input_precision="ieee")
        sums = tl.dot(second, beside, sums, input_precision="ieee")
        sums = tl.dot(third, below, sums, input_precision="ieee")
        if BIAS:
            sums += tl.load(bias + wide).to(tl.float32)[None, :]
        if RELU:
            sums = tl.where(sums < 0, 0.0, sums)  # a NaN stays
        at = place[:, None] * WIDE + wide[None, :]
        tl.store(y + at, sums.to(y.dtype.element_ty), mask=(place < count)[:, None])


@triton.jit
def _convolve_backward(
    x, y, grad, kept, sums, count, blocks,
    HEIGHT: tl.constexpr, WIDTH: tl.constexpr, CHANNELS: tl.constexpr, RUN: tl.constexpr,
    WIDE: tl.constexpr, PIXELS: tl.constexpr, RELU: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    lane, wide = tl.arange(0, RUN), tl.arange(0, WIDE)
    above = tl.zeros((RUN, WIDE), dtype=tl.float32)
    beside = tl.zeros((RUN, WIDE), dtype=tl.float32)
    below = tl.zeros((RUN, WIDE), dtype=tl.float32)
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
        first = _runs(x, place, row, col, 0, HEIGHT, WIDTH, CHANNELS, RUN)
        second = _runs(x, place, row, col, 1, HEIGHT, WIDTH, CHANNELS, RUN)
        third = _runs(x, place, row, col, 2, HEIGHT, WIDTH, CHANNELS, RUN)
        if EXACT:
            given = given.to(tl.float32)
            first, second, third = first.to(tl.float32), second.to(tl.float32), third.to(tl.float32)
        # A run has room for a one after its pixels, whose weight is the bias.
        second = tl.where((lane == 3 * CHANNELS)[None, :], 1.0, second)
        above = tl.dot(tl.trans(first), given, above, input_precision="ieee")
        beside = tl.dot(tl.trans(second), given, beside, input_precision="ieee")
        below = tl.dot(tl.trans(third), given, below, input_precision="ieee")
    one = tl.program_id(0)
    spot = lane[:, None] * WIDE + wide[None, :]
    tl.store(sums + one * 3 * RUN * WIDE + spot, above)
    tl.store(sums + (one * 3 + 1) * RUN * WIDE + spot, beside)
    tl.store(sums + (one * 3 + 2) * RUN * WIDE + spot, below)
