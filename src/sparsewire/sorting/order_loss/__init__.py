"""A loss for keys whose order is known: how likely quicksort is to find it."""

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsewire.annotations import Float
from sparsewire.checks import (
    check_choice,
    check_count,
    check_devices,
    check_floating,
    check_range,
)
from sparsewire.engines import chosen, kernels_run
from sparsewire.sorting._rows import sort_rows
from sparsewire.sorting.halves import log_symmetric
from sparsewire.sorting.order_loss._fourier import CutLosses

_FAR = 1e34  # from where on keys make no difference
_LONGEST = 128  # elements of a set, up to which a kernel does it


def order_loss(
    keys: Float[Tensor, "*b n"],
    target: Tensor,
    *,
    temperature: float = 1.0,
    bend: float = math.inf,
    reach: int | None = None,
    ties: bool = True,
    reduction: Literal["mean", "sum", "none"] = "mean",
) -> Float[Tensor, "*l"]:
    """Return the negative log-likelihood that quicksort brings the keys into their known order.

    Quicksort with the right order as its guide cuts a bucket of elements into halves. A half S of u
    elements is chosen with probability Π_{i ∈ S} w_i / e_u(w), where w_i = exp(key_i / temperature)
    and e_u is the elementary symmetric polynomial; the loss is minus the logarithm of the
    probability that all cuts are right. Without ties and bend it is convex in the keys. It needs
    nothing but the order, and its gradient vanishes only where the order is certain. It costs
    O(n √n), up to 128 elements on a GPU O(n²), and with a reach O(n · reach²).

    Args:
        keys: The last dimension is put in order.
        target: Numbers in whose order the keys should be, the smallest first, of the shape of the
            keys; any dtype.
        temperature: Distance of two keys that makes their order certain by a factor of e.
        bend: Loss of a cut from where on more of it counts less: c is bend · log(1 + c / bend).
            Then a few keys that cannot be told, such as those of digits that are read wrong, do not
            keep all others close together. Infinity leaves the likelihood as it is.
        reach: How many elements on each side of a cut take part in it: those whose targets are
            nearest to it. 1 compares neighbours alone, which tells near things apart sooner and
            suits very many elements; None lets all of a bucket take part.
        ties: Whether equal targets may stand in any order. Without ties in the targets, False gives
            the same for half the work.
        reduction: Of the losses of a batch.

    Examples:
        >>> order_loss(torch.tensor([1.0, 2.0]), torch.tensor([10, 20]))  # log(1 + exp(-1))
        tensor(0.3133)
        >>> order_loss(torch.tensor([1.0, 2.0]), torch.tensor([7, 7]))
        tensor(0.)
        >>> far = torch.tensor([1000.0, 2.0])
        >>> order_loss(far, torch.tensor([1, 2])), order_loss(far, torch.tensor([1, 2]), bend=1.0)
        (tensor(998.), tensor(6.9068))
        >>> order_loss(torch.tensor([1.0, 2.0, 3.0]), torch.arange(3), reach=1)  # both neighbours
        tensor(0.6265)
    """
    check_floating("keys", keys)
    check_choice("reduction", reduction, ("mean", "sum", "none"))
    check_range("temperature", temperature, 1e-30, 1e30)
    check_range("bend", bend, 1e-6, math.inf)
    if reach is not None:
        check_count("reach", reach, least=1)
    if not isinstance(target, Tensor) or target.shape != keys.shape or not keys.dim():
        got = tuple(target.shape) if isinstance(target, Tensor) else type(target).__name__
        raise ValueError(f"target must have the shape of keys, {tuple(keys.shape)}; got {got}")
    check_devices(keys=keys, target=target)
    wide = keys.to(torch.promote_types(keys.dtype, torch.float32)) / temperature
    wide = wide.clamp(-_FAR, _FAR)
    # Equal targets come in the order of their keys: they need not be moved.
    _, first = sort_rows(wide.detach())
    _, second = sort_rows(target.gather(-1, first))
    order = first.gather(-1, second)
    wide, goal = wide.gather(-1, order), target.gather(-1, order)
    if reach is not None and reach < keys.shape[-1] - 1:
        losses = cut_losses(wide, goal, ties, bend, reach)
    elif _has_kernel(wide):
        losses = _by_kernel(wide, goal, bend)
    elif _has_closed_form(wide):
        losses = CutLosses.apply(wide, goal, ties, bend, cut_losses)
    else:
        losses = cut_losses(wide, goal, ties, bend)
    losses = losses.to(keys.dtype)
    return losses if reduction == "none" else getattr(losses, reduction)()


def cut_losses(
    keys: Float[Tensor, "*b n"],
    goal: Tensor,
    ties: bool,
    bend: float = math.inf,
    reach: int | None = None,
) -> Float[Tensor, "*b"]:
    """Return minus the log-probability that all cuts are right, of keys in their right order.

    Args:
        keys: In the right order, over the temperature.
        goal: Numbers that do not fall; equal ones may change places.
        ties: Whether to look for equal ones.
        bend: As in `order_loss`.
        reach: As in `order_loss`.
    """
    losses = keys.sum(-1) * 0
    alike = zip(_windows(keys, reach).items(), _windows(goal, reach).values(), strict=True)
    for ((_, lower), buckets), goals in alike:
        # With a reach most cuts are of one kind, whatever their level, and are made at once.
        cuts = _cut_loss(torch.cat(buckets, dim=-2), torch.cat(goals, dim=-2), lower, ties)
        losses = losses + _bent(cuts, bend).sum(-1)
    return losses


def _windows(x: Tensor, reach: int | None) -> dict[tuple[int, int], list[Tensor]]:
    """What takes part in each cut, by how many that are, and how many of them are below it."""
    n, size = int(x.shape[-1]), 2  # not a symbol: how many cuts there are hangs on it
    if reach == 1 and n > 1:  # between every two neighbours there is one cut
        return {(2, 1): [x.unfold(-1, 2, 1)]}
    found: dict[tuple[int, int], list[Tensor]] = {}
    while size < 2 * n:
        whole, lower = n - n % size, size // 2
        near = lower if reach is None else min(lower, reach)
        first, last = lower - near, lower + near
        if whole:
            buckets = x[..., :whole].unflatten(-1, (-1, size))[..., first:last]
            found.setdefault((2 * near, near), []).append(buckets)
        if n - whole > lower:
            rest = x[..., whole + first : whole + last].unsqueeze(-2)
            found.setdefault((int(rest.shape[-1]), near), []).append(rest)
        size *= 2
    return found


def _bent(losses: Tensor, bend: float) -> Tensor:
    # Rounding may leave less than nothing, of which there is no logarithm for a small bend.
    return losses if math.isinf(bend) else bend * torch.log1p(losses.clamp(min=0) / bend)


def _has_kernel(keys: Tensor) -> bool:
    n = keys.shape[-1]
    if keys.dtype != torch.float32 or not 2 <= n <= _LONGEST or not keys.numel():
        return False
    return kernels_run(keys.device) and not torch._C._are_functorch_transforms_active()


def _has_closed_form(keys: Tensor) -> bool:
    """Whether the Fourier sum takes these; it looks at numbers, which a trace or graph cannot."""
    return (
        keys.device.type in ("cpu", "cuda")
        and keys.numel() > 0
        and chosen() == "auto"
        and not torch.compiler.is_compiling()
        and not torch._C._are_functorch_transforms_active()
        and not (keys.is_cuda and torch.cuda.is_current_stream_capturing())
    )


def _by_kernel(keys: Tensor, goal: Tensor, bend: float) -> Tensor:
    from sparsewire.sorting.order_loss._triton.operators import order_cuts

    *batch, n = keys.shape
    changes = (goal[..., 1:] != goal[..., :-1]).cumsum(-1)
    groups = F.pad(changes, (1, 0)).int()
    losses, _ = order_cuts(keys.reshape(-1, n), groups.reshape(-1, n), bend)
    return losses.view(batch)


def _cut_loss(keys: Tensor, goal: Tensor, lower: int, ties: bool) -> Tensor:
    """Minus the log-probability that a bucket in its right order is cut after `lower` elements."""
    if keys.shape[-1] == 2:
        wrong = F.softplus(keys[..., 0] - keys[..., 1], threshold=40)
        return wrong.masked_fill(goal[..., 0] == goal[..., 1], 0) if ties else wrong
    odds = keys.mean(-1, keepdim=True).detach() - keys  # for the lower half
    every = log_symmetric(odds, lower)
    if not ties:
        return every - odds[..., :lower].sum(-1)
    # Those that are equal to both sides of the cut may change places.
    last, next_ = goal[..., lower - 1 : lower], goal[..., lower : lower + 1]
    free = (goal == last) & (last == next_)
    place = torch.arange(goal.shape[-1], device=goal.device)
    right = log_symmetric(odds, lower, free | (place >= lower), free | (place < lower))
    return every - right
