"""A loss for keys whose order is known: the likelihood that quicksort sorts them so."""

import itertools
import math
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsewire.annotations import Float
from sparsewire.checks import check_count, check_range
from sparsewire.engines import Engine, concrete, dispatch
from sparsewire.sorting._lists import Reduction, check_like, check_list, reduced, valid_elements
from sparsewire.sorting._rows import sort_rows
from sparsewire.sorting.halves import log_symmetric
from sparsewire.sorting.order_loss._fourier import CutLosses

Ties = bool | Literal["exact"]

_LARGEST_KEY = 1e34  # larger keys are clamped: sums of them must be finite
_LONGEST = 128  # elements that the kernel takes
_MOST_ORDERS = 1000  # of equal targets, which are enumerated


def order_loss(
    keys: Float[Tensor, "*b n"],
    target: Tensor,
    *,
    temperature: float = 1.0,
    bend: float = math.inf,
    reach: int | None = None,
    ties: Ties = True,
    mask: Tensor | None = None,
    weights: Tensor | None = None,
    reduction: Reduction = "mean",
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
        ties: How equal targets are treated. True: any choice among them at a cut is right. What
            is below the cut then continues in the order of the keys, the least likely of the right
            ways, so the loss is at least minus the logarithm of the probability of all right orders
            together, and often more. "exact" computes that probability, from every right order: at
            most 1,000 in a list, without bend and reach, and not while a graph is traced. False:
            equal targets must come in the order of their keys; without equal targets, this gives
            the same loss as True for half the work.
        mask: A boolean tensor that broadcasts to the keys, True for valid elements. The others,
            padding, influence nothing and get no gradient.
        weights: How much each list counts, of the shape of the losses.
        reduction: `"none"` returns the losses; `"sum"` their weighted sum; `"mean"` divides it by
            the sum of the weights. A list without a valid element has the loss 0 and is left out of
            the mean.

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
        >>> padded = torch.tensor([1.0, 2.0, 5.0])
        >>> order_loss(padded, torch.tensor([10, 20, 0]), mask=torch.tensor([True, True, False]))
        tensor(0.3133)
    """
    check_list("keys", keys, reduction, target=target, mask=mask)
    check_range("temperature", temperature, 1e-30, 1e30)
    check_range("bend", bend, 1e-6, math.inf)
    if reach is not None:
        check_count("reach", reach, least=1)
    check_like("target", target, "keys", keys)
    _check_ties(ties, bend, reach, keys)
    valid = valid_elements(mask, "keys", keys)
    wide = keys.to(torch.promote_types(keys.dtype, torch.float32)) / temperature
    wide = wide if valid is None else wide.where(valid, 0.0)
    wide = wide.clamp(-_LARGEST_KEY, _LARGEST_KEY)
    order = _order(wide.detach(), target, valid)
    wide, goal = wide.gather(-1, order), target.gather(-1, order)
    lengths = None if valid is None else valid.sum(-1)
    if reach is not None and reach >= keys.shape[-1] - 1:
        reach = None
    if ties == "exact":
        losses = _exact_losses(wide, goal, lengths)
    else:
        losses = dispatch(_ENGINES, wide.device, wide, goal, ties, bend, reach, lengths)
    known = None if lengths is None else lengths > 0
    return reduced(losses.to(keys.dtype), weights, reduction, known)


def _check_ties(ties: object, bend: float, reach: int | None, keys: Tensor) -> None:
    if not (isinstance(ties, bool) or ties == "exact"):
        raise ValueError(f"ties must be True, False or 'exact'; got {ties!r}")
    if ties == "exact" and not (math.isinf(bend) and reach is None):
        raise ValueError("ties must be True or False with a bend or a reach; got 'exact'")
    if ties == "exact" and not concrete(keys):
        raise ValueError(
            "ties must be True or False for keys that are traced or transformed; got 'exact'"
        )


def _order(keys: Tensor, target: Tensor, valid: Tensor | None) -> Tensor:
    """Places of the elements by target, equal ones by key, and masked ones at the end."""
    _, order = sort_rows(keys)
    _, second = sort_rows(target.gather(-1, order))
    order = order.gather(-1, second)
    if valid is None:
        return order
    _, third = sort_rows((~valid).gather(-1, order).to(torch.uint8))
    return order.gather(-1, third)


def _exact_losses(keys: Tensor, goal: Tensor, lengths: Tensor | None) -> Tensor:
    """Minus the log-probability of all orders in which no target is above a later one."""
    *batch, n = keys.shape
    if n < 2 or not keys.numel():
        return keys.sum(-1) * 0
    flat = keys.reshape(-1, n)
    same = (goal[..., 1:] == goal[..., :-1]).reshape(-1, n - 1)
    if lengths is not None:
        lengths = lengths.reshape(-1)
        same = same & (torch.arange(1, n, device=keys.device) < lengths.unsqueeze(-1))
    patterns, which = same.unique(dim=0, return_inverse=True)
    found = keys.new_zeros(len(flat))
    for number, pattern in enumerate(patterns.tolist()):
        orders = torch.tensor(_orders(pattern), device=keys.device)
        rows = (which == number).nonzero().squeeze(-1)
        arranged = flat[rows][:, orders]  # (r, o, n)
        places = torch.arange(n, device=keys.device).expand(arranged.shape)
        counts = None if lengths is None else lengths[rows].unsqueeze(-1).expand(arranged.shape[:2])
        each = dispatch(_ENGINES, keys.device, arranged, places, False, math.inf, None, counts)
        found = found.index_copy(0, rows, -(-each).logsumexp(-1))
    return found.view(batch)


def _orders(same: list[bool]) -> list[list[int]]:
    """All orders of elements that only change places with equal ones, their neighbours."""
    groups = [[0]]
    for place, equal in enumerate(same, start=1):
        groups = [*groups[:-1], [*groups[-1], place]] if equal else [*groups, [place]]
    if (count := math.prod(math.factorial(len(group)) for group in groups)) > _MOST_ORDERS:
        raise ValueError(
            f"ties must be True or False where more than {_MOST_ORDERS:,} orders are right; "
            f"got 'exact' for a list with {count:,}"
        )
    choices = itertools.product(*map(itertools.permutations, groups))
    return [list(itertools.chain(*choice)) for choice in choices]


def cut_losses(
    keys: Tensor,
    goal: Tensor,
    ties: bool,
    bend: float = math.inf,
    reach: int | None = None,
    lengths: Tensor | None = None,
) -> Tensor:
    """Return minus the log-probability that all cuts are right: the specification.

    The keys are divided by the temperature, and in the order of their targets, the goal. The
    lengths are the numbers of valid elements, which come first; without them all are valid.
    """
    losses = keys.sum(-1) * 0
    parts = [_windows(x, reach) for x in (keys, goal)]
    if lengths is not None:
        valid = torch.arange(keys.shape[-1], device=keys.device) < lengths.unsqueeze(-1)
        parts.append(_windows(valid, reach))
    for size, lower in parts[0]:
        # With a reach most cuts have windows of one size, on all levels, and are computed at once.
        buckets, *rest = (torch.cat(part[size, lower], dim=-2) for part in parts)
        cuts = _cut_loss(buckets, rest[0], lower, ties, *rest[1:])
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


def _cut_loss(
    keys: Tensor, goal: Tensor, lower: int, ties: bool, valid: Tensor | None = None
) -> Tensor:
    """Minus the log-probability that a bucket in the right order is cut after `lower` elements."""
    if keys.shape[-1] == 2:
        wrong = F.softplus(keys[..., 0] - keys[..., 1], threshold=40)
        wrong = wrong if valid is None else wrong.where(valid[..., 1], 0)
        return wrong.masked_fill(goal[..., 0] == goal[..., 1], 0) if ties else wrong
    if valid is None:
        return _among(keys, goal, lower, ties, None)
    # Without an element above the cut there is nothing to decide, but all must stay finite.
    cut = valid[..., lower]
    return _among(keys, goal, lower, ties, valid | ~cut.unsqueeze(-1)).where(cut, 0)


def _among(keys: Tensor, goal: Tensor, lower: int, ties: bool, valid: Tensor | None) -> Tensor:
    center = keys.mean(-1, keepdim=True).detach()
    if valid is not None:
        count = valid.sum(-1, keepdim=True)
        center = keys.where(valid, 0).sum(-1, keepdim=True).detach() / count
    odds = center - keys  # for the lower half
    every = log_symmetric(odds, lower, None, valid)
    if not ties:
        return every - odds[..., :lower].sum(-1)
    # Elements whose targets equal those on both sides of the cut may be on either side.
    last, next_ = goal[..., lower - 1 : lower], goal[..., lower : lower + 1]
    free = (goal == last) & (last == next_)
    free = free if valid is None else free & valid
    place = torch.arange(goal.shape[-1], device=goal.device)
    right = log_symmetric(odds, lower, free | (place >= lower), free | (place < lower))
    return every - right


def _by_kernel(
    keys: Tensor, goal: Tensor, ties: bool, bend: float, _: None, lengths: Tensor | None
) -> Tensor:
    from sparsewire.sorting.order_loss._triton.operators import order_cuts

    *batch, n = keys.shape
    if ties:
        changes = (goal[..., 1:] != goal[..., :-1]).cumsum(-1)
        groups = F.pad(changes, (1, 0)).int()
    else:  # every element is a group of its own
        groups = torch.arange(n, dtype=torch.int32, device=keys.device).expand(keys.shape)
    counts = keys.new_full(batch, n) if lengths is None else lengths
    flat = (keys.reshape(-1, n), groups.reshape(-1, n), counts.reshape(-1).int())
    losses, _ = order_cuts(*flat, bend)
    return losses.view(batch)


def _takes_whole(keys: Tensor, *call: Any) -> bool:
    """Whether whole buckets take part, outside `torch.func`."""
    reach = call[3]
    whole = reach is None and keys.numel() > 0
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
    Engine("fourier", lambda *call: CutLosses.apply(*call, cut_losses), _fourier_takes),
    Engine("reference", cut_losses),
)
