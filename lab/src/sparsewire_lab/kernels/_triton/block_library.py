"""The kernels of a block of convolutions as operators of `torch.library`.

Gradients of gradients, and gradients that are traced, are those of plain PyTorch. Under autocast
they take what they are given.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsewire.kernels import again, last_pass, operator
from sparsewire_lab.kernels._triton import narrow_conv as narrow
from sparsewire_lab.kernels._triton import norm_pool as pooling

# narrow_conv


def _conv_fake(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    del bias, relu
    shape = (x.shape[0], weight.shape[0], *x.shape[2:])
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def _conv_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, ctx.relu = inputs
    ctx.save_for_backward(x, weight, bias, output if ctx.relu else None)


def _conv_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias, y = ctx.saved_tensors
    if last_pass(grad):
        dx, *others = narrow.narrow_conv_backward(grad, x, weight, y)
        to_weight, to_bias = (g.to(weight.dtype) for g in others)
        return dx, to_weight, None if bias is None else to_bias, None

    def plain(x: Tensor, weight: Tensor, *bias: Tensor) -> tuple[Tensor]:
        z = F.conv2d(x, weight.to(x.dtype), *(b.to(x.dtype) for b in bias), padding=1)
        return (F.relu(z) if ctx.relu else z,)

    there = [x, weight] if bias is None else [x, weight, bias]
    found = again(plain, there, [grad])
    return (*found, None, None) if bias is None else (*found, None)


narrow_conv = operator(
    "narrow_conv(Tensor x, Tensor weight, Tensor? bias, bool relu) -> Tensor",
    narrow.narrow_conv,
    _conv_fake,
    _conv_gradient,
    _conv_setup,
    autocast=None,
)


# norm_pool


def _norm_pool(
    x: Tensor, scale: Tensor, shift: Tensor, eps: float, size: int
) -> tuple[Tensor, ...]:
    mean, variance, factor, added = pooling.statistics(x, scale, shift, eps)
    return (*pooling.norm_pool(x, factor, added, size), mean, variance)


def _norm_fake(
    x: Tensor, scale: Tensor, shift: Tensor, eps: float, size: int
) -> tuple[Tensor, ...]:
    del scale, shift, eps
    b, d, h, w = x.shape
    like = {"device": x.device, "memory_format": torch.channels_last}
    dtypes = x.dtype, x.dtype, torch.uint8
    small = (torch.empty((b, d, h // size, w // size), dtype=dtype, **like) for dtype in dtypes)
    return (*small, *(x.new_empty(d, dtype=torch.float32) for _ in range(2)))


def _norm_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, scale, shift, ctx.eps, ctx.size = inputs
    _, *rest = output
    ctx.save_for_backward(x, scale, shift, *rest)
    ctx.mark_non_differentiable(*rest)
    ctx.set_materialize_grads(False)


def _norm_gradient(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    x, scale, shift, kept, which, mean, variance = ctx.saved_tensors
    if grad is None:
        return (None,) * 5
    if not last_pass(grad):

        def plain(x: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor]:
            normal = F.batch_norm(F.relu(x), None, None, scale, shift, True, eps=ctx.eps)
            return (F.max_pool2d(normal, ctx.size),)

        return (*again(plain, [x, scale, shift], [grad]), None, None)
    grad = grad.contiguous(memory_format=torch.channels_last)
    dx, to_scale, to_shift = pooling.norm_pool_backward(
        grad, kept, which, x, scale, mean, variance, ctx.eps, ctx.size
    )
    return dx, to_scale.to(scale.dtype), to_shift.to(shift.dtype), None, None


norm_pool = operator(
    "norm_pool(Tensor x, Tensor scale, Tensor shift, float eps, int size) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor)",
    _norm_pool,
    _norm_fake,
    _norm_gradient,
    _norm_setup,
    autocast=None,
)
