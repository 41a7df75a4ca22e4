"""The engine of `order_loss` without a kernel: probabilities of cuts by a Fourier sum.

A half of u elements is chosen with probability Π_{i ∈ S} w_i / e_u(w). Suppose instead that each
element is chosen independently, i with probability p_i = w_i / (w_i + e^c). Then e_u(w) is, up to
known factors, the probability that u elements are chosen: a coefficient of the polynomial
Π (1 − p_i + p_i z), which a sum over M roots of unity z gives for all elements at once. With c such
that u elements are chosen on average, this probability is not small, so rounding does no harm, and
the number of chosen elements is never far from u: M need not be larger than a few standard
deviations. Dividing the product by one factor gives the gradient.

All of this is computed in float64, whatever the dtype of the keys. The reference is `cut_losses` of
`sparsewire.sorting.order_loss`.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsewire.annotations import Bool, Float
from sparsewire.checks import cached
from sparsewire.kernels import again
from sparsewire.precision import without_autocast

_DEVIATIONS, _MORE = 8, 24  # of the number of chosen elements: float64 cannot hold the rest
_STEPS = 60  # of Newton's method, at most; it takes a handful
_LONGEST_STEP = 8.0
_FEW = 8  # elements of a bucket whose choices are enumerated
_GROUP = 4  # elements whose polynomials are multiplied before they are evaluated
_ELEMENTS = 2**21  # complex numbers in memory at a time


class CutLosses(torch.autograd.Function):
    """`losses_of` with its gradient; second derivatives are those of the reference."""

    @staticmethod
    def forward(
        ctx: Any,
        keys: Tensor,
        goal: Tensor,
        ties: bool,
        bend: float,
        reach: None,
        lengths: Tensor | None,
        plain: Callable[..., Tensor],
    ) -> Tensor:
        wanted = ctx.needs_input_grad[0]
        with without_autocast(keys):
            losses, slopes = losses_of(keys.double(), goal, ties, bend, wanted, lengths)
        slopes = None if slopes is None else slopes.to(keys.dtype)
        ctx.save_for_backward(keys, goal, slopes, lengths)
        ctx.options, ctx.plain = (ties, bend, reach), plain
        return losses.to(keys.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (keys, goal, slopes, lengths) = grads, ctx.saved_tensors
        if not torch.is_grad_enabled():
            return grad.unsqueeze(-1) * slopes, *[None] * 6

        def plain(keys: Tensor) -> list[Tensor]:
            return [ctx.plain(keys, goal, *ctx.options, lengths)]

        with without_autocast(keys):
            (to_keys,) = again(plain, [keys], [grad])
        return to_keys, *[None] * 6


def losses_of(
    keys: Float[Tensor, "*b n"],
    goal: Tensor,
    ties: bool,
    bend: float,
    wanted: bool = True,
    lengths: Tensor | None = None,
) -> tuple[Float[Tensor, "*b"], Float[Tensor, "*b n"] | None]:
    """Return the losses of `cut_losses`, and their gradient by the keys if `wanted`."""
    n, size = keys.shape[-1], 2
    valid = None
    if lengths is not None:
        valid = torch.arange(n, device=keys.device) < lengths.unsqueeze(-1)
    losses = keys.new_zeros(keys.shape[:-1])
    slopes = torch.zeros_like(keys) if wanted else None

    def add(start: int, end: int, size: int) -> None:
        nonlocal losses
        given = (keys, goal) if valid is None else (keys, goal, valid)
        buckets, *rest = (t[..., start:end].unflatten(-1, (-1, size)) for t in given)
        flat, goals, *among = (t.flatten(0, -2) for t in (buckets, *rest))
        cuts, slope = _cut(flat, goals, lower, ties, wanted, *among)
        if not math.isinf(bend):
            cuts = cuts.clamp(min=0)
            factor = bend / (bend + cuts)
            cuts = bend * torch.log1p(cuts / bend)
            slope = None if slope is None else slope * factor.unsqueeze(-1)
        losses = losses + cuts.view(*buckets.shape[:-1]).sum(-1)
        if slopes is not None and slope is not None:
            slopes[..., start:end] += slope.view(*keys.shape[:-1], end - start)

    while size < 2 * n:
        whole, lower = n - n % size, size // 2
        if whole:
            add(0, whole, size)
        if n - whole > lower:
            add(whole, n, n - whole)
        size *= 2
    return losses, slopes


def _cut(
    keys: Float[Tensor, "r m"],
    goal: Tensor,
    lower: int,
    ties: bool,
    wanted: bool,
    valid: Bool[Tensor, "r m"] | None = None,
) -> tuple[Float[Tensor, " r"], Float[Tensor, "r m"] | None]:
    """Minus the log-probability that buckets are cut after `lower` elements, and its gradient."""
    if valid is not None and not valid.all():
        return _cut_valid(keys, goal, lower, ties, wanted, valid)
    return _cut_among(keys, goal, lower, ties, wanted, None)


def _cut_valid(
    keys: Tensor, goal: Tensor, lower: int, ties: bool, wanted: bool, valid: Tensor
) -> tuple[Tensor, Tensor | None]:
    """The same of valid elements, which come first; buckets with too few for a cut count 0."""
    rows = valid[:, lower].nonzero().squeeze(-1)
    losses, slopes = keys.new_zeros(len(keys)), torch.zeros_like(keys) if wanted else None
    if len(rows):
        some = (keys[rows], goal[rows], lower, ties, wanted, valid[rows])
        losses[rows], slope = _cut_among(*some)
        if slopes is not None and slope is not None:
            slopes[rows] = slope
    return losses, slopes


def _cut_among(
    keys: Tensor, goal: Tensor, lower: int, ties: bool, wanted: bool, valid: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    if valid is None:
        center = keys.mean(-1, keepdim=True)
    else:
        center = (keys * valid).sum(-1, keepdim=True) / valid.sum(-1, keepdim=True)
    odds = center - keys  # for the lower half
    symmetric = _symmetric(odds, odds.new_full(odds.shape[:1], lower), valid, wanted)
    # The right choice is the first elements; its odds are compared with those of the likeliest.
    right = odds[:, :lower].sum(-1)
    losses = symmetric.beyond + (symmetric.largest - right)
    slopes = symmetric.chances
    if slopes is not None:
        slopes = slopes.neg()
        slopes[:, :lower] += 1
    if not ties:
        return losses, slopes
    # Elements whose targets equal those on both sides of the cut may be on either side.
    free = goal == goal[:, lower - 1 : lower]
    free = free if valid is None else free & valid
    rows = free[:, lower].nonzero().squeeze(-1)
    if len(rows):
        free = free[rows]
        columns = free.any(0).nonzero()
        first, end = int(columns[0]), int(columns[-1]) + 1
        free, odds = free[:, first:end], odds[rows, first:end]
        below = free[:, : lower - first].to(odds.dtype)
        tied = _symmetric(odds, below.sum(-1), free, wanted)
        losses[rows] -= tied.beyond + (tied.largest - (odds[:, : lower - first] * below).sum(-1))
        if slopes is not None and tied.chances is not None:
            tied.chances[:, : lower - first] -= below
            slopes[rows, first:end] += tied.chances
    return losses, slopes


class _Symmetric(NamedTuple):
    """The logarithm of an elementary symmetric polynomial, `largest` + `beyond`."""

    largest: Tensor  # sum of the largest log-odds
    beyond: Tensor  # the rest, which is not negative except for rounding
    chances: Tensor | None  # the gradient: the probability that each element is chosen


def _symmetric(odds: Tensor, counts: Tensor, among: Tensor | None, wanted: bool) -> _Symmetric:
    """The polynomial of each row of log-odds, with `counts` chosen among all or some elements."""
    by = _by_enumeration if odds.shape[-1] <= _FEW else _by_roots
    return by(odds, counts, among, wanted)


def _by_enumeration(odds: Tensor, counts: Tensor, among: Tensor | None, wanted: bool) -> _Symmetric:
    """Sum over all choices, of few elements."""
    m = odds.shape[-1]
    if among is None:
        choices = _choices(m, int(counts[0]), odds.device)
        products = odds @ choices
    else:
        choices = _every_choice(m, odds.device)
        wrong = choices.sum(0) != counts.unsqueeze(-1)
        wrong |= (~among).to(odds.dtype) @ choices > 0
        products = (odds @ choices).masked_fill_(wrong, -math.inf)
    largest = products.amax(-1)
    weights = (products - largest.unsqueeze(-1)).exp_()
    total = weights.sum(-1)
    chances = (weights @ choices.T) / total.unsqueeze(-1) if wanted else None
    return _Symmetric(largest, total.log(), chances)


@cached
def _choices(m: int, count: int, device: torch.device) -> Float[Tensor, "m s"]:
    """All choices of `count` of m elements, each a column of zeros and ones."""
    every = list(itertools.combinations(range(m), count))
    table = [[float(i in chosen) for chosen in every] for i in range(m)]
    return torch.tensor(table, dtype=torch.float64, device=device)


@cached
def _every_choice(m: int, device: torch.device) -> Float[Tensor, "m s"]:
    """All choices of any number of m elements."""
    return torch.cat([_choices(m, count, device) for count in range(m + 1)], dim=-1)


def _by_roots(odds: Tensor, counts: Tensor, among: Tensor | None, wanted: bool) -> _Symmetric:
    """From the number of independently chosen elements, which is `counts` on average."""
    among = torch.ones_like(odds, dtype=torch.bool) if among is None else among
    order = odds.masked_fill(~among, -math.inf).sort(dim=-1, descending=True).values
    taken = torch.arange(odds.shape[-1], device=odds.device) < counts.unsqueeze(-1)
    largest = order.masked_fill(~taken, 0).sum(-1)
    tilt = _tilt(odds, among, counts, order)
    away = odds - tilt
    p = torch.sigmoid(away) * among
    # The largest elements left out and the others chosen: large terms do not cancel.
    excess = order - tilt
    beyond = F.softplus(torch.where(taken, -excess, excess), threshold=40).sum(-1)
    deviation = float((p * (1 - p)).sum(-1).max().sqrt().nan_to_num())
    most = min(odds.shape[-1] + 1, math.ceil(_DEVIATIONS * deviation) + _MORE)
    roots = most | 1  # odd: at z = −1 a factor may be zero
    chance, chances = _fourier(p, counts, roots, wanted)
    return _Symmetric(largest, beyond + chance.log(), chances)


def _tilt(odds: Tensor, among: Tensor, counts: Tensor, order: Tensor) -> Tensor:
    """The number to subtract from log-odds so that about `counts` are chosen on average: (r, 1)."""
    above = order.gather(-1, (counts.long() - 1).clamp(min=0).unsqueeze(-1))
    below = order.gather(-1, counts.long().clamp(max=odds.shape[-1] - 1).unsqueeze(-1))
    below = torch.where(torch.isfinite(below), below, above - 1)
    tilt = above / 2 + below / 2
    for _ in range(_STEPS):
        p = torch.sigmoid(odds - tilt) * among
        excess = p.sum(-1, keepdim=True) - counts.unsqueeze(-1)
        variance = (p * (1 - p)).sum(-1, keepdim=True)
        wrong = excess.abs() > 0.1 + 0.3 * variance.sqrt()
        if not wrong.any():
            break
        step = (excess / variance.clamp(min=1e-9)).clamp(-_LONGEST_STEP, _LONGEST_STEP)
        tilt = torch.where(wrong, tilt + step, tilt)
    return tilt


def _fourier(
    p: Float[Tensor, "r m"], counts: Float[Tensor, " r"], roots: int, wanted: bool
) -> tuple[Float[Tensor, " r"], Float[Tensor, "r m"] | None]:
    """Return the probability of `counts` ones, and that of each element to be one given that."""
    like: Any = {"dtype": torch.float64, "device": p.device}
    angles = torch.arange(roots // 2 + 1, **like) * (2 * math.pi / roots)
    # Every root but 1 represents its conjugate, too.
    weight = torch.full_like(angles, 2.0 / roots)
    weight[0] = 1.0 / roots
    powers = torch.arange(_GROUP + 1, **like).unsqueeze(-1) * angles
    cosine, sine = powers.cos(), powers.sin()
    rows = max(1, _ELEMENTS // (p.shape[-1] * len(angles)))
    chance, chances = [], []
    for here, count in zip(p.split(rows), counts.split(rows), strict=True):
        table = _polynomials(here)
        values = torch.complex(table @ cosine, table @ sine)
        phase = -angles * count.unsqueeze(-1)
        terms = _product(values) * torch.polar(weight.expand_as(phase), phase)
        chance.append(terms.real.sum(-1))
        if not wanted:
            continue
        # Replace the factor f = 1 − p + p z by p z: p z / f = (p² + p (1 − p) z) / |f|².
        both = here * (1 - here)
        inverse = (both.unsqueeze(-1) * (2 * cosine[1] - 2)).add_(1).reciprocal_()
        turned = terms.real * cosine[1] - terms.imag * sine[1]
        parts = inverse @ torch.stack([terms.real, turned], dim=-1)
        ones = here * here * parts[..., 0] + both * parts[..., 1]
        chances.append(ones / chance[-1].unsqueeze(-1))
    return torch.cat(chance), torch.cat(chances) if wanted else None


def _polynomials(p: Float[Tensor, "r m"]) -> Float[Tensor, "r g 5"]:
    """Coefficients of 1, z, …, z⁴ of the products of 1 − p + p z over groups of four."""
    p = F.pad(p, (0, -p.shape[-1] % _GROUP)).unflatten(-1, (-1, _GROUP))
    (p, p_next), (q, q_next) = ((t[..., ::2], t[..., 1::2]) for t in (p, 1 - p))
    none, one, two = q * q_next, p * q_next + q * p_next, p * p_next
    (a, x), (b, y), (c, z) = none.unbind(-1), one.unbind(-1), two.unbind(-1)
    return torch.stack([a * x, a * y + b * x, a * z + b * y + c * x, b * z + c * y, c * z], dim=-1)


def _product(x: Tensor) -> Tensor:
    """Compute x.prod(1) pairwise."""
    while (m := x.shape[1]) > 1:
        half = m // 2
        left, right = x[:, :half], x[:, half : 2 * half]
        x = torch.cat([left * right, x[:, 2 * half :]], dim=1) if m % 2 else left * right
    return x[:, 0]
