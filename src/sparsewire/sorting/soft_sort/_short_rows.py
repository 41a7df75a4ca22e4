"""The kernels for short rows on a GPU as functions of autograd.

A second derivative is that of the reference, `sparsewire.sorting.soft_sort._soft_order`.
"""

import math
from typing import Any

import torch
from torch import Tensor

from sparsewire.engines import Name, concrete
from sparsewire.sorting.halves import Distribution


def is_plain(temperature: float | Tensor | None) -> bool:
    """Whether a temperature is the default one, or a positive and finite number."""
    number = isinstance(temperature, float | int)
    return temperature is None or (number and 0 < temperature < math.inf)


def are_short(keys: Tensor, temperature: float | Tensor | None) -> bool:
    """Whether the kernels for short rows take these keys."""
    if keys.dtype != torch.float32 or not keys.numel() or not concrete(keys):
        return False
    if not is_plain(temperature):
        return False
    from sparsewire.sorting.soft_sort._triton.short_rows import LONGEST

    return 2 <= keys.shape[-1] <= LONGEST


class ShortSort(torch.autograd.Function):
    """Numbers in soft order, or their ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        keys: Tensor,
        distribution: Distribution,
        temperature: float | None,
        descending: bool,
        ranks: bool,
    ) -> Tensor:
        from sparsewire.sorting.soft_sort._triton.mixing_library import NUMBERS
        from sparsewire.sorting.soft_sort._triton.short_sorts import forward

        ctx.save_for_backward(keys)
        ctx.number, ctx.options = NUMBERS[distribution], (temperature, descending, ranks)
        ctx.distribution = distribution
        rows = keys.reshape(-1, keys.shape[-1])
        return forward(rows, ctx.number, *ctx.options).view(keys.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        from sparsewire.sorting.soft_sort._triton.short_sorts import backward

        (grad,), (keys,) = grads, ctx.saved_tensors
        if torch.is_grad_enabled() or not concrete(grad):
            found = soft_again("triton", keys, grad, ctx.distribution, *ctx.options)
        else:
            rows, wishes = (t.reshape(-1, keys.shape[-1]) for t in (keys, grad))
            found = backward(wishes, rows, ctx.number, *ctx.options).view(keys.shape)
        return (found, None, None, None, None)


class ShortOrder(torch.autograd.Function):
    """Where sorted keys were, and the distances of neighbours over the temperature."""

    @staticmethod
    def forward(
        ctx: Any, keys: Tensor, temperature: float | None, descending: bool
    ) -> tuple[Tensor, Tensor]:
        from sparsewire.sorting.soft_sort._triton.short_rows import order

        ctx.save_for_backward(keys)
        ctx.options = temperature, descending
        index, gaps = order(keys.reshape(-1, keys.shape[-1]), *ctx.options)
        index, gaps = index.view(keys.shape), gaps.view(*keys.shape[:-1], -1)
        ctx.mark_non_differentiable(index)
        ctx.set_materialize_grads(False)
        return index, gaps

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        from sparsewire.sorting.soft_sort._triton.short_rows import order_backward

        grad, (keys,) = grads[1], ctx.saved_tensors
        if grad is None:
            return (None, None, None)
        if torch.is_grad_enabled() or not concrete(grad):
            found = _order_again(keys, grad, *ctx.options)
        else:
            rows, wishes = keys.reshape(-1, keys.shape[-1]), grad.reshape(-1, grad.shape[-1])
            found = order_backward(wishes, rows, *ctx.options).view(keys.shape)
        return (found, None, None)


def soft_again(
    engine: Name,
    keys: Tensor,
    grad: Tensor,
    distribution: Distribution,
    temperature: float | None,
    descending: bool,
    ranks: bool,
) -> Tensor:
    """The gradient of soft sorts by an engine that can be differentiated."""
    from sparsewire.sorting.soft_sort._soft_order import SoftOrder

    with torch.enable_grad():
        keys = keys.view_as(keys)
        order = SoftOrder(keys, descending, temperature, distribution, 2, engine)
        soft = order.ranks() if ranks else order.soft()
        (found,) = torch.autograd.grad(soft, keys, grad, create_graph=True)
    return found


def _order_again(keys: Tensor, grad: Tensor, temperature: float | None, descending: bool) -> Tensor:
    """The same of distances."""
    from sparsewire.sorting._rows import sort_rows
    from sparsewire.sorting.soft_sort._soft_order import gaps_between

    with torch.enable_grad():
        keys = keys.view_as(keys)
        found, _ = sort_rows(keys, descending)
        gaps = gaps_between(-found if descending else found, descending, temperature, finite=False)
        (found,) = torch.autograd.grad(gaps, keys, grad, create_graph=True)
    return found
