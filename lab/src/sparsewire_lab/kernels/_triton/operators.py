"""The kernels of `sparsewire_lab.kernels` as operators of `torch.library`.

Gradients of gradients, and gradients that are traced, are computed by plain PyTorch. Under autocast
an operator computes in the dtype of its arguments.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsewire.kernels import again, last_pass, operator
from sparsewire_lab.kernels._triton import images
from sparsewire_lab.kernels._triton import narrow_conv as narrow
from sparsewire_lab.kernels._triton import norm_pool as pooling

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


def _thin_gradient(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
    x, y = ctx.saved_tensors
    if last_pass(grad_output):
        gradients = images.thin_conv_backward(grad_output, x, y, ctx.shape, ctx.padding)
    else:
        grad = grad_output if y is None else torch.where(y <= 0, 0, grad_output)
        x = x.to(grad.dtype)
        weight = torch.nn.grad.conv2d_weight(x, ctx.shape, grad, padding=ctx.padding)
        gradients = weight, grad.sum((0, 2, 3))
    to_weight, to_bias = (g.to(ctx.dtype) for g in gradients)
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


def _pool_gradient(ctx: Any, grad_output: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    (y, which), (h, w), size = ctx.saved_tensors, ctx.sides, ctx.size
    if last_pass(grad_output):
        dx, sums = images.pool_relu_backward(grad_output, y, which, h, w, size)
        return dx, sums.to(ctx.dtype), None
    grad = torch.where(y <= 0, 0, grad_output)
    return _unpool(grad, which, h, w, size), grad.sum((0, 2, 3)).to(ctx.dtype), None


def _unpool(grad: Tensor, which: Tensor, h: int, w: int, size: int) -> Tensor:
    """Place the gradient of each square at its largest pixel."""
    if size == 1:
        return grad
    numbers = torch.arange(size * size, device=grad.device)
    squares = torch.where(which.unsqueeze(-1) == numbers, grad.unsqueeze(-1), 0)
    b, d, rows, cols = grad.shape
    tiles = squares.view(b, d, rows, cols, size, size).transpose(3, 4)
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


# narrow_conv


def _conv_fake(x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
    del bias, relu
    shape = (x.shape[0], weight.shape[0], *x.shape[2:])
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def _conv_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, ctx.relu = inputs
    ctx.save_for_backward(x, weight, bias, output if ctx.relu else None)


def _conv_gradient(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias, y = ctx.saved_tensors
    if last_pass(grad_output):
        dx, *others = narrow.narrow_conv_backward(grad_output, x, weight, y)
        to_weight, to_bias = (g.to(weight.dtype) for g in others)
        return dx, to_weight, None if bias is None else to_bias, None

    def plain(x: Tensor, weight: Tensor, *bias: Tensor) -> tuple[Tensor]:
        z = F.conv2d(x, weight.to(x.dtype), *(b.to(x.dtype) for b in bias), padding=1)
        return (F.relu(z) if ctx.relu else z,)

    inputs = [x, weight] if bias is None else [x, weight, bias]
    gradients = again(plain, inputs, [grad_output])
    return (*gradients, None, None) if bias is None else (*gradients, None)


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
    x, scale, shift, largest, which, mean, variance = ctx.saved_tensors
    if grad is None:
        return (None,) * 5
    if not last_pass(grad):

        def plain(x: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor]:
            normal = F.batch_norm(F.relu(x), None, None, scale, shift, True, eps=ctx.eps)
            return (F.max_pool2d(normal, ctx.size),)

        return (*again(plain, [x, scale, shift], [grad]), None, None)
    grad = grad.contiguous(memory_format=torch.channels_last)
    dx, to_scale, to_shift = pooling.norm_pool_backward(
        grad, largest, which, x, scale, mean, variance, ctx.eps, ctx.size
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
