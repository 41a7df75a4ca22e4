"""The kernel of `sparsewire.sorting.order_loss` as an operator of `torch.library`."""

from typing import Any

import torch
from torch import Tensor

from sparsewire.kernels import again, last_pass, operator
from sparsewire.sorting.order_loss._triton import kernels


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.bend = inputs
    ctx.save_for_backward(*tensors, output[1])
    ctx.mark_non_differentiable(output[1])


def _gradient(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, None, None]:
    from sparsewire.sorting.order_loss import cut_losses

    keys, groups, slopes = ctx.saved_tensors
    if last_pass(grad):
        return grad.unsqueeze(-1) * slopes, None, None
    (to_keys,) = again(lambda keys: [cut_losses(keys, groups, True, ctx.bend)], [keys], [grad])
    return to_keys, None, None


order_cuts = operator(
    "order_cuts(Tensor keys, Tensor groups, float bend) -> (Tensor, Tensor)",
    kernels.order_cuts,
    lambda keys, groups, bend: (keys.new_empty(len(keys)), torch.empty_like(keys)),
    _gradient,
    _setup,
)
