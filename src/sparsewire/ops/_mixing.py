"""The engine behind soft sorts on the CPU: cuts with a reach of two, few and large operations.

A cut between b and c, of the sorted neighbours a ≤ b ≤ c ≤ d, has six outcomes. Let α, β and δ be
the odds of a, b and d for the side where they do not belong; c's are β too, since the pivot lies
midway. Then the two that go up are

    cd with weight 1        bd with β²          ad with αβ
    bc with βδ              ac with αδ          ab with αβ²δ

over their sum: products of numbers from 0 to 1, with no exponential. Each outcome moves the four,
so the weights are a matrix of 4 × 4 for each cut; buckets of two are cut by one number each. What
all cuts need is computed at once, level by level in one array; then each level is a product. Calls
of torch are what takes time here: gradients are written out, and the arrays have the cuts last.

The reference is the product of matrices in `sparsewire.ops._soft_order`.
"""

from typing import Any

import torch
from torch import Tensor

from sparsewire._typing import Float
from sparsewire.ops._checks import kept
from sparsewire.ops._precision import without_autocast
from sparsewire.ops.halves import Squash, log_odds

# Distances from here on make no difference; their squares are in the range of float32.
_FAR = 1e15
# Which element comes to each of the four places, for all outcomes but that which moves nothing.
_OUTCOMES = ((0, 2, 1, 3), (1, 2, 0, 3), (0, 3, 1, 2), (1, 3, 0, 2), (2, 3, 0, 1))


def against(distance: Float[Tensor, "*b"], squash: Squash) -> Float[Tensor, "*b"]:
    """Return the odds of an element for the side where it does not belong: exp(-log_odds)."""
    t = distance.clamp(max=_FAR)
    if squash == "student":
        return (t + torch.addcmul(torch.ones_like(t), t, t).sqrt()).reciprocal().square()
    return torch.exp(-log_odds(t, squash))


def against_slope(distance: Tensor, odds: Tensor, squash: Squash) -> Tensor:
    """Return the derivative of `against`, for odds that it returned."""
    if squash == "student":
        # 2 √(1 + t²) is √odds + 1 / √odds.
        return odds * odds.sqrt() / (1 + odds) * -4
    if squash == "logistic":
        return -odds
    t = distance.clamp(max=_FAR)
    rest = torch.pi - torch.atan2(torch.ones_like(t), t)
    return -torch.pi / (rest.square() * (1 + t.square()))


class Mix(torch.autograd.Function):
    """`mix` with a gradient of its own, which asks autograd only for a second derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gaps: Tensor, back: bool, squash: Squash) -> Tensor:
        ctx.save_for_backward(x, gaps)
        ctx.options, ctx.kept = (back, squash), _Kept()
        with without_autocast(x):
            return mix(x, gaps, back, squash, ctx.kept)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (x, gaps) = grads, ctx.saved_tensors
        with without_autocast(x):
            if torch.is_grad_enabled():
                found = _differentiable_gradient(x, gaps, grad, *ctx.options)
            else:
                found = _gradient(grad, gaps, ctx.kept, *ctx.options)
        return (*found, None, None)


class _Kept:
    """What a gradient needs of a pass."""

    distances: Tensor  # from the pivot, see _split: (b, 3 · cuts + pairs)
    odds: Tensor  # the same, their odds
    total: Tensor  # of the weights of all outcomes: (b, cuts)
    shares: Tensor  # of the outcomes that move something: (5, b, cuts)
    matrices: Tensor  # (4, 4, b, cuts)
    swaps: Tensor  # probability that a pair changes places
    apart: Tensor  # how far apart its numbers were
    windows: list[Tensor]  # the four around each cut, level by level


def mix(
    x: Float[Tensor, "b n"],
    gaps: Float[Tensor, "b g"],
    back: bool,
    squash: Squash,
    found: _Kept | None = None,
) -> Float[Tensor, "b n"]:
    """Mix sorted numbers by all cuts, or by their transposes in the other order.

    Args:
        x: The numbers; as many as a power of two.
        gaps: Distances of neighbours in order, over the temperature.
        back: Whether by the transposes.
        squash: As in `log_odds`.
        found: Takes what a gradient needs.
    """
    found = _Kept() if found is None else found
    _weigh(gaps, squash, found)
    found.windows = []
    x = x.clone()
    if back:
        x, found.apart = _swap(x, found.swaps)
    for size in _sizes(int(x.shape[-1]), back):
        four = _four(x, size)
        now = _taken(four)
        found.windows.append(now)
        matrix = _of(found.matrices, x.shape[-1], size)
        four.copy_((_back if back else _forth)(now, matrix).permute(1, 2, 0))
    if not back:
        x, found.apart = _swap(x, found.swaps)
    return x


def _gradient(
    grad: Tensor, gaps: Tensor, found: _Kept, back: bool, squash: Squash
) -> tuple[Tensor, Tensor]:
    """From the gradient of what is mixed to those of values and gaps."""
    full = int(grad.shape[-1])
    grad = grad.clone()
    slopes = torch.empty_like(found.matrices)
    grad, difference = (grad, grad) if back else _swap(grad, found.swaps)
    sizes = _sizes(full, back)
    for size, was in zip(reversed(sizes), reversed(found.windows), strict=True):
        four = _four(grad, size)
        wish = _taken(four)
        # To go back is to apply the transpose: what came in and the wish change roles.
        places, elements = (was, wish) if back else (wish, was)
        _of(slopes, full, size).copy_(places.unsqueeze(1) * elements)
        matrix = _of(found.matrices, full, size)
        four.copy_((_forth if back else _back)(wish, matrix).permute(1, 2, 0))
    if back:
        grad, difference = _swap(grad, found.swaps)
    return grad, _gaps_gradient(gaps, slopes, -difference * found.apart, found, squash)


def _gaps_gradient(
    gaps: Tensor, slopes: Tensor, to_swaps: Tensor, found: _Kept, squash: Squash
) -> Tensor:
    """From the gradients of what pairs and cuts are mixed by to that of the gaps."""
    moves, _, index = _constants(gaps)
    to_shares = (moves.T @ slopes.flatten(0, 1).flatten(1)).view_as(found.shares)
    mean = (to_shares * found.shares).sum(0)
    bd, ad, bc, ac, ab = ((to_shares - mean) / found.total).unbind(0)
    near, middle, far, pair = _split(found.odds)
    ends = ac + ab * (middle * middle)
    to_odds = torch.cat(
        [
            ad * middle + ends * far,
            2 * middle * (bd + ab * (near * far)) + ad * near + bc * far,
            bc * middle + ends * near,
            # A pair changes places by odds² / (1 + odds²).
            2 * to_swaps * pair / (1 + pair * pair).square(),
        ],
        dim=-1,
    )
    found_slopes = to_odds * against_slope(found.distances, found.odds, squash)
    before, inner, behind, pair = _split(found_slopes)
    parts = torch.cat([before, (before + inner + behind) / 2, behind, pair / 2], dim=-1)
    return torch.zeros_like(gaps).index_add_(-1, index, parts)


def _differentiable_gradient(
    x: Tensor, gaps: Tensor, grad: Tensor, back: bool, squash: Squash
) -> tuple[Tensor | None, ...]:
    # Gaps may hang on the values themselves: views tell one way from the other.
    x, gaps = inputs = [t.view_as(t) for t in (x, gaps)]
    wanted = [t for t in inputs if t.requires_grad]
    options = {"create_graph": True, "materialize_grads": True}
    found = iter(torch.autograd.grad(mix(x, gaps, back, squash), wanted, grad, **options))
    return tuple(next(found) if t.requires_grad else None for t in inputs)


def _weigh(gaps: Tensor, squash: Squash, found: _Kept) -> None:
    """Compute what pairs and cuts are mixed by."""
    moves, still, index = _constants(gaps)
    before, inner, behind, pair = _split(gaps.index_select(-1, index))
    half = inner / 2
    found.distances = torch.cat([before + half, half, behind + half, pair / 2], dim=-1)
    found.odds = against(found.distances, squash)
    near, middle, far, pair = _split(found.odds)
    square = pair * pair
    found.swaps = square / (1 + square)
    square, ends = middle * middle, near * far
    outcomes = torch.stack([square, near * middle, middle * far, ends, ends * square])
    found.total = 1 + outcomes.sum(0)
    found.shares = outcomes / found.total
    mixed = torch.addmm(still, moves, found.shares.flatten(1))
    found.matrices = mixed.view(4, 4, *square.shape)


def _split(parts: Tensor) -> tuple[Tensor, ...]:
    """What belongs to the first, the middle and the last of the four at a cut, and to pairs.

    There is one pair more than there are cuts.
    """
    cuts = int(parts.shape[-1]) // 4
    return parts.split((cuts, cuts, cuts, cuts + 1), dim=-1)


def _constants(gaps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How outcomes move four values, (16, 5), what nothing moves, and the gaps of cuts and pairs.

    Cuts come level by level, the largest buckets first; a cut is in the middle of its bucket.
    """
    # What is traced must not meet tensors that were made outside of the trace.
    make = _kept_constants if type(gaps) is Tensor else _make_constants
    return make(int(gaps.shape[-1]) + 1, gaps.dtype, gaps.device)


def _make_constants(
    full: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    moves = torch.stack([torch.eye(4)[list(order)] - torch.eye(4) for order in _OUTCOMES])
    middles = [
        place + size // 2 - 1 for size in _sizes(full, False) for place in range(0, full, size)
    ]
    around = [middle + way for way in (-1, 0, 1) for middle in middles]
    index = torch.tensor([*around, *range(0, full, 2)])
    still = torch.eye(4).view(16, 1).to(device, dtype)
    return moves.flatten(1).T.contiguous().to(device, dtype), still, index.to(device)


_kept_constants = kept(_make_constants)


def _sizes(n: int, back: bool) -> list[int]:
    """Buckets of each level but that of pairs, in the order they are cut."""
    sizes = [2**power for power in range(2, n.bit_length())]
    return sizes if back else sizes[::-1]


def _of(matrices: Tensor, full: int, size: int) -> Tensor:
    """What belongs to the cuts of one level."""
    count = full // size
    return matrices.narrow(-1, count - 1, count)


def _four(x: Tensor, size: int) -> Tensor:
    """The four values around each cut of a level, in place: (b, cuts, 4)."""
    return x.unflatten(-1, (-1, size)).narrow(-1, size // 2 - 2, 4)


def _taken(four: Tensor) -> Tensor:
    """A copy of them, (4, b, cuts)."""
    return four.permute(2, 0, 1).clone(memory_format=torch.contiguous_format)


def _forth(four: Tensor, matrix: Tensor) -> Tensor:
    """Mix the elements of windows into places."""
    return (matrix * four).sum(1)


def _back(four: Tensor, matrix: Tensor) -> Tensor:
    """Mix the places of windows into elements: the transpose."""
    return (matrix * four.unsqueeze(1)).sum(0)


def _swap(x: Tensor, swaps: Tensor) -> tuple[Tensor, Tensor]:
    """Mix buckets of two; also return how far apart their numbers were."""
    pairs = x.unflatten(-1, (-1, 2))
    low, high = pairs.unbind(-1)
    apart = high - low
    moved = apart * swaps
    return torch.stack([low + moved, high - moved], dim=-1).flatten(-2), apart
