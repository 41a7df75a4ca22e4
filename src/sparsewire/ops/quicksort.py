"""Sorting with a gradient: soft versions of torch's family of sorting functions.

Quicksort with medians as pivots, as in the paper: log₂ n times every bucket is cut into halves by a
half-permutation (`sparsewire.ops.halves`), of which each element is a part by its odds. Here the
elements of a bucket stand in order when it is cut. Far below or above the cut they stay where they
are, so only a few around it, `reach` on each side, need be mixed; and what is put on the wrong side
lands beside it. There is one cut between any two neighbours in the order, so the whole costs
O(n log n) for the sort and O(n · reach) for the mixing; nothing of size n × n is stored, unless
a permutation is asked for.

All functions share these arguments:

- `dim`: the dimension that is sorted; all others are a batch.
- `descending`: whether the largest come first.
- `temperature`: distance of two keys at which their order becomes doubtful. None takes the mean
  distance of neighbours for evenly spread keys: four times their mean absolute deviation from the
  median, over n. So it follows the scale of the input, and the number of elements. With 0
  everything is exactly as torch has it, and there is no gradient to the keys but that of a sort.
- `squash`: how doubt falls with distance, see `sparsewire.ops.halves.log_odds`. The default has
  heavy tails: a pair has a gradient, in float32 up to some 10⁸ temperatures apart.
- `reach`: how many elements on each side of a cut take part in it.
- `hard`: return what torch would, with the gradient of the soft result.

Keys are computed in float32 at least. Infinite ones lie at the ends, with certainty.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsewire._typing import Float
from sparsewire.ops._checks import (
    check_choice,
    check_count,
    check_devices,
    check_floating,
    check_range,
)
from sparsewire.ops._mixing import Mix, four_weights, pair_weights
from sparsewire.ops._precision import without_autocast
from sparsewire.ops.halves import FAR, SQUASHES, Squash, half, log_odds

_REACH = 2


class SoftTopK(NamedTuple):
    """The largest elements, softly, and where the hard ones are."""

    values: Tensor
    indices: Tensor


class _Cuts(NamedTuple):
    """How sorted elements are mixed by the cuts of one level.

    Buckets have `size` places; the `width` places around the middle of each are mixed by a matrix,
    of which each row is a place and each column an element.
    """

    size: int
    width: int
    matrix: Tensor  # (*b, buckets, width, width)


def soft_sort(
    x: Float[Tensor, "*b"],
    dim: int = -1,
    descending: bool = False,
    *,
    temperature: float | Tensor | None = None,
    squash: Squash = "student",
    reach: int = _REACH,
    hard: bool = False,
) -> Float[Tensor, "*b"]:
    """Return the elements in order; the module says what the arguments are.

    Examples:
        >>> x = torch.tensor([3.0, 1.0, 2.0])
        >>> soft_sort(x, temperature=0.1)
        tensor([1.0001, 2.0000, 2.9999])
        >>> soft_sort(x, temperature=0.0)
        tensor([1., 2., 3.])
    """
    moved = _last(x, dim)
    order = _SoftOrder(moved, descending, temperature, squash, reach)
    exact = -order.inorder if descending else order.inorder
    if order.finite:
        soft = order.sorted(exact)
    else:
        soft = torch.where(exact.isfinite(), order.sorted(_finite(exact)), exact)
    return _back(_hardened(soft, exact, hard).to(x.dtype), x, dim)


def soft_rank(
    x: Float[Tensor, "*b"],
    dim: int = -1,
    descending: bool = False,
    *,
    temperature: float | Tensor | None = None,
    squash: Squash = "student",
    reach: int = _REACH,
    hard: bool = False,
) -> Float[Tensor, "*b"]:
    """Return the place of each element in the order, from 0.

    Examples:
        >>> soft_rank(torch.tensor([3.0, 1.0, 2.0]), temperature=1.0)
        tensor([1.8273, 0.1828, 0.9899])
    """
    moved = _last(x, dim)
    order = _SoftOrder(moved, descending, temperature, squash, reach)
    places = torch.arange(moved.shape[-1], dtype=order.wide.dtype, device=x.device)
    places = places.expand(moved.shape)
    soft = order.scattered(order.unsorted(places))
    soft = soft + order.nothing() if order.sure else soft
    return _back(_hardened(soft, order.scattered(places), hard).to(x.dtype), x, dim)


def soft_permutation(
    x: Float[Tensor, "*b"],
    dim: int = -1,
    descending: bool = False,
    *,
    temperature: float | Tensor | None = None,
    squash: Squash = "student",
    reach: int = _REACH,
    hard: bool = False,
) -> Float[Tensor, "*p"]:
    """Return the matrix P for which `P @ x` is sorted: rows are places, columns elements.

    Rows and columns sum to one. Its last two dimensions are those; `dim` is no longer where it was.

    Examples:
        >>> soft_permutation(torch.tensor([2.0, 1.0]), temperature=1.0)
        tensor([[0.1273, 0.8727],
                [0.8727, 0.1273]])
    """
    moved = _last(x, dim)
    order = _SoftOrder(moved, descending, temperature, squash, reach)
    n = moved.shape[-1]
    exact = order.wide.new_zeros(*moved.shape, n).scatter(-1, order.index.unsqueeze(-1), 1.0)
    soft = order.mixed(exact)
    soft = soft + order.nothing().unsqueeze(-1) if order.sure else soft
    return _hardened(soft, exact, hard).to(x.dtype)


def sort_by(
    keys: Float[Tensor, "*b n"],
    payload: Float[Tensor, "*x"],
    descending: bool = False,
    *,
    temperature: float | Tensor | None = None,
    squash: Squash = "student",
    reach: int = _REACH,
    hard: bool = False,
) -> Float[Tensor, "*x"]:
    """Return things in the order of their keys.

    Args:
        keys: The last dimension is sorted.
        payload: What belongs to the keys, with any further dimensions.
        descending: See the module, as for the others.
        temperature: See the module.
        squash: See the module.
        reach: See the module.
        hard: See the module.

    Examples:
        >>> sort_by(torch.tensor([2.0, 1.0]), torch.eye(2), temperature=0.0)
        tensor([[0., 1.],
                [1., 0.]])
    """
    check_floating("keys", keys)
    check_floating("payload", payload)
    check_devices(keys=keys, payload=payload)
    if keys.dim() < 1 or payload.shape[: keys.dim()] != keys.shape:
        raise ValueError(
            f"payload must begin with the shape of keys, {tuple(keys.shape)}; "
            f"got {tuple(payload.shape)}"
        )
    order = _SoftOrder(keys, descending, temperature, squash, reach)
    flat = payload.flatten(keys.dim()) if payload.dim() > keys.dim() else payload.unsqueeze(-1)
    exact = flat.gather(-2, order.index.unsqueeze(-1).expand_as(flat))
    soft = order.mixed(exact.to(torch.promote_types(exact.dtype, order.wide.dtype)))
    soft = soft + order.nothing().unsqueeze(-1) if order.sure else soft
    return _hardened(soft.to(payload.dtype), exact, hard).reshape(payload.shape)


def soft_topk(
    x: Float[Tensor, "*b"],
    k: int,
    dim: int = -1,
    largest: bool = True,
    *,
    temperature: float | Tensor | None = None,
    squash: Squash = "student",
    reach: int = _REACH,
    hard: bool = False,
) -> SoftTopK:
    """Return the k largest elements, the largest first, and where the hard ones are.

    Examples:
        >>> soft_topk(torch.tensor([1.0, 4.0, 2.0]), k=2, temperature=0.0)
        SoftTopK(values=tensor([4., 2.]), indices=tensor([1, 2]))
    """
    n = x.shape[dim] if x.dim() else 1
    if not 0 <= check_count("k", k) <= n:
        raise ValueError(f"k must be 0 to {n}, the elements of the dimension; got {k}")
    options = {"temperature": temperature, "squash": squash, "reach": reach, "hard": hard}
    values = soft_sort(x, dim, largest, **options)  # pyright: ignore[reportArgumentType]
    if not x.dim():
        return SoftTopK(values, x.new_zeros((), dtype=torch.int64))
    indices = x.argsort(dim=dim, descending=largest, stable=True)
    return SoftTopK(values.narrow(dim, 0, k), indices.narrow(dim, 0, k))


def soft_quantile(
    x: Float[Tensor, "*b"],
    q: float | Sequence[float],
    dim: int = -1,
    keepdim: bool = False,
    *,
    temperature: float | Tensor | None = None,
    squash: Squash = "student",
    reach: int = _REACH,
    hard: bool = False,
) -> Float[Tensor, "*q"]:
    """Return quantiles, interpolated between neighbours in the soft order, as `torch.quantile`.

    Args:
        x: The elements.
        q: One share, or several, for which the result has a first dimension.
        dim: See the module, as for the others.
        keepdim: Whether `dim` stays, with one element.
        temperature: See the module.
        squash: See the module.
        reach: See the module.
        hard: See the module.

    Examples:
        >>> soft_quantile(torch.tensor([3.0, 1.0, 2.0, 4.0]), 0.5, temperature=0.0)
        tensor(2.5000)
    """
    shares = [q] if isinstance(q, int | float) else list(q)
    for share in shares:
        check_range("q", share, 0.0, 1.0)
    n = x.shape[dim] if x.dim() else 1
    if not n:
        raise ValueError("x must have an element in the dimension; got none")
    options = {"temperature": temperature, "squash": squash, "reach": reach, "hard": hard}
    values = soft_sort(x, dim, **options)  # pyright: ignore[reportArgumentType]
    found = []
    for share in shares:
        below = min(int(share * (n - 1)), max(0, n - 2))
        low = values.narrow(dim, below, 1) if x.dim() else values
        high = values.narrow(dim, min(below + 1, n - 1), 1) if x.dim() else values
        part = share * (n - 1) - below
        # Not by a product with zero, which would make a number of none beside infinity.
        found.append(low if part == 0 else high if part == 1 else torch.lerp(low, high, part))
    if x.dim() and not keepdim:
        found = [each.squeeze(dim) for each in found]
    return found[0] if isinstance(q, int | float) else torch.stack(found)


def soft_median(
    x: Float[Tensor, "*b"],
    dim: int = -1,
    keepdim: bool = False,
    *,
    temperature: float | Tensor | None = None,
    squash: Squash = "student",
    reach: int = _REACH,
    hard: bool = False,
) -> Float[Tensor, "*q"]:
    """Return the median: of an even number of elements, the mean of the two in the middle."""
    options = {"temperature": temperature, "squash": squash, "reach": reach, "hard": hard}
    return soft_quantile(x, 0.5, dim, keepdim, **options)  # pyright: ignore[reportArgumentType]


class _SoftOrder:
    """Keys in order, and how doubtful their order is.

    Args:
        keys: The last dimension is sorted.
        descending: Whether the largest come first.
        temperature: As in the module.
        squash: As in the module.
        reach: As in the module.
    """

    def __init__(
        self,
        keys: Tensor,
        descending: bool,
        temperature: float | Tensor | None,
        squash: Squash,
        reach: int,
    ) -> None:
        self.reach = check_count("reach", reach, least=1)
        self.squash: Squash = check_choice("squash", squash, SQUASHES)
        self.wide = keys.to(torch.promote_types(keys.dtype, torch.float32))
        found, self.index = self.wide.sort(dim=-1, descending=descending, stable=True)
        self.inorder = -found if descending else found
        n = keys.shape[-1]
        # What is not finite is at the ends. Only here the host may look, without waiting.
        ends = self.inorder[..., :1], self.inorder[..., -1:]
        self.eager = _eager_on_cpu(keys)
        self.finite = self.eager and all(bool(end.isfinite().all()) for end in ends)
        heat = _temperature(self.inorder, temperature, self.finite)
        exact = not isinstance(temperature, Tensor) and temperature == 0
        self.sure = exact or n < 2
        self.full = 2 ** math.ceil(math.log2(n)) if n > 1 else n
        self.gaps = self.inorder
        if not self.sure:
            # What is not a number is where torch puts it: the largest of all.
            end = -torch.inf if descending else torch.inf
            known = self.inorder
            known = known if self.finite else torch.where(known.isnan(), end, known)
            self.gaps = _gaps(known, heat, self.full, self.finite)

    def sorted(self, values: Tensor) -> Tensor:
        """Mix values that stand in the hard order, (*b, n)."""
        return self._mixed_numbers(values, back=False)

    def unsorted(self, places: Tensor) -> Tensor:
        """Of values for places return what is expected for each element, both in order."""
        return self._mixed_numbers(places, back=True)

    def mixed(self, values: Tensor, back: bool = False) -> Tensor:
        """Mix values with a last dimension of features, (*b, n, f)."""
        if self.sure:
            return values
        n = values.shape[-2]
        values = F.pad(values, (0, 0, 0, self.full - n)) if self.full > n else values
        with without_autocast(values):
            levels = _cuts(self.gaps, self.squash, self.reach)
            for cuts in reversed(levels) if back else levels:
                values = _mix(values, cuts, back)
        return values.narrow(-2, 0, n)

    def nothing(self) -> Tensor:
        """Zeros that hang on the keys: a result without doubt can be differentiated too."""
        return _finite(self.wide) * 0

    def scattered(self, inorder: Tensor) -> Tensor:
        """Bring what stands in order to where the elements were."""
        return torch.empty_like(inorder).scatter(-1, self.index, inorder)

    def _mixed_numbers(self, values: Tensor, back: bool) -> Tensor:
        if self.sure:
            return values
        if self.reach != 2 or not self.eager:
            return self.mixed(values.unsqueeze(-1), back).squeeze(-1)
        n = values.shape[-1]
        values = F.pad(values, (0, self.full - n)) if self.full > n else values
        pairs, fours = pair_weights(self.gaps, self.squash), four_weights(self.gaps, self.squash)
        return Mix.apply(values, pairs, back, *fours)[..., :n]  # pyright: ignore


def _gaps(inorder: Tensor, heat: Tensor, full: int, finite: bool) -> Tensor:
    """Distances of neighbours in order, over the temperature: (*b, full - 1).

    What is filled up to a power of two is far above the last, and equal; so are infinite keys.
    """
    gaps = (inorder[..., 1:] - inorder[..., :-1]) / heat
    if not finite:
        gaps = gaps.nan_to_num(nan=0.0, posinf=10 * FAR)
    missing = full - inorder.shape[-1]
    if not missing:
        return gaps
    far = gaps.new_full((*gaps.shape[:-1], 1), 10 * FAR)
    return F.pad(torch.cat([gaps, far], dim=-1), (0, missing - 1))


def _cuts(gaps: Tensor, squash: Squash, reach: int) -> list[_Cuts]:
    """Return all levels for the gaps of sorted keys, that of the largest buckets first.

    A level of buckets up to twice the reach mixes whole buckets; in larger ones all cuts are alike,
    and computed together.
    """
    full = gaps.shape[-1] + 1
    levels = []
    size = 2
    while size <= min(full, 2 * reach):
        matrix = _matrix(_windows(gaps, 0, size, size), squash)
        levels.append(_Cuts(size, size, matrix))
        size *= 2
    if size <= full:
        apart, width = size // 2, 2 * reach
        matrix = _matrix(_windows(gaps, apart - reach, width, apart), squash)
        while size <= full:
            # Cuts are at odd multiples of half the size.
            step = size // (2 * apart)
            levels.append(_Cuts(size, width, matrix[..., step - 1 :: 2 * step, :, :]))
            size *= 2
    return levels[::-1]


def _windows(gaps: Tensor, start: int, width: int, apart: int) -> Tensor:
    """The gaps within windows of sorted keys: (*b, windows, width - 1)."""
    count = (gaps.shape[-1] + 1 - start - width) // apart + 1
    last = (count - 1) * apart + 1
    columns = [gaps[..., start + i : start + i + last : apart] for i in range(width - 1)]
    return torch.stack(columns, dim=-1)


def _matrix(gaps: Tensor, squash: Squash) -> Tensor:
    """The half-permutations of windows of sorted keys around their middle, from their gaps."""
    middle = gaps.shape[-1] // 2
    pivot = gaps[..., middle : middle + 1] / 2  # from the middle of this gap
    above = torch.cat([pivot, gaps[..., middle + 1 :]], dim=-1).cumsum(-1)
    below = torch.cat([gaps[..., :middle], pivot], dim=-1).flip(-1).cumsum(-1).flip(-1)
    return half(log_odds(torch.cat([-below, above], dim=-1), squash), middle + 1)


def _temperature(inorder: Tensor, temperature: float | Tensor | None, finite: bool) -> Tensor:
    """The temperature of each row, (*b, 1), or of all."""
    if isinstance(temperature, Tensor):
        check_floating("temperature", temperature)
        return temperature.to(inorder).unsqueeze(-1) if temperature.dim() else temperature
    if temperature is not None:
        check_range("temperature", temperature, 0.0, math.inf)
        return inorder.new_tensor(temperature)
    with torch.no_grad():
        n = inorder.shape[-1]
        away = (inorder - inorder[..., (n - 1) // 2 : (n + 1) // 2]).abs()
        # Divided first: the sum of large ones may be too large.
        if finite:
            mean = (away / n).sum(-1, keepdim=True)
        else:
            away = torch.where(away.isfinite(), away, 0.0)
            there = inorder.isfinite().sum(-1, keepdim=True)
            mean = (away / there.clamp(min=1)).sum(-1, keepdim=True)
        heat = mean * (4 / max(n, 1))
        return torch.where((heat > 0) & heat.isfinite(), heat, 1.0)


def _mix(values: Tensor, cuts: _Cuts, back: bool) -> Tensor:
    buckets = values.unflatten(-2, (-1, cuts.size))
    start = (cuts.size - cuts.width) // 2
    matrix = (cuts.matrix.transpose(-1, -2) if back else cuts.matrix).to(values.dtype)
    window = buckets.narrow(-2, start, cuts.width)
    if values.shape[-1] == 1:
        # Many small products of a matrix and a vector: faster one number at a time.
        mixed = (matrix * window.transpose(-1, -2)).sum(-1, keepdim=True)
    else:
        mixed = matrix @ window
    if start:
        first, last = buckets.narrow(-2, 0, start), buckets.narrow(-2, cuts.size - start, start)
        mixed = torch.cat([first, mixed, last], dim=-2)
    return mixed.flatten(-3, -2)


def _eager_on_cpu(keys: Tensor) -> bool:
    """Whether numbers are mixed without matrices, by a gradient of our own.

    That is many small operations, and none of torch's transforms looks into it.
    """
    plain = type(keys) in (Tensor, torch.nn.Parameter) and keys.device.type == "cpu"
    transformed = torch._C._are_functorch_transforms_active()
    return plain and not torch.compiler.is_compiling() and not transformed


def _hardened(soft: Tensor, exact: Tensor, hard: bool) -> Tensor:
    """The hard result with the gradient of the soft one, if that is asked for."""
    if not hard:
        return soft
    exact = exact.detach()
    change = soft - soft.detach()
    return exact + torch.where(change.isfinite(), change, 0.0)


def _finite(x: Tensor) -> Tensor:
    """Replace what is infinite: it is put in its place later, and must not spoil others."""
    return torch.where(x.isfinite(), x, 0.0)


def _last(x: Tensor, dim: int) -> Tensor:
    """Check the elements, and bring the sorted dimension to the end."""
    check_floating("x", x)
    if not -max(1, x.dim()) <= dim < max(1, x.dim()):
        raise IndexError(f"dim must be a dimension of x, {tuple(x.shape)}; got {dim}")
    return x.movedim(dim, -1) if x.dim() else x.unsqueeze(0)


def _back(moved: Tensor, x: Tensor, dim: int) -> Tensor:
    """Bring the sorted dimension back to where it was in x."""
    return moved.movedim(-1, dim) if x.dim() else moved.squeeze(0)
