"""The kernels of `contract` as operators of `torch.library`."""

from typing import Any

from torch import Tensor

from sparsewire.kernels import last_pass, operator, saves
from sparsewire.ops.contract._triton import kernels


def _contract_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    rows, cols, values, x = ctx.saved_tensors
    to_values = to_x = None
    last = last_pass(grad)
    if ctx.needs_input_grad[2]:
        run = kernels.dot if last else dot
        to_values = run(rows, cols, grad, x).to(values.dtype)
    if ctx.needs_input_grad[3]:
        run = kernels.contract if last else contract
        to_x = run(cols, rows, values, grad, x.shape[1]).to(x.dtype)
    return None, None, to_values, to_x, None


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
    kernels.contract,
    lambda rows, cols, values, x, size: kernels.empty(values, size, x.shape[2]),
    _contract_gradient,
    saves(4),
)
dot = operator(
    "dot(Tensor rows, Tensor cols, Tensor y, Tensor x) -> Tensor",
    kernels.dot,
    lambda rows, cols, y, x: y.new_empty(rows.shape),
    _dot_gradient,
    saves(4),
)
