"""The torch engine behind soft sorts on the CPU: cuts with a reach of two, few large operations.

A cut between b and c, of the sorted neighbours a ≤ b ≤ c ≤ d, has six outcomes. Let α, β and δ be
the odds of a, b and d for the side where they do not belong; c's are β too, since the pivot lies
midway. Then the two that go up are

    cd with weight 1        bd with β²          ad with αβ
    bc with βδ              ac with αδ          ab with αβ²δ

over their sum: products of numbers from 0 to 1, with no exponential. Each outcome moves the four,
so the weights are a matrix of 4 × 4 for each cut; buckets of two are cut by one number each.

Buckets of eight and more are cut at multiples of four, each at another one. The fours around these
cuts do not overlap, so that their order does not matter: all levels down to eight are one product.
Buckets of four are another, and pairs the third, whatever n is. Calls of torch are what takes time
here: gradients are written out, and the arrays have the cuts last.

Payloads of several features are mixed in the same way, by weights that are computed once for each
cut; their windows are matrices of four rows and a column for each feature.

The reference is the product of matrices in `sparsewire.sorting.soft_sort._soft_order`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparsewire.annotations import Float
from sparsewire.checks import cached
from sparsewire.precision import without_autocast
from sparsewire.sorting.halves import Distribution, log_odds

# Elements as far from a cut are certain; the squares of smaller distances are in float32's range.
_CERTAIN = 1e15
# Which element comes to each of the four places, for all outcomes but that which moves nothing.
_OUTCOMES = ((0, 2, 1, 3), (1, 2, 0, 3), (0, 3, 1, 2), (1, 3, 0, 2), (2, 3, 0, 1))


def against(distance: Float[Tensor, "*b"], distribution: Distribution) -> Float[Tensor, "*b"]:
    """Return the odds of an element for the side where it does not belong: exp(-log_odds)."""
    t = distance.clamp(max=_CERTAIN)
    if distribution == "student":
        odds = (t + torch.addcmul(torch.ones_like(t), t, t).sqrt()).reciprocal().square()
    else:
        odds = torch.exp(-log_odds(t, distribution))
    return torch.where(distance < _CERTAIN, odds, 0.0)


def against_slope(distance: Tensor, odds: Tensor, distribution: Distribution) -> Tensor:
    """Return the derivative of `against`, for odds that it returned."""
    if distribution == "student":
        # 2 √(1 + t²) is √odds + 1 / √odds.
        return odds * odds.sqrt() / (1 + odds) * -4
    if distribution == "logistic":
        return -odds
    t = distance.clamp(max=_CERTAIN)
    rest = torch.pi - torch.atan2(torch.ones_like(t), t)
    return -torch.pi / (rest.square() * (1 + t.square()))


class Mix(torch.autograd.Function):
    """`mix`, or `mix_payload`, with a gradient of its own; autograd computes second derivatives."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gaps: Tensor, back: bool, distribution: Distribution
    ) -> Tensor:
        ctx.save_for_backward(x, gaps)
        ctx.options, ctx.kept = (back, distribution), Kept()
        with without_autocast(x):
            function = mix if x.dim() == 2 else mix_payload
            return function(x, gaps, back, distribution, ctx.kept)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,), (x, gaps) = grads, ctx.saved_tensors
        with without_autocast(x):
            if torch.is_grad_enabled():
                function = mix if x.dim() == 2 else mix_payload
                found = differentiable_gradient(function, x, gaps, grad, *ctx.options)
            else:
                gradient = _gradient if x.dim() == 2 else _payload_gradient
                found = gradient(grad, gaps, ctx.kept, ctx.needs_input_grad[0], *ctx.options)
        return (*found, None, None)


class Kept:
    """What a gradient needs of a pass."""

    distances: Tensor  # from the pivot, see _split: (b, 3 · cuts + pairs)
    odds: Tensor  # the same, their odds
    total: Tensor  # of the weights of all outcomes: (b, cuts)
    shares: Tensor  # of the outcomes that move something: (5, b, cuts)
    matrices: Tensor  # (4, 4, b, cuts)
    swaps: Tensor  # probability that a pair changes places
    apart: Tensor  # how far apart its numbers were
    windows: Tensor  # the four around each cut: (4, b, cuts)


def mix(
    x: Float[Tensor, "b n"],
    gaps: Float[Tensor, "b g"],
    back: bool,
    distribution: Distribution,
    found: Kept | None = None,
) -> Float[Tensor, "b n"]:
    """Mix sorted numbers by all cuts, or by their transposes in the other order.

    Args:
        x: The numbers; as many as a power of two.
        gaps: Distances of neighbours in order, over the temperature.
        back: Whether by the transposes.
        distribution: As in `log_odds`.
        found: Takes what a gradient needs.
    """
    found = Kept() if found is None else found
    weigh(gaps, distribution, found)
    taken = []
    if back:
        x, found.apart = _swap(x, found.swaps)
    else:
        x = x.clone()
    for level in levels_of(int(x.shape[-1]), back):
        four = level.four(x)
        taken.append(now := four.clone(memory_format=torch.contiguous_format))
        four.copy_((_back if back else _forth)(now, level.of(found.matrices)))
    if not back:
        x, found.apart = _swap(x, found.swaps)
    found.windows = torch.cat(taken if back else taken[::-1], dim=-1) if taken else x.new_empty(0)
    return x


def _gradient(
    grad: Tensor, gaps: Tensor, found: Kept, wanted: bool, back: bool, distribution: Distribution
) -> tuple[Tensor | None, Tensor]:
    """From the gradient of what is mixed to those of values, if it is wanted, and gaps."""
    grad, difference = (grad.clone(), grad) if back else _swap(grad, found.swaps)
    wishes = torch.empty_like(found.windows)
    for level in levels_of(int(grad.shape[-1]), not back):
        four = level.four(grad)
        wish = level.of(wishes).copy_(four)
        four.copy_((_forth if back else _back)(wish, level.of(found.matrices)))
    if back and wanted:
        grad, difference = _swap(grad, found.swaps)
    elif back:  # the numbers of places, for which no one asks
        difference = grad[:, 1::2] - grad[:, ::2]
    # To go back is to apply the transpose: what came in and the wish change roles.
    places, elements = (found.windows, wishes) if back else (wishes, found.windows)
    slopes = places.unsqueeze(1) * elements if wishes.numel() else found.matrices
    to_gaps = gaps_gradient(gaps, slopes, -difference * found.apart, found, distribution)
    return grad if wanted else None, to_gaps


def gaps_gradient(
    gaps: Tensor, slopes: Tensor, to_swaps: Tensor, found: Kept, distribution: Distribution
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
    found_slopes = to_odds * against_slope(found.distances, found.odds, distribution)
    before, inner, behind, pair = _split(found_slopes)
    parts = torch.cat([before, (before + inner + behind) / 2, behind, pair / 2], dim=-1)
    return torch.zeros_like(gaps).index_add_(-1, index, parts)


def differentiable_gradient(
    function: Callable[..., Tensor],
    x: Tensor,
    gaps: Tensor,
    grad: Tensor,
    back: bool,
    distribution: Distribution,
) -> tuple[Tensor | None, ...]:
    """The gradient of `mix`, or of what has its arguments, by autograd."""
    # Gaps may hang on the values themselves: views tell one way from the other.
    x, gaps = inputs = [t.view_as(t) for t in (x, gaps)]
    wanted = [t for t in inputs if t.requires_grad]
    options = {"create_graph": True, "materialize_grads": True}
    found = iter(
        torch.autograd.grad(function(x, gaps, back, distribution), wanted, grad, **options)
    )
    return tuple(next(found) if t.requires_grad else None for t in inputs)


def weigh(gaps: Tensor, distribution: Distribution, found: Kept) -> None:
    """Compute what pairs and cuts are mixed by."""
    moves, still, index = _constants(gaps)
    before, inner, behind, pair = _split(gaps.index_select(-1, index))
    half = inner / 2
    found.distances = torch.cat([before + half, half, behind + half, pair / 2], dim=-1)
    found.odds = against(found.distances, distribution)
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

    First come the cuts of buckets of four, then those of larger ones, by place.
    """
    # What is traced must not meet tensors that were made outside of the trace.
    make = _kept_constants if type(gaps) is Tensor else _make_constants
    return make(int(gaps.shape[-1]) + 1, gaps.dtype, gaps.device)


def _make_constants(
    full: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    moves = torch.stack([torch.eye(4)[list(order)] - torch.eye(4) for order in _OUTCOMES])
    middles = [*range(1, full - 1, 4), *range(3, full - 1, 4)]
    around = [middle + way for way in (-1, 0, 1) for middle in middles]
    index = torch.tensor([*around, *range(0, full, 2)])
    still = torch.eye(4).view(16, 1).to(device, dtype)
    return moves.flatten(1).T.contiguous().to(device, dtype), still, index.to(device)


_kept_constants = cached(_make_constants)


class Level(NamedTuple):
    """Cuts that are made together: of buckets of four, or of all larger ones."""

    start: int  # of the first four
    first: int  # number of the first cut
    number: int

    def four(self, x: Tensor) -> Tensor:
        """The values around each cut, in place: (4, b, cuts)."""
        return x.narrow(-1, self.start, 4 * self.number).unflatten(-1, (-1, 4)).permute(2, 0, 1)

    def of(self, cuts: Tensor) -> Tensor:
        """What belongs to these cuts."""
        return cuts.narrow(-1, self.first, self.number)


def levels_of(full: int, back: bool) -> list[Level]:
    """In the order they are cut, without pairs."""
    fours = full // 4
    levels = [Level(0, 0, fours), Level(2, fours, fours - 1)]
    return [level for level in (levels if back else levels[::-1]) if level.number > 0]


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
        x, found.apart = _swap_elements(x, found.swaps)
    else:
        x = x.clone()
    for level in levels_of(int(x.shape[1]), back):
        four, matrix = _four(x, level), _of(matrices, level)
        taken.append(now := four.clone(memory_format=torch.contiguous_format))
        four.copy_((matrix.mT if back else matrix) @ now)
    if not back:
        x, found.apart = _swap_elements(x, found.swaps)
    found.windows = torch.cat(taken if back else taken[::-1], dim=1) if taken else x.new_empty(0)
    return x


def _payload_gradient(
    grad: Tensor,
    gaps: Tensor,
    found: Kept,
    wanted: bool,
    back: bool,
    distribution: Distribution,
) -> tuple[Tensor, Tensor]:
    """From the gradient of what is mixed to those of payload and gaps."""
    del wanted
    matrices = found.matrices.permute(2, 3, 0, 1)
    grad, difference = (grad.clone(), grad) if back else _swap_elements(grad, found.swaps)
    wishes = torch.empty_like(found.windows)
    for level in levels_of(int(grad.shape[1]), not back):
        four, matrix = _four(grad, level), _of(matrices, level)
        wish = _of(wishes, level).copy_(four)
        four.copy_((matrix if back else matrix.mT) @ wish)
    if back:
        grad, difference = _swap_elements(grad, found.swaps)
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


def _swap_elements(x: Tensor, swaps: Tensor) -> tuple[Tensor, Tensor]:
    """Mix buckets of two; also return their differences."""
    low, high = x.unflatten(1, (-1, 2)).unbind(2)
    apart = high - low
    moved = apart * swaps.unsqueeze(-1)
    return torch.stack([low + moved, high - moved], dim=2).flatten(1, 2), apart
