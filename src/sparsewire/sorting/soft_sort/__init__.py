"""Sorting with a gradient: soft versions of torch's family of sorting functions.

Quicksort with medians as pivots, as in the paper: log₂ n times every bucket is cut into halves by a
half-permutation (`sparsewire.sorting.halves`), of which each element is a part by its odds. Here the
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
- `distribution`: how doubt falls with distance, see `sparsewire.sorting.halves.log_odds`. The default has
  heavy tails: a pair has a gradient, in float32 up to some 10⁸ temperatures apart.
- `reach`: how many elements on each side of a cut take part in it.
- `hard`: return what torch would, with the gradient of the soft result.

Keys are computed in float32 at least. Infinite ones lie at the ends, with certainty.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sparsewire.annotations import Float
from sparsewire.checks import check_count, check_devices, check_floating, check_range
from sparsewire.sorting.halves import Distribution
from sparsewire.sorting.soft_sort._soft_numbers import soft_numbers
from sparsewire.sorting.soft_sort._soft_order import SoftOrder, finite_part
from sparsewire.sorting.soft_sort._soft_things import soft_matrix, soft_things

_REACH = 2


class SoftTopK(NamedTuple):
    """The largest elements, softly, and where the hard ones are."""

    values: Tensor
    indices: Tensor


def soft_sort(
    x: Float[Tensor, "*b"],
    dim: int = -1,
    descending: bool = False,
    *,
    temperature: float | Tensor | None = None,
    distribution: Distribution = "student",
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
    how = (descending, temperature, distribution, reach)
    if not hard and (soft := soft_numbers(moved, *how, ranks=False)) is not None:
        return _back(soft.to(x.dtype), x, dim)
    order = SoftOrder(moved, *how)
    soft = order.soft()
    return _back(_hardened(soft, order.exact(), hard).to(x.dtype), x, dim)


def soft_rank(
    x: Float[Tensor, "*b"],
    dim: int = -1,
    descending: bool = False,
    *,
    temperature: float | Tensor | None = None,
    distribution: Distribution = "student",
    reach: int = _REACH,
    hard: bool = False,
) -> Float[Tensor, "*b"]:
    """Return the place of each element in the order, from 0.

    Examples:
        >>> soft_rank(torch.tensor([3.0, 1.0, 2.0]), temperature=1.0)
        tensor([1.8273, 0.1828, 0.9899])
    """
    moved = _last(x, dim)
    how = (descending, temperature, distribution, reach)
    if not hard and (soft := soft_numbers(moved, *how, ranks=True)) is not None:
        return _back(soft.to(x.dtype), x, dim)
    order = SoftOrder(moved, *how)
    soft = order.ranks()
    soft = soft + order.nothing() if order.sure else soft
    exact = order.scattered(order.places()) if hard else soft
    return _back(_hardened(soft, exact, hard).to(x.dtype), x, dim)


def soft_permutation(
    x: Float[Tensor, "*b"],
    dim: int = -1,
    descending: bool = False,
    *,
    temperature: float | Tensor | None = None,
    distribution: Distribution = "student",
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
    how = (descending, temperature, distribution, reach)
    if not hard and (soft := soft_matrix(moved, *how)) is not None:
        return soft.to(x.dtype)
    order, n = SoftOrder(moved, *how), moved.shape[-1]
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
    distribution: Distribution = "student",
    reach: int = _REACH,
    hard: bool = False,
) -> Float[Tensor, "*x"]:
    """Return things in the order of their keys.

    Args:
        keys: The last dimension is sorted.
        payload: What belongs to the keys, with any further dimensions.
        descending: See the module, as for the others.
        temperature: See the module.
        distribution: See the module.
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
    flat = payload.flatten(keys.dim()) if payload.dim() > keys.dim() else payload.unsqueeze(-1)
    how = (descending, temperature, distribution, reach)
    if not hard and (soft := soft_things(keys, flat, *how)) is not None:
        return soft.to(payload.dtype).reshape(payload.shape)
    order = SoftOrder(keys, *how)
    exact = order.things(flat)
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
    distribution: Distribution = "student",
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
    options = {
        "temperature": temperature,
        "distribution": distribution,
        "reach": reach,
        "hard": hard,
    }
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
    distribution: Distribution = "student",
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
        distribution: See the module.
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
    options = {
        "temperature": temperature,
        "distribution": distribution,
        "reach": reach,
        "hard": hard,
    }
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
    distribution: Distribution = "student",
    reach: int = _REACH,
    hard: bool = False,
) -> Float[Tensor, "*q"]:
    """Return the median: of an even number of elements, the mean of the two in the middle."""
    options = {
        "temperature": temperature,
        "distribution": distribution,
        "reach": reach,
        "hard": hard,
    }
    return soft_quantile(x, 0.5, dim, keepdim, **options)  # pyright: ignore[reportArgumentType]


def _hardened(soft: Tensor, exact: Tensor, hard: bool) -> Tensor:
    """The hard result with the gradient of the soft one, if that is asked for."""
    if not hard:
        return soft
    exact = exact.detach()
    change = soft - soft.detach()
    return exact + finite_part(change)


def _last(x: Tensor, dim: int) -> Tensor:
    """Check the elements, and bring the sorted dimension to the end."""
    check_floating("x", x)
    if not -max(1, x.dim()) <= dim < max(1, x.dim()):
        raise IndexError(f"dim must be a dimension of x, {tuple(x.shape)}; got {dim}")
    if not x.dim():
        return x.unsqueeze(0)
    return x if dim in (-1, x.dim() - 1) else x.movedim(dim, -1)


def _back(moved: Tensor, x: Tensor, dim: int) -> Tensor:
    """Bring the sorted dimension back to where it was in x."""
    if not x.dim():
        return moved.squeeze(0)
    return moved if dim in (-1, x.dim() - 1) else moved.movedim(-1, dim)
