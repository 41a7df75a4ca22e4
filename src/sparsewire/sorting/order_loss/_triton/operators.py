"""The kernel of `sparsewire.sorting.order_loss` as an operator of `torch.library`."""

from typing import Any

import torch
from torch import Tensor

from sparsewire.kernels import last_pass, operator
from sparsewire.sorting.order_loss._triton import kernels


def _fake(keys: Tensor, groups: Tensor, bend: float) -> tuple[Tensor, Tensor]:
    del groups, bend
    return keys.new_empty(len(keys)), torch.empty_like(keys)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.bend = inputs
    ctx.save_for_backward(*tensors, output[1])
    ctx.mark_non_differentiable(output[1])


def _gradient(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor, None, None]:
    keys, groups, slopes = ctx.saved_tensors
    if not last_pass(grad):
        slopes = _slopes(keys, groups, ctx.bend)
    return grad.unsqueeze(-1) * slopes, None, None


def _slopes(keys: Tensor, groups: Tensor, bend: float) -> Tensor:
    """Recompute the slopes in plain PyTorch, which can be differentiated."""
    from sparsewire.sorting.order_loss import cut_losses

    with torch.enable_grad():
        # A view, so that gradients that reach the keys by other paths are not counted here.
        keys = keys.view_as(keys) if keys.requires_grad else keys.detach().requires_grad_()
        losses = cut_losses(keys, groups, True, bend)
        (slopes,) = torch.autograd.grad(losses.sum(), keys, create_graph=True)
    return slopes


order_cuts = operator(
    "order_cuts(Tensor keys, Tensor groups, float bend) -> (Tensor, Tensor)",
    kernels.order_cuts,
    _fake,
    _gradient,
    _setup,
)
