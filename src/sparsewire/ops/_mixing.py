"""The engine behind soft sorts of plain numbers: cuts with a reach of two, without matrices.

A cut between b and c, of the sorted neighbours a ≤ b ≤ c ≤ d, has six outcomes. Let α, β and δ be
the odds of a, b and d for the side where they do not belong; c's are β too, since the pivot lies
midway. Then the two that go up are

    cd with weight 1        bd with β²          ad with αβ
    bc with βδ              ac with αδ          ab with αβ²δ

over their sum: products of numbers from 0 to 1, with no exponential. The mixing is linear in a, b,
c and d, and told by sums of these weights; buckets of two are cut by one number each. Everything is
done for whole levels at once, on arrays of windows.

The reference is the product of matrices in `sparsewire.ops._soft_order`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sparsewire._typing import Float
from sparsewire.ops.halves import Squash, log_odds

# Distances from here on make no difference; their squares are in the range of float32.
_FAR = 1e15

Four = tuple[Tensor, Tensor, Tensor, Tensor]


def against(distance: Float[Tensor, "*b"], squash: Squash) -> Float[Tensor, "*b"]:
    """Return the odds of an element for the side where it does not belong: exp(-log_odds)."""
    t = distance.clamp(max=_FAR)
    if squash == "student":
        return (t + torch.addcmul(torch.ones_like(t), t, t).sqrt()).reciprocal().square()
    return torch.exp(-log_odds(t, squash))


def pair_weights(gaps: Float[Tensor, "*b g"], squash: Squash) -> Tensor:
    """Return the probability that the two of each bucket change places.

    Args:
        gaps: Distances of neighbours in order, over the temperature.
        squash: As in `log_odds`.
    """
    odds = against(gaps[..., ::2] / 2, squash).square()
    return odds / (1 + odds)


def four_weights(gaps: Float[Tensor, "*b g"], squash: Squash) -> tuple[Tensor, ...]:
    """Return the weights of all outcomes but the first, of all larger cuts.

    They are in every second gap; arguments as in `pair_weights`.
    """
    half = gaps[..., 1::2] / 2
    first = against(gaps[..., :-2:2] + half, squash)
    middle = against(half, squash)
    last = against(gaps[..., 2::2] + half, squash)
    square, ends = middle * middle, first * last
    weights = square, first * middle, middle * last, ends, ends * square
    total = 1 + square
    for weight in weights[1:]:
        total = total + weight
    share = total.reciprocal()
    return tuple(weight * share for weight in weights)


class Mix(torch.autograd.Function):
    """`mix` with a gradient of its own, which asks autograd only for a second derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pairs: Tensor, back: bool, *fours: Tensor) -> Tensor:
        ctx.save_for_backward(x, pairs, *fours)
        ctx.back, ctx.kept = back, []
        return mix(x, pairs, back, *fours, kept=ctx.kept)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (x, pairs, *fours) = grads, ctx.saved_tensors
        if torch.is_grad_enabled():
            return _differentiable_gradient(x, pairs, ctx.back, fours, grad)
        sums = _sums(fours)
        slopes = [torch.empty_like(total) for total in sums]
        grad, kept = grad.clone(), list(ctx.kept)
        slope = pairs
        if not ctx.back:
            grad, slope = _swap_gradient(grad, pairs, kept.pop())
        apart = kept.pop(0) if ctx.back else None
        for size, four in reversed(kept):
            wish = _four(grad, size)
            # To go back is to apply the transpose: what came in and the wish change roles.
            found = _slopes(wish, four) if ctx.back else _slopes(four, wish)
            for each, new in zip(_of(slopes, size), found, strict=True):
                each.copy_(new)
            change = _forth if ctx.back else _back
            _put(grad, size, change(wish, _of(sums, size)))
        if apart is not None:
            grad, slope = _swap_gradient(grad, pairs, apart)
        return grad, slope, None, *_sums_gradient(slopes)


def mix(
    x: Float[Tensor, "*b n"],
    pairs: Float[Tensor, "*b h"],
    back: bool,
    *fours: Float[Tensor, "*b k"],
    kept: list[Any] | None = None,
) -> Float[Tensor, "*b n"]:
    """Mix sorted numbers by all cuts, or by their transposes in the other order.

    Args:
        x: The numbers; as many as a power of two.
        pairs: What `pair_weights` returned.
        back: Whether by the transposes.
        fours: What `four_weights` returned.
        kept: A list for what a gradient needs of each level.
    """
    kept = [] if kept is None else kept
    sums = _sums(fours)
    x = x.clone()
    if back:
        x, apart = _swap(x, pairs)
        kept.append(apart)
    for size in _sizes(x.shape[-1], back):
        four = _four(x, size)
        kept.append((size, four))
        _put(x, size, (_back if back else _forth)(four, _of(sums, size)))
    if not back:
        x, apart = _swap(x, pairs)
        kept.append(apart)
    return x


def _differentiable_gradient(
    x: Tensor, pairs: Tensor, back: bool, fours: Sequence[Tensor], grad: Tensor
) -> tuple[Tensor | None, ...]:
    # Weights may hang on the numbers themselves: views tell one way from the other.
    x, pairs, *fours = inputs = [t.view_as(t) for t in (x, pairs, *fours)]
    wanted = [t for t in inputs if t.requires_grad]
    options = {"create_graph": True, "materialize_grads": True}
    found = iter(torch.autograd.grad(mix(x, pairs, back, *fours), wanted, grad, **options))
    first, second, *rest = [next(found) if t.requires_grad else None for t in inputs]
    return first, second, None, *rest


def _sizes(n: int, back: bool) -> list[int]:
    """Buckets of each level but that of pairs, in the order they are cut."""
    sizes = [2**power for power in range(2, n.bit_length())]
    return sizes if back else sizes[::-1]


def _of(tensors: Any, size: int) -> list[Tensor]:
    """What belongs to the cuts of one level, which are at odd multiples of half the size."""
    step = size // 4
    return [tensor[..., step - 1 :: 2 * step] for tensor in tensors]


def _four(x: Tensor, size: int) -> Four:
    """The four numbers around each cut of a level."""
    start = size // 2 - 2
    a, b, c, d = (x[..., start + place :: size].clone() for place in range(4))
    return a, b, c, d


def _put(x: Tensor, size: int, four: Four) -> None:
    for place, numbers in enumerate(four):
        x[..., size // 2 - 2 + place :: size] = numbers


def _sums(fours: Sequence[Tensor]) -> list[Tensor]:
    """What the numbers of a window are mixed by, from the weights of the outcomes."""
    bd, ad, bc, ac, ab = fours
    low, high = ad + ac, bc + ac
    return [low, bd + ad, high + ab, bd + bc, ab, low + ab, high]


def _sums_gradient(slopes: list[Tensor]) -> tuple[Tensor, ...]:
    low, second, fourth, third, ab, first, high = slopes
    down, up = low + first, fourth + high
    return second + third, down + second, up + third, down + up, ab + fourth + first


def _forth(x: Four, sums: list[Tensor]) -> Four:
    """Mix the elements of windows into places."""
    a, b, c, d = x
    low, second, fourth, third, ab, first, high = sums
    middle = c - b
    return (
        torch.addcmul(a, b - a, low).addcmul_(c - a, ab),
        torch.addcmul(b, middle, second).addcmul_(d - b, fourth),
        torch.addcmul(c, middle, third, value=-1).addcmul_(a - c, first),
        torch.addcmul(d, c - d, high).addcmul_(b - d, ab),
    )


def _back(x: Four, sums: list[Tensor]) -> Four:
    """Mix the places of windows into elements: the transpose."""
    a, b, c, d = x
    low, second, fourth, third, ab, first, high = sums
    outer, middle = c - a, c - b
    return (
        torch.addcmul(a, outer, first),
        torch.addcmul(b, a - b, low).addcmul_(middle, third).addcmul_(d - b, ab),
        torch.addcmul(c, outer, ab, value=-1)
        .addcmul_(middle, second, value=-1)
        .addcmul_(d - c, high),
        torch.addcmul(d, b - d, fourth),
    )


def _slopes(x: Four, wish: Four) -> tuple[Tensor, ...]:
    """Gradients of the sums, of numbers that are mixed forth and the gradients of the result."""
    a, b, c, d = x
    to_a, to_b, to_c, to_d = wish
    middle = c - b
    return (
        (b - a) * to_a,
        middle * to_b,
        (d - b) * to_b,
        -middle * to_c,
        torch.addcmul((c - a) * to_a, b - d, to_d),
        (a - c) * to_c,
        (c - d) * to_d,
    )


def _swap(x: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
    """Mix buckets of two; also return how far apart their numbers were."""
    apart = x[..., 1::2] - x[..., ::2]
    moved = apart * pairs
    return torch.stack([x[..., ::2] + moved, x[..., 1::2] - moved], dim=-1).flatten(-2), apart


def _swap_gradient(grad: Tensor, pairs: Tensor, apart: Tensor) -> tuple[Tensor, Tensor]:
    mixed, difference = _swap(grad, pairs)
    return mixed, -difference * apart
