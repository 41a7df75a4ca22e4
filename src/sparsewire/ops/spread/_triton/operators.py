"""The kernels of `spread` as operators of `torch.library`."""

from typing import Any

from torch import Tensor

from sparsewire.kernels import again, last_pass, operator
from sparsewire.ops.density import Kind, tame
from sparsewire.ops.spread._chunked import ChunkedSpreadBackward
from sparsewire.ops.spread._triton import launch


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
    out, packed = launch.forward(means, variances, values, indices, excluded, kind, tolerance)
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
    plan = launch.Plan.of(c, k, m, r, Kind(density, degrees, r), tolerance)
    return (means.new_empty(c, m), *launch.empty(plan, means))


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
    where = launch.Packed(*packed)
    return launch.backward(grad, means, variances, values, where, kind, tolerance)


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
