"""The kernels of soft sorts as operators of `torch.library`."""

from typing import Any

import torch
from torch import Tensor

from sparsewire.kernels import again, last_pass, operator, saves
from sparsewire.sorting.halves import Distribution
from sparsewire.sorting.soft_sort._mixing import mix
from sparsewire.sorting.soft_sort._triton import mixing

NUMBERS: dict[Distribution, int] = {"student": mixing.STUDENT, "logistic": mixing.LOGISTIC}


def _mixed(values: Tensor, gaps: Tensor, back: bool, distribution: int) -> Tensor:
    """The same in plain PyTorch."""
    (name,) = [name for name, number in NUMBERS.items() if number == distribution]
    (_, n, features), full = values.shape, gaps.shape[-1] + 1
    rows = torch.nn.functional.pad(values.transpose(1, 2), (0, full - n)).flatten(0, 1)
    mixed = mix(rows, gaps.repeat_interleave(features, 0), back, name)
    return mixed[:, :n].unflatten(0, (-1, features)).transpose(1, 2)


def _gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    if not last_pass(grad):
        return (*mix_backward(grad, *ctx.saved_tensors, *ctx.options), None, None)
    wanted = ctx.needs_input_grad[0]  # not for numbers of places
    found = mixing.mix_backward(grad, *ctx.saved_tensors, *ctx.options, wanted)
    return (found[0] if wanted else None, found[1], None, None)


def _backward_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.options = inputs[3:]
    ctx.set_materialize_grads(False)


def _backward_gradient(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    def first(grad: Tensor, values: Tensor, gaps: Tensor) -> Any:
        out = _mixed(values, gaps, *ctx.options)
        return torch.autograd.grad(out, (values, gaps), grad, create_graph=True)

    return (*again(first, ctx.saved_tensors, grads), None, None)


mix_backward = operator(
    "mix_sorted_backward(Tensor grad, Tensor values, Tensor gaps, bool back, SymInt distribution) "
    "-> (Tensor, Tensor)",
    mixing.mix_backward,
    lambda grad, values, gaps, back, distribution: (values.new_empty(values.shape), gaps.clone()),
    _backward_gradient,
    _backward_setup,
)
mix_sorted = operator(
    "mix_sorted(Tensor values, Tensor gaps, bool back, SymInt distribution) -> Tensor",
    mixing.mix,
    lambda values, gaps, back, distribution: values.new_empty(values.shape),
    _gradient,
    saves(2),
)
