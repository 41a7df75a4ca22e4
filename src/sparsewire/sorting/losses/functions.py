"""Losses of lists of scores, made of soft ranks and of soft choices of the k largest.

The last dimension is the list, all others are a batch, and each list has one loss. These arguments
mean the same in all of them:

- `mask`: a boolean tensor that broadcasts to the scores, True for valid elements. The others,
  padding, influence nothing and get no gradient.
- `weights`: how much each list counts, of the shape of the losses.
- `reduction`: `"none"` returns the losses; `"sum"` their weighted sum; `"mean"` divides it by the
  sum of the weights. A list without a valid element has the loss 0 and is left out of the mean.
- `temperature`: the difference of two scores at which their order becomes doubtful.

Half precision is computed in float32. Scores are clamped to ±1e30.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sparsewire.annotations import Float
from sparsewire.checks import check_count, check_integer, check_range
from sparsewire.sorting._lists import (
    Reduction,
    check_like,
    check_list,
    reduced,
    valid_elements,
    wide,
)
from sparsewire.sorting.soft_sort import Tails, soft_rank, soft_topk_mask

_LEAST, _MOST = 1e-30, 1e30  # temperatures
_SHARE = 0.1  # of the mean loss: the temperature of the trimmed loss


def spearman_loss(
    scores: Float[Tensor, "*b n"],
    target: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    tails: Tails = "heavy",
    mask: Tensor | None = None,
    weights: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Float[Tensor, "*l"]:
    """Return one minus Spearman's rank correlation of scores and targets, with soft ranks.

    With the soft ranks r of the scores, the ranks t of the targets (equal ones share their mean
    rank), and the sums of squares A = n (n² - 1) / 12 of n distinct ranks and B = Σ (t - mean)²,

        loss = 1 - (A + B - Σ (r - t)²) / (2 √(A B)),

    which is the textbook formula with ties, and without equal targets 6 Σ (r - t)² / (n (n² - 1)).
    At temperature 0 it is exact for distinct scores. It is 0 for lists that have no order: those
    with fewer than two valid elements, or with equal targets only. Soft ranks stay inside the range
    of the ranks, so it also asks scores to be apart, until their order is certain.

    Args:
        scores: Ranked along the last dimension.
        target: Values in whose order the scores should be, of the shape of the scores and of any
            dtype; only their order matters.
        temperature: See the module; a number, or a tensor with one for each list.
        tails: Of the soft ranks. With `"heavy"`, scores that are far from where they belong have a
            gradient; with `"light"` it falls by e with every temperature of distance, and ranks
            take a quarter of the time.
        mask: See the module.
        weights: See the module.
        reduction: See the module.

    Examples:
        >>> scores = torch.tensor([0.1, 5.0, 9.0])
        >>> spearman_loss(scores, torch.tensor([1, 2, 3]), temperature=0.0)
        tensor(0.)
        >>> spearman_loss(scores, torch.tensor([3, 2, 1]), temperature=0.0)
        tensor(2.)
    """
    check_list("scores", scores, reduction, target=target, mask=mask)
    check_like("target", target, "scores", scores)
    valid = valid_elements(mask, "scores", scores)
    given = wide(scores, valid)
    with torch.no_grad():
        present = torch.ones_like(given) if valid is None else valid.to(given.dtype)
        count = present.sum(-1)
        goal = _mean_ranks(target.double(), valid).to(given.dtype)
        middle = ((count - 1) / 2).unsqueeze(-1)
        distinct = count * (count.square() - 1) / 12
        tied = ((goal - middle).square() * present).sum(-1)
        scale = 2 * (distinct * tied).sqrt()
        ordered = scale > 0
        scale = torch.where(ordered, scale, 1)
    ranks = soft_rank(given, temperature=temperature, tails=tails, mask=valid)
    distance = ((ranks - goal).square() * present).sum(-1)
    losses = 1 - (distinct + tied - distance) / scale
    losses = losses.where(ordered, 0.0).to(scores.dtype)
    return reduced(losses, weights, reduction, None if valid is None else valid.any(-1))


def ndcg_loss(
    scores: Float[Tensor, "*b n"],
    target: Tensor,
    *,
    k: int | None = None,
    temperature: float | Tensor = 1.0,
    tails: Tails = "heavy",
    mask: Tensor | None = None,
    weights: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Float[Tensor, "*l"]:
    """Return one minus the normalised discounted cumulative gain (NDCG), with soft ranks.

    With the soft ranks r of the scores, the largest first and from 0,

        DCG = Σ (2^target - 1) / log₂(r + 2),

    which is divided by that of the right order. With a cutoff, each element also counts by the
    share with which it belongs to the k largest. It is 0 for lists without a positive target.

    Args:
        scores: Ranked along the last dimension, the largest first.
        target: Relevance, at least 0, of the shape of the scores and of any real dtype.
        k: Number of places that count; None for all.
        temperature: See the module; a number, or a tensor with one for each list.
        tails: Of the soft ranks. With `"heavy"`, scores that are far from where they belong have a
            gradient; with `"light"` it falls by e with every temperature of distance, and ranks
            take a quarter of the time.
        mask: See the module.
        weights: See the module.
        reduction: See the module.

    Examples:
        >>> relevance = torch.tensor([0, 2, 1])
        >>> ndcg_loss(torch.tensor([0.0, 8.0, 4.0]), relevance, temperature=0.0)
        tensor(0.)
        >>> ndcg_loss(torch.tensor([8.0, 0.0, 4.0]), relevance, temperature=0.0)
        tensor(0.4131)
    """
    check_list("scores", scores, reduction, target=target, mask=mask)
    check_like("target", target, "scores", scores)
    if k is not None:
        check_count("k", k, least=1)
    valid = valid_elements(mask, "scores", scores)
    given, n = wide(scores, valid), scores.shape[-1]
    with torch.no_grad():
        relevance = target.to(given.dtype)
        relevance = relevance if valid is None else relevance.where(valid, 0.0)
        # Only ratios of gains matter: divided by the power of the largest, none is infinite.
        most = relevance.amax(-1, keepdim=True) if n else relevance.sum(-1, keepdim=True)
        gains = torch.exp2(relevance - most) - torch.exp2(-most)
        places = torch.arange(n, device=scores.device, dtype=given.dtype)
        discount = 1 / torch.log2(places + 2)
        discount = discount if k is None else discount.where(places < k, 0.0)
        ideal = (gains.sort(-1, descending=True).values * discount).sum(-1)
        useful = ideal > 0
    how: dict[str, Any] = {"temperature": temperature, "tails": tails, "mask": valid}
    ranks = soft_rank(given, descending=True, **how)
    soft = gains / torch.log2(ranks + 2)
    if k is not None and k < n:
        soft = soft * soft_topk_mask(given, float(k), **how)
    losses = 1 - soft.sum(-1) / torch.where(useful, ideal, 1.0)
    losses = losses.where(useful, 0.0).to(scores.dtype)
    return reduced(losses, weights, reduction, None if valid is None else valid.any(-1))


def topk_cross_entropy(
    scores: Float[Tensor, "*b n"],
    target: Tensor,
    k: int | Sequence[float] | Tensor = 1,
    *,
    temperature: float = 1.0,
    mask: Tensor | None = None,
    weights: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Float[Tensor, "*l"]:
    """Return minus the logarithm of the share with which the label is among the k largest scores.

    The share of each class is that of `soft_topk_mask`: all of them sum to k. With probabilities of
    k = 1, 2, … the shares are averaged, as in Petersen et al. (Differentiable Top-k Classification
    Learning, 2022), whose shares come from a sorting network or from a relaxed sort. Here there is
    one threshold for each k, and the loss grows in proportion to the distance of the label's score
    below it, as cross-entropy does.

    Args:
        scores: Of the classes, in the last dimension.
        target: The label of each list, an index in int64, of the shape of the scores without their
            last dimension.
        k: How many of the largest scores may hold the label, or probabilities of 1, 2, …: a
            sequence or a tensor of at most as many as there are classes.
        temperature: See the module.
        mask: See the module: classes that are masked are not chosen, a label that is masked makes
            its list one without a valid element.
        weights: See the module.
        reduction: See the module.

    Examples:
        >>> scores = torch.tensor([[3.0, 2.0, -4.0]])
        >>> topk_cross_entropy(scores, torch.tensor([1]), k=1)  # the second place is wrong
        tensor(1.1944)
        >>> topk_cross_entropy(scores, torch.tensor([1]), k=2)  # and is right
        tensor(0.0215)
        >>> topk_cross_entropy(scores, torch.tensor([1]), k=[0.5, 0.5])
        tensor(0.4450)
    """
    check_list("scores", scores, reduction, target=target, mask=mask)
    check_integer("target", target)
    if target.shape != scores.shape[:-1]:
        raise ValueError(
            f"target must have one label for each list, {tuple(scores.shape[:-1])}; "
            f"got {tuple(target.shape)}"
        )
    check_range("temperature", temperature, _LEAST, _MOST)
    chances = _chances(k, scores.shape[-1])
    valid = valid_elements(mask, "scores", scores)
    given = wide(scores, valid).double()
    label = target.unsqueeze(-1)
    known = None if valid is None else valid.gather(-1, label).squeeze(-1)
    parts = [
        _log_share(given, label, size, temperature, valid) + math.log(chance)
        for size, chance in chances.items()
    ]
    losses = -torch.logsumexp(torch.stack(parts), 0)
    losses = losses if known is None else losses.where(known, 0.0)
    return reduced(losses.to(scores.dtype), weights, reduction, known)


def trimmed_loss(
    losses: Float[Tensor, "*b n"],
    keep: float = 0.9,
    *,
    temperature: float | Tensor | None = None,
    mask: Tensor | None = None,
    weights: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Float[Tensor, "*l"]:
    """Return the mean of the smallest losses of a batch: least trimmed squares, of any losses.

    Of n samples, k = keep · n are kept, each with a share m_i. The shares are those that minimise

        Σ m_i loss_i + T Σ (ψ(m_i) - ψ(k / n))    with Σ m_i = k,

    where ψ(m) = q log 2q - q, q = min(m, 1 - m). The minimum, divided by k, is the result. The
    shares are then those of `soft_topk_mask` for the k smallest losses, and they are the gradient
    of the sum: an outlier pulls with a share near 0, and no sample is pushed away. The result is
    between the mean of the k smallest losses, which it is at temperature 0, and the mean of all.

    Args:
        losses: Of the samples, which are the last dimension.
        keep: Share of the samples that are kept, above 0 and at most 1.
        temperature: Difference of two losses at which it becomes doubtful which of them is kept.
            None takes a tenth of the mean loss, as a constant for the gradient.
        mask: See the module.
        weights: See the module; a batch of samples is a list here.
        reduction: See the module.

    Examples:
        >>> errors = torch.tensor([0.1, 0.2, 0.0, 50.0])
        >>> trimmed_loss(errors, keep=0.75, temperature=0.0)
        tensor(0.1000)
        >>> trimmed_loss(errors, keep=1.0)  # all of them
        tensor(12.5750)
    """
    check_list("losses", losses, reduction, mask=mask)
    share = check_range("keep", keep, 0.0, 1.0)
    if share == 0:
        raise ValueError("keep must be above 0; got 0.0")
    valid = valid_elements(mask, "losses", losses)
    given = wide(losses, valid)
    everything = given.new_full(given.shape[:-1], given.shape[-1])
    count = everything if valid is None else valid.sum(-1)
    count = count.to(given.dtype)
    some = torch.where(count > 0, count, 1)
    if temperature is None:
        with torch.no_grad():
            temperature = _SHARE * given.abs().sum(-1) / some
    k = share * count
    mixed = soft_topk_mask(given, k, largest=False, temperature=temperature, mask=valid)
    heat = torch.as_tensor(temperature, dtype=given.dtype, device=given.device)
    heat = heat if heat.dim() == given.dim() - 1 else heat.squeeze(-1)
    doubt = _psi(mixed)
    doubt = (doubt if valid is None else doubt.where(valid, 0.0)).sum(-1)
    even = count * _psi(torch.tensor(share, dtype=given.dtype, device=given.device))
    means = ((mixed * given).sum(-1) + heat * (doubt - even)) / (share * some)
    empty = None if valid is None else valid.any(-1)
    return reduced(means.to(losses.dtype), weights, reduction, empty)


def _mean_ranks(target: Tensor, valid: Tensor | None) -> Tensor:
    """Return ranks from 0, the mean of those that equal targets share, and 0 for masked ones."""
    target = target if valid is None else target.where(valid, math.inf)
    ordered = target.sort(-1).values
    below, upto = (torch.searchsorted(ordered, target, right=right) for right in (False, True))
    if valid is None:
        return (below + upto - 1) / 2
    upto = torch.minimum(upto, valid.sum(-1, keepdim=True))  # a valid target may be infinite
    return ((below + upto - 1) / 2).where(valid, 0.0)


def _psi(share: Tensor) -> Tensor:
    """The integral of the quantiles of Laplace's distribution, from 0 to a share."""
    least = torch.finfo(share.dtype).tiny
    q = torch.minimum(share, 1 - share).clamp(min=least)
    return q * (2 * q).log() - q


def _chances(k: int | Sequence[float] | Tensor, n: int) -> dict[int, float]:
    """Return the sizes that are possible, with their probabilities."""
    if isinstance(k, int):
        if not 1 <= check_count("k", k) <= max(n, 1):
            raise ValueError(f"k must be 1 to {n}, the number of classes; got {k}")
        return {k: 1.0}
    chances = [float(chance) for chance in (k.tolist() if isinstance(k, Tensor) else k)]
    right = abs(sum(chances) - 1) < 1e-4 and min(chances, default=-1) >= 0 and len(chances) <= n
    if not right:
        raise ValueError(
            f"k must be an integer, or at most {n} probabilities that sum to 1; got {chances}"
        )
    return {size: chance for size, chance in enumerate(chances, start=1) if chance}


def _log_share(
    scores: Tensor, label: Tensor, k: int, temperature: float, valid: Tensor | None
) -> Tensor:
    """Return the logarithm of the label's share of the k largest, also where it underflows.

    The shares of two elements i, j below the threshold differ by exp((x_i - x_j) / T). So that of
    the label follows from that of the largest one below, which is hardly ever too small; if even
    that is, the threshold is in the middle between it and the smallest above.
    """
    shares = soft_topk_mask(scores, float(k), temperature=temperature, mask=valid)
    own, mine = shares.gather(-1, label).squeeze(-1), scores.gather(-1, label).squeeze(-1)
    above = own > 0.5
    below = (shares <= 0.5) if valid is None else (shares <= 0.5) & valid
    next_ = torch.where(below, scores.detach(), -math.inf).argmax(-1, keepdim=True)
    last = torch.where(shares > 0.5, scores.detach(), math.inf).argmin(-1, keepdim=True)
    best, share = (t.gather(-1, next_).squeeze(-1) for t in (scores, shares))
    apart = (scores.gather(-1, last).squeeze(-1) - best) / (2 * temperature)
    tiny = share < 1e-290
    near = torch.where(tiny, -apart - math.log(2), torch.where(tiny, 1.0, share).log())
    far = near + (mine - best) / temperature
    return torch.where(above, torch.where(above, own, 1.0).log(), far)
