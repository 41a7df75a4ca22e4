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


def _gradient(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    from sparsewire.sorting.order_loss import cut_losses

    keys, groups, lengths, slopes = ctx.saved_tensors
    if last_pass(grad):
        return grad.unsqueeze(-1) * slopes, None, None, None

    def plain(keys: Tensor) -> list[Tensor]:
        return [cut_losses(keys, groups, True, ctx.bend, None, lengths)]

    (to_keys,) = again(plain, [keys], [grad])
    return to_keys, None, None, None


order_cuts = operator(
    "order_cuts(Tensor keys, Tensor groups, Tensor lengths, float bend) -> (Tensor, Tensor)",
    kernels.order_cuts,
    lambda keys, groups, lengths, bend: (keys.new_empty(len(keys)), torch.empty_like(keys)),
    _gradient,
    _setup,
)
