"""`_mixing` for payloads of several features, which are mixed alike.

The weights are computed in the same way, once for each cut. The windows are matrices of four rows
and a column for each feature, and are multiplied as such.
"""

from typing import Any

import torch
from torch import Tensor

from sparsewire.annotations import Float
from sparsewire.precision import without_autocast
from sparsewire.sorting.halves import Distribution
from sparsewire.sorting.soft_sort._mixing import (
    Kept,
    Level,
    differentiable_gradient,
    gaps_gradient,
    levels_of,
    weigh,
)


class MixPayload(torch.autograd.Function):
    """`mix_payload` with a gradient of its own; autograd computes second derivatives."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gaps: Tensor, back: bool, distribution: Distribution
    ) -> Tensor:
        ctx.save_for_backward(x, gaps)
        ctx.options, ctx.kept = (back, distribution), Kept()
        with without_autocast(x):
            return mix_payload(x, gaps, back, distribution, ctx.kept)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (x, gaps) = grads, ctx.saved_tensors
        with without_autocast(x):
            if torch.is_grad_enabled():
                found = differentiable_gradient(mix_payload, x, gaps, grad, *ctx.options)
            else:
                found = _gradient(grad, gaps, ctx.kept, *ctx.options)
        return (*found, None, None)


def mix_payload(
    x: Float[Tensor, "b n f"],
    gaps: Float[Tensor, "b g"],
    back: bool,
    distribution: Distribution,
    found: Kept | None = None,
) -> Float[Tensor, "b n f"]:
    """Mix an ordered payload by all cuts, or by their transposes in the other order.

    Args:
        x: The payload; n is a power of two.
        gaps: Distances of neighbours in order, over the temperature.
        back: Whether by the transposes.
        distribution: As in `log_odds`.
        found: Takes what a gradient needs.
    """
    found = Kept() if found is None else found
    weigh(gaps, distribution, found)
    matrices = found.matrices.permute(2, 3, 0, 1)
    taken = []
    if back:
        x, found.apart = _swap(x, found.swaps)
    else:
        x = x.clone()
    for level in levels_of(int(x.shape[1]), back):
        four, matrix = _four(x, level), _of(matrices, level)
        taken.append(now := four.clone(memory_format=torch.contiguous_format))
        four.copy_((matrix.mT if back else matrix) @ now)
    if not back:
        x, found.apart = _swap(x, found.swaps)
    found.windows = torch.cat(taken if back else taken[::-1], dim=1) if taken else x.new_empty(0)
    return x


def _gradient(
    grad: Tensor, gaps: Tensor, found: Kept, back: bool, distribution: Distribution
) -> tuple[Tensor, Tensor]:
    """From the gradient of what is mixed to those of payload and gaps."""
    matrices = found.matrices.permute(2, 3, 0, 1)
    grad, difference = (grad.clone(), grad) if back else _swap(grad, found.swaps)
    wishes = torch.empty_like(found.windows)
    for level in levels_of(int(grad.shape[1]), not back):
        four, matrix = _four(grad, level), _of(matrices, level)
        wish = _of(wishes, level).copy_(four)
        four.copy_((matrix if back else matrix.mT) @ wish)
    if back:
        grad, difference = _swap(grad, found.swaps)
    slopes = found.matrices
    if wishes.numel():
        # To go back is to apply the transpose: what came in and the wish change roles.
        places, elements = (found.windows, wishes) if back else (wishes, found.windows)
        slopes = (places @ elements.mT).permute(2, 3, 0, 1)
    to_swaps = -(difference * found.apart).sum(-1)
    return grad, gaps_gradient(gaps, slopes, to_swaps, found, distribution)


def _four(x: Tensor, level: Level) -> Tensor:
    """The elements around each cut, in place: (b, cuts, 4, f)."""
    return x.narrow(1, level.start, 4 * level.number).unflatten(1, (-1, 4))


def _of(cuts: Tensor, level: Level) -> Tensor:
    """What belongs to the cuts of a level, of (b, cuts, …)."""
    return cuts.narrow(1, level.first, level.number)


def _swap(x: Tensor, swaps: Tensor) -> tuple[Tensor, Tensor]:
    """Mix buckets of two; also return their differences."""
    low, high = x.unflatten(1, (-1, 2)).unbind(2)
    apart = high - low
    moved = apart * swaps.unsqueeze(-1)
    return torch.stack([low + moved, high - moved], dim=2).flatten(1, 2), apart
