"""The NumPy engine as an operator of `torch.library`, so that it compiles as a whole."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsewire.kernels import operator
from sparsewire.sorting.soft_sort import _numpy
from sparsewire.sorting.soft_sort._call import Call, Operation


def by_numpy(call: Call) -> Tensor:
    """Compute a call in NumPy; where it is compiled, as one operator."""
    if torch.compiler.is_compiling():
        return soft_call(*call[1:6], call.operation)
    return _numpy.by_numpy(call)


def _run(*inputs: Any) -> Tensor:
    return _tensor(_numpy.forward(_call(inputs))[0])


def _run_backward(grad: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    """The gradients of keys, payload and temperature; the forward pass is computed again."""
    found = _numpy.backward(_numpy.forward(_call(inputs))[1], grad.numpy())
    keys, heat, payload = map(_tensor, found)
    return keys.to(inputs[0].dtype), payload.to(grad.dtype), heat.to(inputs[3].dtype)


def _call(inputs: tuple[Any, ...]) -> Call:
    return Call(inputs[5], inputs[0], inputs[1], inputs[2], inputs[3], inputs[4], "light")


def _tensor(found: Any) -> Tensor:
    return torch.empty(0) if found is None else torch.from_numpy(np.ascontiguousarray(found))


def _shape(
    keys: Tensor, payload: Any, weights: Any, heat: Tensor, levels: Any, operation: Operation
) -> Tensor:
    if operation == "rank":
        return keys.new_empty(keys.shape)
    count = keys.shape[-1] + 1 if levels is None else levels.shape[-1]
    if operation == "threshold":
        return keys.new_empty(len(keys), count, dtype=torch.float64)
    return payload.new_empty(len(keys), count - 1, payload.shape[-1])


def _backward_shapes(grad: Tensor, keys: Tensor, payload: Any, weights: Any, *inputs: Any) -> Any:
    of_payload = grad.new_empty(0) if payload is None else payload.new_empty(payload.shape)
    return keys.new_empty(keys.shape), of_payload, keys.new_empty(len(keys), 1)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:5])
    ctx.operation = inputs[5]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    payload = ctx.saved_tensors[1]
    of_keys, of_payload, of_heat = soft_call_backward(grad, *ctx.saved_tensors, ctx.operation)
    return of_keys, None if payload is None else of_payload, None, of_heat, None, None


_INPUTS = (
    "Tensor keys, Tensor? payload, Tensor? weights, Tensor heat, Tensor? levels, str operation"
)
_CPU: dict[str, Any] = {"autocast": None, "devices": ("cpu",)}
soft_call_backward = operator(
    f"soft_call_backward(Tensor grad, {_INPUTS}) -> (Tensor, Tensor, Tensor)",
    _run_backward,
    _backward_shapes,
    **_CPU,
)
soft_call = operator(f"soft_call({_INPUTS}) -> Tensor", _run, _shape, _backward, _setup, **_CPU)
