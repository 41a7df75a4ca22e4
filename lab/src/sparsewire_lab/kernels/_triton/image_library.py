"""The kernels of `sparsewire_lab.kernels` as operators of `torch.library`.

Both are piecewise linear: their gradients are linear in what comes back, and differentiated again
as plain PyTorch. Under autocast they take what they are given.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsewire.kernels import last_pass, operator
from sparsewire_lab.kernels._triton import images

# thin_conv


def _thin_fake(
    x: Tensor, weight: Tensor, bias: Tensor | None, padding: int, relu: bool, dtype: torch.dtype
) -> Tensor:
    del bias, relu
    grown = 2 * padding - weight.shape[-1] + 1
    shape = (x.shape[0], weight.shape[0], *(n + grown for n in x.shape[2:]))
    like = {"device": x.device, "memory_format": torch.channels_last}
    return torch.empty(shape, dtype=dtype, **like)


def _thin_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, ctx.padding, relu, _ = inputs
    ctx.save_for_backward(x, output if relu else None)
    ctx.shape, ctx.dtype, ctx.bias = weight.shape, weight.dtype, bias is not None


def _thin_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, y = ctx.saved_tensors
    if last_pass(grad):
        found = images.thin_conv_backward(grad, x, y, ctx.shape, ctx.padding)
    else:
        kept = grad if y is None else torch.where(y <= 0, 0, grad)
        x = x.to(kept.dtype)
        weight = torch.nn.grad.conv2d_weight(x, ctx.shape, kept, padding=ctx.padding)
        found = weight, kept.sum((0, 2, 3))
    to_weight, to_bias = (g.to(ctx.dtype) for g in found)
    return None, to_weight, to_bias if ctx.bias else None, None, None, None


thin_conv = operator(
    "thin_conv(Tensor x, Tensor weight, Tensor? bias, int padding, bool relu, ScalarType dtype) "
    "-> Tensor",
    images.thin_conv,
    _thin_fake,
    _thin_gradient,
    _thin_setup,
    autocast=None,
)


# pool_relu


def _pool_fake(x: Tensor, bias: Tensor, size: int) -> tuple[Tensor, Tensor]:
    del bias
    b, d, h, w = x.shape
    like = {"device": x.device, "memory_format": torch.channels_last}
    small = torch.empty((b, d, h // size, w // size), dtype=x.dtype, **like)
    which = torch.empty_like(small if size > 1 else x.new_empty(0, 1, 1, 1), dtype=torch.uint8)
    return small, which


def _pool_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, bias, ctx.size = inputs
    ctx.save_for_backward(*output)
    ctx.mark_non_differentiable(output[1])
    ctx.sides, ctx.dtype = x.shape[2:], bias.dtype


def _pool_gradient(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    (y, which), (h, w), size = ctx.saved_tensors, ctx.sides, ctx.size
    if last_pass(grad):
        dx, sums = images.pool_relu_backward(grad, y, which, h, w, size)
        return dx, sums.to(ctx.dtype), None
    kept = torch.where(y <= 0, 0, grad)
    return _unpool(kept, which, h, w, size), kept.sum((0, 2, 3)).to(ctx.dtype), None


def _unpool(grad: Tensor, which: Tensor, h: int, w: int, size: int) -> Tensor:
    """Put what comes back where the largest was."""
    if size == 1:
        return grad
    numbers = torch.arange(size * size, device=grad.device)
    spread = torch.where(which.unsqueeze(-1) == numbers, grad.unsqueeze(-1), 0)
    b, d, rows, cols = grad.shape
    tiles = spread.view(b, d, rows, cols, size, size).transpose(3, 4)
    whole = tiles.reshape(b, d, rows * size, cols * size)
    return F.pad(whole, (0, w - cols * size, 0, h - rows * size))


pool_relu = operator(
    "pool_relu(Tensor x, Tensor bias, int size) -> (Tensor, Tensor)",
    images.pool_relu,
    _pool_fake,
    _pool_gradient,
    _pool_setup,
    autocast=None,
)
