"""The kernels of `fused_gather` as operators of `torch.library`."""

from typing import Any

import torch
from torch import Tensor

from sparsewire.kernels import again, last_pass, operator, saves
from sparsewire.ops.density import Kind
from sparsewire.ops.fused_gather import Addresses, gather_reference
from sparsewire.ops.fused_gather._triton import kernels
from sparsewire.ops.sample import sample_by_seed


def _gather(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    *rest, density, degrees = inputs
    return kernels.forward(*rest, Kind(density, degrees, inputs[0].shape[-1]))


def _gradient(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 13
    to_input = bool(ctx.needs_input_grad[3])
    run = _backward if last_pass(grad) else fused_gather_backward
    *grads, to_x = run(grad, *ctx.saved_tensors, *ctx.options, to_input)
    x = ctx.saved_tensors[3]
    return (*grads, to_x.to(x.dtype) if to_input else None, *(None,) * 9)


def _backward(grad: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    *rest, density, degrees, to_input = inputs
    return kernels.backward(grad, *rest, Kind(density, degrees, inputs[0].shape[-1]), to_input)


def _backward_fake(
    grad: Tensor, means: Tensor, variances: Tensor, values: Tensor, x: Tensor, *options: Any
) -> tuple[Tensor, ...]:
    to_x = means.new_empty(x.shape if options[-1] else (0,))
    return (*(t.new_empty(t.shape) for t in (means, variances, values)), to_x)


def _backward_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:7])
    ctx.options = inputs[9:]
    ctx.set_materialize_grads(False)


def _backward_gradient(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    *inputs, base, seed = ctx.saved_tensors
    strides, sizes, spans, local_samples, global_samples, density, degrees, to_input = ctx.options
    means = inputs[1]
    options = sizes, spans, local_samples, global_samples
    indices = sample_by_seed(means.detach().flatten(0, 1), seed, *options)
    indices = indices.view(*means.shape[:2], *indices.shape[1:])
    addresses = Addresses(tuple(sizes), tuple(strides), base)

    def first(grad: Tensor, *tuples_and_x: Tensor) -> Any:
        z = gather_reference(*tuples_and_x, indices, addresses, density, degrees)
        return torch.autograd.grad(z, tuples_and_x, grad, create_graph=True)

    inputs[4] = inputs[4].to(means.dtype)
    if not to_input:
        grads = (*grads[:3], None)
    return (*again(first, inputs, grads), *(None,) * 12)


_TUPLES = "Tensor means, Tensor variances, Tensor values"
_INPUT = "Tensor x, Tensor base, Tensor seed"
_OPTIONS = "SymInt[] strides, SymInt[] sizes, SymInt[] spans, "
_OPTIONS += "SymInt local_samples, SymInt global_samples, str density, float degrees"

fused_gather_backward = operator(
    f"fused_gather_backward(Tensor grad, {_TUPLES}, {_INPUT}, Tensor averages, Tensor normalisers, "
    f"{_OPTIONS}, bool to_input) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    _backward,
    _backward_fake,
    _backward_gradient,
    _backward_setup,
)
fused_gather = operator(
    f"fused_gather({_TUPLES}, {_INPUT}, {_OPTIONS}) -> (Tensor, Tensor, Tensor)",
    _gather,
    lambda means, variances, values, *_: tuple(values.new_empty(values.shape) for _ in range(3)),
    _gradient,
    saves(6, results=True),
)
