"""What all losses of lists share: checked arguments, counts of valid elements, reduction."""

from typing import Literal, get_args

import torch
from torch import Tensor

from sparsewire.annotations import Bool, Float
from sparsewire.checks import check_choice, check_devices, check_floating

Reduction = Literal["mean", "sum", "none"]
LARGEST = 1e30
"""Larger scores are clamped: their differences must be finite."""


def check_list(name: str, x: Tensor, reduction: str, **others: Tensor | None) -> None:
    """Refuse scores that are no lists, or a reduction that is unknown."""
    check_floating(name, x)
    if not x.dim():
        raise ValueError(f"{name} must have at least one dimension, that of the list; got ()")
    check_choice("reduction", reduction, get_args(Reduction))
    tensors = {key: t for key, t in others.items() if isinstance(t, Tensor)}
    check_devices(**{name: x, **tensors})


def check_like(name: str, tensor: object, owner: str, x: Tensor) -> None:
    """Refuse what is not a tensor of the shape of the scores."""
    if not isinstance(tensor, Tensor) or tensor.shape != x.shape:
        got = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
        raise ValueError(f"{name} must have the shape of {owner}, {tuple(x.shape)}; got {got}")


def valid_elements(mask: Tensor | None, owner: str, x: Tensor) -> Bool[Tensor, "*b n"] | None:
    """Return the mask in the shape of the scores."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"mask must be a boolean tensor, True for valid elements; got {got}")
    try:
        return mask.expand(x.shape)
    except RuntimeError:
        raise ValueError(
            f"mask must broadcast to the shape of {owner}, {tuple(x.shape)}; "
            f"got {tuple(mask.shape)}"
        ) from None


def wide(x: Float[Tensor, "*b"], mask: Tensor | None) -> Float[Tensor, "*b"]:
    """Return scores in float32 at least, clamped, with 0 for masked ones."""
    given = x.to(torch.promote_types(x.dtype, torch.float32))
    given = given if mask is None else given.where(mask, 0.0)
    return given.clamp(-LARGEST, LARGEST)


def reduced(
    losses: Float[Tensor, "*b"],
    weights: Tensor | None,
    reduction: Reduction,
    any_valid: Bool[Tensor, "*b"] | None,
) -> Float[Tensor, "*r"]:
    """Reduce the losses of lists, of which those without a valid element count nothing.

    Args:
        losses: One for each list.
        weights: How much each list counts; None for all the same.
        reduction: `"mean"` divides the sum by that of the weights of lists with a valid element.
        any_valid: Which lists have a valid element; None for all.
    """
    if weights is not None:
        weights = _list_weights(weights, losses)
        losses = losses * weights
    if any_valid is not None:
        losses = losses.where(any_valid, 0.0)
    if reduction == "none":
        return losses
    if reduction == "sum" or (weights is None and any_valid is None):
        return losses.sum() if reduction == "sum" else losses.mean()
    counted = torch.ones_like(losses) if weights is None else weights
    total = (counted if any_valid is None else counted.where(any_valid, 0.0)).sum()
    return losses.sum() / torch.where(total == 0, 1.0, total)


def _list_weights(weights: Tensor, losses: Tensor) -> Tensor:
    if not isinstance(weights, Tensor) or weights.shape != losses.shape:
        got = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise ValueError(
            f"weights must have one number for each list, {tuple(losses.shape)}; got {got}"
        )
    check_devices(losses=losses, weights=weights)
    return weights.to(losses.dtype)
