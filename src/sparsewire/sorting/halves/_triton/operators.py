"""The kernels of exact half-permutations as operators of `torch.library`."""

from typing import Any

import torch
from torch import Tensor

from sparsewire.kernels import again, last_pass, operator
from sparsewire.sorting.halves._triton import kernels


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output, inputs[0])
    ctx.lower = inputs[1]


def _gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    run = kernels.half_backward if last_pass(grad) else half_backward
    return run(grad, *ctx.saved_tensors, ctx.lower), None


def _backward_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], inputs[2])
    ctx.lower = inputs[3]


def _backward_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    from sparsewire.sorting.halves import exact_half

    def first(given: Tensor, odds: Tensor) -> Any:
        return torch.autograd.grad(exact_half(odds, ctx.lower), odds, given, create_graph=True)

    to_grad, to_odds = again(first, ctx.saved_tensors, (grad,))
    # The matrix is a function of the odds, which therefore get all of its gradient.
    return to_grad, None, to_odds, None


half_backward = operator(
    "half_backward(Tensor grad, Tensor matrix, Tensor odds, SymInt lower) -> Tensor",
    kernels.half_backward,
    lambda grad, matrix, odds, lower: odds.new_empty(odds.shape),
    _backward_gradient,
    _backward_setup,
)
half = operator(
    "half(Tensor odds, SymInt lower) -> Tensor",
    kernels.half,
    lambda odds, lower: odds.new_empty(*odds.shape, odds.shape[-1]),
    _gradient,
    _setup,
)
