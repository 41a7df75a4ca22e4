"""A loss for keys whose order is known: the likelihood that quicksort sorts them so."""

import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsewire.annotations import Float
from sparsewire.checks import check_choice, check_count, check_devices, check_floating, check_range
from sparsewire.engines import Engine, dispatch
from sparsewire.sorting._rows import sort_rows
from sparsewire.sorting.halves import log_symmetric
from sparsewire.sorting.order_loss._fourier import CutLosses

_LARGEST_KEY = 1e34  # larger keys are clamped: sums of them must be finite
_LONGEST = 128  # elements that the kernel takes


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

    Quicksort, guided by the right order, cuts each bucket of elements into halves. A half S of u
    elements is chosen with probability Π_{i ∈ S} w_i / e_u(w), where w_i = exp(key_i / temperature)
    and e_u is the elementary symmetric polynomial; the loss is minus the logarithm of the
    probability that all cuts are right. Without ties and bend it is convex in the keys. It depends
    on the targets only through their order, and its gradient vanishes only where the keys are
    certain to be in that order. It costs O(n √n), up to 128 elements on a GPU O(n²), and with a
    reach O(n · reach²).

    Args:
        keys: Sorted along the last dimension.
        target: Values in whose order the keys should be, the smallest first, of the shape of the
            keys; of any dtype.
        temperature: Distance of two keys that makes their order certain by a factor of e.
        bend: Loss of a cut above which it grows only logarithmically: c becomes
            bend · log(1 + c / bend). A few keys that cannot be predicted, such as those of digits
            that are read wrongly, then do not keep all others close together. Infinity leaves the
            likelihood as it is.
        reach: Number of elements on each side of a cut that take part in it: those whose targets
            are nearest to it. With 1 only neighbours are compared, which separates near elements
            sooner and suits very many elements; None lets the whole bucket take part.
        ties: Whether equal targets may come in any order. If not, the keys decide their order.
            Without equal targets, False gives the same loss for half the work.
        reduction: How the losses of a batch are reduced.

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
    wide = wide.clamp(-_LARGEST_KEY, _LARGEST_KEY)
    # Equal targets come in the order of their keys.
    _, first = sort_rows(wide.detach())
    _, second = sort_rows(target.gather(-1, first))
    order = first.gather(-1, second)
    wide, goal = wide.gather(-1, order), target.gather(-1, order)
    if reach is not None and reach >= keys.shape[-1] - 1:
        reach = None
    losses = dispatch(_ENGINES, wide.device, wide, goal, ties, bend, reach).to(keys.dtype)
    return losses if reduction == "none" else getattr(losses, reduction)()


def cut_losses(
    keys: Tensor, goal: Tensor, ties: bool, bend: float = math.inf, reach: int | None = None
) -> Tensor:
    """Return minus the log-probability that all cuts are right: the specification.

    The keys are divided by the temperature, and in the order of their targets, the goal.
    """
    losses = keys.sum(-1) * 0
    windows = zip(_windows(keys, reach).items(), _windows(goal, reach).values(), strict=True)
    for ((_, lower), buckets), goals in windows:
        # With a reach most cuts have windows of one size, on all levels, and are computed at once.
        cuts = _cut_loss(torch.cat(buckets, dim=-2), torch.cat(goals, dim=-2), lower, ties)
        losses = losses + _bent(cuts, bend).sum(-1)
    return losses


def _windows(x: Tensor, reach: int | None) -> dict[tuple[int, int], list[Tensor]]:
    """The elements around each cut, grouped by their number and by how many are below the cut."""
    n, size = int(x.shape[-1]), 2  # a plain number, since the number of levels depends on it
    if reach == 1 and n > 1:  # there is one cut between every two neighbours
        return {(2, 1): [x.unfold(-1, 2, 1)]}
    windows: dict[tuple[int, int], list[Tensor]] = {}
    while size < 2 * n:
        whole, lower = n - n % size, size // 2
        near = lower if reach is None else min(lower, reach)
        first, last = lower - near, lower + near
        if whole:
            buckets = x[..., :whole].unflatten(-1, (-1, size))[..., first:last]
            windows.setdefault((2 * near, near), []).append(buckets)
        if n - whole > lower:
            rest = x[..., whole + first : whole + last].unsqueeze(-2)
            windows.setdefault((int(rest.shape[-1]), near), []).append(rest)
        size *= 2
    return windows


def _bent(losses: Tensor, bend: float) -> Tensor:
    # Rounding may leave negative losses, which have no logarithm for a small bend.
    return losses if math.isinf(bend) else bend * torch.log1p(losses.clamp(min=0) / bend)


def _cut_loss(keys: Tensor, goal: Tensor, lower: int, ties: bool) -> Tensor:
    """Minus the log-probability that a bucket in the right order is cut after `lower` elements."""
    if keys.shape[-1] == 2:
        wrong = F.softplus(keys[..., 0] - keys[..., 1], threshold=40)
        return wrong.masked_fill(goal[..., 0] == goal[..., 1], 0) if ties else wrong
    odds = keys.mean(-1, keepdim=True).detach() - keys  # for the lower half
    every = log_symmetric(odds, lower)
    if not ties:
        return every - odds[..., :lower].sum(-1)
    # Elements whose targets equal those on both sides of the cut may be on either side.
    last, next_ = goal[..., lower - 1 : lower], goal[..., lower : lower + 1]
    free = (goal == last) & (last == next_)
    place = torch.arange(goal.shape[-1], device=goal.device)
    right = log_symmetric(odds, lower, free | (place >= lower), free | (place < lower))
    return every - right


def _by_kernel(keys: Tensor, goal: Tensor, ties: bool, bend: float, _: None) -> Tensor:
    from sparsewire.sorting.order_loss._triton.operators import order_cuts

    *batch, n = keys.shape
    if ties:
        changes = (goal[..., 1:] != goal[..., :-1]).cumsum(-1)
        groups = F.pad(changes, (1, 0)).int()
    else:  # every element is a group of its own
        groups = torch.arange(n, dtype=torch.int32, device=keys.device).expand(keys.shape)
    losses, _ = order_cuts(keys.reshape(-1, n), groups.reshape(-1, n), bend)
    return losses.view(batch)


def _takes_whole(keys: Tensor, *call: Any) -> bool:
    """Whether whole buckets take part, outside `torch.func`."""
    whole = call[-1] is None and keys.numel() > 0
    return whole and not torch._C._are_functorch_transforms_active()


def _kernel_takes(keys: Tensor, *call: Any) -> bool:
    short = keys.dtype == torch.float32 and 2 <= keys.shape[-1] <= _LONGEST
    return short and _takes_whole(keys, *call)


def _fourier_takes(keys: Tensor, *call: Any) -> bool:
    """It inspects the values of the keys, which a trace or a captured graph does not allow."""
    if keys.device.type not in ("cpu", "cuda") or torch.compiler.is_compiling():
        return False
    captured = keys.is_cuda and torch.cuda.is_current_stream_capturing()
    return not captured and _takes_whole(keys, *call)


_ENGINES = (
    Engine("triton", _by_kernel, _kernel_takes),
    Engine("fourier", lambda *call: CutLosses.apply(*call[:-1], cut_losses), _fourier_takes),
    Engine("reference", cut_losses),
)
