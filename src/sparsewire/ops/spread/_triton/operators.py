"""The kernels of `spread` as operators of `torch.library`."""

from typing import Any

from torch import Tensor

from sparsewire.kernels import again, last_pass, operator, saves
from sparsewire.ops.density import Kind, tame
from sparsewire.ops.spread._chunked import ChunkedSpreadBackward
from sparsewire.ops.spread._triton import launch


def _spread(*inputs: Any) -> tuple[Tensor, ...]:
    *tensors, density, degrees, tolerance = inputs
    out, packed = launch.forward(*tensors, Kind(density, degrees, inputs[0].shape[-1]), tolerance)
    return (out, *packed)


def _spread_fake(*inputs: Any) -> tuple[Tensor, ...]:
    means, _, _, indices, _, density, degrees, tolerance = inputs
    (c, k, r), m = means.shape, indices.shape[-2]
    plan = launch.Plan.of(c, k, m, r, Kind(density, degrees, r), tolerance)
    return (means.new_empty(c, m), *launch.empty(plan, means))


def _spread_gradient(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 8
    run = _spread_backward if last_pass(grad) else spread_backward
    return (*run(grad, *ctx.saved_tensors, *ctx.options), *(None,) * 5)


def _spread_backward(grad: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    means, variances, values, _, _, *packed, density, degrees, tolerance = inputs
    kind, tuples = Kind(density, degrees, means.shape[-1]), (means, variances, values)
    return launch.backward(grad, tuples, launch.Packed(*packed), kind, tolerance)


def _spread_backward_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:6])
    ctx.kind = Kind(inputs[12], inputs[13], inputs[1].shape[-1])
    ctx.set_materialize_grads(False)


def _spread_backward_gradient(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    *inputs, indices, excluded = ctx.saved_tensors
    rest = indices, excluded, ctx.kind

    def first(grad: Tensor, means: Tensor, variances: Tensor, values: Tensor) -> Any:
        return ChunkedSpreadBackward.apply(grad, *tame(means, variances), values, *rest)

    return (*again(first, inputs, grads), *(None,) * 11)


_PACKED = "Tensor rows, Tensor points, Tensor row_order, Tensor point_order, "
_PACKED += "Tensor row_boxes, Tensor point_boxes"
_TUPLES = "Tensor means, Tensor variances, Tensor values"

spread_backward = operator(
    f"spread_backward(Tensor grad, {_TUPLES}, Tensor indices, Tensor? excluded, {_PACKED}, "
    "str density, float degrees, float tolerance) -> (Tensor, Tensor, Tensor)",
    _spread_backward,
    lambda grad, *inputs: tuple(t.new_empty(t.shape) for t in inputs[:3]),
    _spread_backward_gradient,
    _spread_backward_setup,
)
spread = operator(
    f"spread({_TUPLES}, Tensor indices, Tensor? excluded, str density, float degrees, "
    "float tolerance) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _spread,
    _spread_fake,
    _spread_gradient,
    saves(5, results=True),
)
