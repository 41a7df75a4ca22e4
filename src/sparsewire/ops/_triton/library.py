"""The kernels as operators of `torch.library`: with shapes for tracing, gradients, and autocast.

Gradients of gradients are exact too: a backward operator is differentiated through the plain
PyTorch engine that computes the same.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sparsewire.ops._chunked import ChunkedSpreadBackward
from sparsewire.ops._engines import interpreted
from sparsewire.ops._triton import contraction, duplicates, reading, sampling
from sparsewire.ops._triton import spread as spreading
from sparsewire.ops.density import Kind, tame
from sparsewire.ops.reading import Where, read_drawn

_library = torch.library.Library("sparsewire", "FRAGMENT")
# Under Triton's interpreter the same kernels run on the CPU.
_DEVICES = ("cuda", "cpu") if interpreted() else ("cuda",)


def operator(
    schema: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    setup: Callable[..., Any] | None = None,
    autocast: torch.dtype | None = torch.float32,
) -> Any:
    """Define an operator: how it runs, what comes out, its gradient, its dtype in autocast."""
    name = schema.partition("(")[0]
    _library.define(schema)
    for device in _DEVICES:
        torch.library.impl(f"sparsewire::{name}", device, run, lib=_library)
    torch.library.register_fake(f"sparsewire::{name}", fake, lib=_library)
    if backward is not None:
        torch.library.register_autograd(
            f"sparsewire::{name}", backward, setup_context=setup, lib=_library
        )
    if autocast is not None:
        torch.library.register_autocast(f"sparsewire::{name}", "cuda", autocast, lib=_library)
    return getattr(torch.ops.sparsewire, name).default


def last_pass(grad: Tensor) -> bool:
    """Whether a backward pass is the last: no one will differentiate it, and no one traces it.

    It then calls the kernels themselves, for the way through the operators costs the host time.
    """
    return type(grad) is Tensor and not torch.is_grad_enabled()


def again(
    function: Callable[..., Any], inputs: Sequence[Tensor], grads: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Differentiate a function, computed once more in plain PyTorch, from the gradients of it."""
    keep = torch.is_grad_enabled()
    with torch.enable_grad():
        # Other names for the inputs: what reaches one of them through another is not counted here.
        leaves = [
            t.view_as(t) if keep and t.requires_grad else t.detach().requires_grad_()
            for t in inputs
        ]
        outputs = function(*leaves)
        given = [(o, g) for o, g in zip(outputs, grads, strict=True) if g is not None]
        if not given:
            return [None] * len(leaves)
        outputs, grads = zip(*given, strict=True)
        return list(
            torch.autograd.grad(outputs, leaves, grads, create_graph=keep, allow_unused=True)
        )


# spread


def _spread(
    means: Tensor,
    variances: Tensor,
    values: Tensor,
    indices: Tensor,
    excluded: Tensor | None,
    density: str,
    degrees: float,
    tolerance: float,
) -> tuple[Tensor, ...]:
    kind = Kind(density, degrees, means.shape[-1])
    out, packed = spreading.forward(means, variances, values, indices, excluded, kind, tolerance)
    return (out, *packed)


def _spread_fake(
    means: Tensor,
    variances: Tensor,
    values: Tensor,
    indices: Tensor,
    excluded: Tensor | None,
    density: str,
    degrees: float,
    tolerance: float,
) -> tuple[Tensor, ...]:
    (c, k, r), m = means.shape, indices.shape[-2]
    plan = spreading.Plan.of(c, k, m, r, Kind(density, degrees, r), tolerance)
    return (means.new_empty(c, m), *spreading.empty(plan, means))


def _spread_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:5], *output[1:])
    ctx.options = inputs[5:]
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _spread_gradient(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 8
    run = _spread_backward if last_pass(grad) else spread_backward
    return (*run(grad, *ctx.saved_tensors, *ctx.options), *(None,) * 5)


def _spread_backward(
    grad: Tensor,
    means: Tensor,
    variances: Tensor,
    values: Tensor,
    indices: Tensor,
    excluded: Tensor | None,
    *packed_and_options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    *packed, density, degrees, tolerance = packed_and_options
    kind = Kind(density, degrees, means.shape[-1])
    where = spreading.Packed(*packed)
    return spreading.backward(grad, means, variances, values, where, kind, tolerance)


def _spread_backward_fake(
    grad: Tensor, means: Tensor, variances: Tensor, values: Tensor, *_: Any
) -> tuple[Tensor, ...]:
    return tuple(t.new_empty(t.shape) for t in (means, variances, values))


def _spread_backward_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:6])
    ctx.kind = Kind(inputs[12], inputs[13], inputs[1].shape[-1])
    ctx.set_materialize_grads(False)


def _spread_backward_gradient(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    *inputs, indices, excluded = ctx.saved_tensors

    def first(grad: Tensor, means: Tensor, variances: Tensor, values: Tensor) -> Any:
        means, variances = tame(means, variances)
        return ChunkedSpreadBackward.apply(
            grad, means, variances, values, indices, excluded, ctx.kind
        )

    return (*again(first, inputs, grads), *(None,) * 11)


_PACKED = "Tensor rows, Tensor points, Tensor row_order, Tensor point_order, "
_PACKED += "Tensor row_boxes, Tensor point_boxes"
_TUPLES = "Tensor means, Tensor variances, Tensor values"

spread_backward = operator(
    f"spread_backward(Tensor grad, {_TUPLES}, Tensor indices, Tensor? excluded, {_PACKED}, "
    "str density, float degrees, float tolerance) -> (Tensor, Tensor, Tensor)",
    _spread_backward,
    _spread_backward_fake,
    _spread_backward_gradient,
    _spread_backward_setup,
)
spread = operator(
    f"spread({_TUPLES}, Tensor indices, Tensor? excluded, str density, float degrees, "
    "float tolerance) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _spread,
    _spread_fake,
    _spread_gradient,
    _spread_setup,
)


# contract


def _contract_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:4])


def _contract_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    rows, cols, values, x = ctx.saved_tensors
    to_values = to_x = None
    last = last_pass(grad)
    if ctx.needs_input_grad[2]:
        run = contraction.dot if last else dot
        to_values = run(rows, cols, grad, x).to(values.dtype)
    if ctx.needs_input_grad[3]:
        run = contraction.contract if last else contract
        to_x = run(cols, rows, values, grad, x.shape[1]).to(x.dtype)
    return None, None, to_values, to_x, None


def _dot_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _dot_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    rows, cols, y, x = ctx.saved_tensors
    to_y = to_x = None
    if ctx.needs_input_grad[2]:
        to_y = contract(rows, cols, grad, x, y.shape[1]).to(y.dtype)
    if ctx.needs_input_grad[3]:
        to_x = contract(cols, rows, grad, y, x.shape[1]).to(x.dtype)
    return None, None, to_y, to_x


contract = operator(
    "contract(Tensor rows, Tensor cols, Tensor values, Tensor x, SymInt size) -> Tensor",
    contraction.contract,
    lambda rows, cols, values, x, size: contraction.empty(values, size, x.shape[2]),
    _contract_gradient,
    _contract_setup,
)
dot = operator(
    "dot(Tensor rows, Tensor cols, Tensor y, Tensor x) -> Tensor",
    contraction.dot,
    lambda rows, cols, y, x: y.new_empty(rows.shape),
    _dot_gradient,
    _dot_setup,
)


# sample, mark repeats: nothing to differentiate


def _sample_fake(
    means: Tensor,
    seed: Tensor,
    sizes: Sequence[int],
    spans: Sequence[int],
    local_samples: int,
    global_samples: int,
) -> Tensor:
    q, r = means.shape
    return means.new_empty((q, 2**r + local_samples + global_samples, r), dtype=torch.int64)


sample = operator(
    "sample(Tensor means, Tensor seed, SymInt[] sizes, SymInt[] spans, SymInt local_samples, "
    "SymInt global_samples) -> Tensor",
    sampling.draw,
    _sample_fake,
)
mark_repeats = operator(
    "mark_repeats(Tensor indices, SymInt[] sizes) -> Tensor",
    duplicates.mark,
    lambda indices, sizes: indices.new_empty(indices.shape[:-1], dtype=torch.bool),
)


# read


def _read(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    *rest, density, degrees = inputs
    return reading.forward(*rest, Kind(density, degrees, inputs[0].shape[-1]))


def _read_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[:6], *output[1:])
    ctx.options = inputs[6:]
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _read_gradient(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 13
    to_input = bool(ctx.needs_input_grad[3])
    run = _read_backward if last_pass(grad) else read_backward
    *grads, to_x = run(grad, *ctx.saved_tensors, *ctx.options, to_input)
    x = ctx.saved_tensors[3]
    return (*grads, to_x.to(x.dtype) if to_input else None, *(None,) * 9)


def _read_backward(grad: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    *rest, density, degrees, to_input = inputs
    return reading.backward(grad, *rest, Kind(density, degrees, inputs[0].shape[-1]), to_input)


def _read_backward_fake(
    grad: Tensor, means: Tensor, variances: Tensor, values: Tensor, x: Tensor, *options: Any
) -> tuple[Tensor, ...]:
    to_x = means.new_empty(x.shape if options[-1] else (0,))
    return (*(t.new_empty(t.shape) for t in (means, variances, values)), to_x)


def _read_backward_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:7])
    ctx.options = inputs[9:]
    ctx.set_materialize_grads(False)


def _read_backward_gradient(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    *inputs, base, seed = ctx.saved_tensors
    strides, sizes, spans, local_samples, global_samples, density, degrees, to_input = ctx.options
    means = inputs[1]
    drawn = sample(means.detach().flatten(0, 1), seed, sizes, spans, local_samples, global_samples)
    drawn = drawn.view(*means.shape[:2], *drawn.shape[1:])
    where = Where(tuple(sizes), tuple(strides), base)

    def first(grad: Tensor, *tuples_and_x: Tensor) -> Any:
        z = read_drawn(*tuples_and_x, drawn, where, density, degrees)
        return torch.autograd.grad(z, tuples_and_x, grad, create_graph=True)

    inputs[4] = inputs[4].to(means.dtype)
    if not to_input:
        grads = (*grads[:3], None)
    return (*again(first, inputs, grads), *(None,) * 12)


_FROM = "Tensor x, Tensor base, Tensor seed"
_WHERE = "SymInt[] strides, SymInt[] sizes, SymInt[] spans, "
_WHERE += "SymInt local_samples, SymInt global_samples, str density, float degrees"

read_backward = operator(
    f"read_backward(Tensor grad, {_TUPLES}, {_FROM}, Tensor received, Tensor total, {_WHERE}, "
    "bool to_input) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    _read_backward,
    _read_backward_fake,
    _read_backward_gradient,
    _read_backward_setup,
)
read = operator(
    f"read({_TUPLES}, {_FROM}, {_WHERE}) -> (Tensor, Tensor, Tensor)",
    _read,
    lambda means, variances, values, *_: tuple(values.new_empty(values.shape) for _ in range(3)),
    _read_gradient,
    _read_setup,
)
