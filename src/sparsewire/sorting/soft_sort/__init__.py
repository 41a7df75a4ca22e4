"""Sorting with a gradient: torch's family of sorting functions, continuous and differentiable.

Every key x_i is replaced by a Laplace distribution of width T, the temperature. With its
distribution function F, S(b) = Σ_i F((b − x_i) / T) is the expected number of keys below b. From
this one function follow all others:

- the rank of an element is S(x_i) − 1/2, from 0; equal keys have equal ranks;
- thresholds b_k solve S(b_k) = k for k = 0 … n;
- the permutation P_ki = F((b_{k+1} − x_i) / T) − F((b_k − x_i) / T) has rows and columns that sum
  to one, and P x is in order.

The idea is that of LapSum (Struski et al., ICML 2025). It costs one sort and O(n) operations, and
nothing of size n × n is stored unless a permutation is asked for. All results are continuous in the
keys, also where two of them meet, and have derivatives of any order.

All functions share these arguments:

- `dim`: the dimension that is sorted; all others are a batch. `descending`: the largest first.
- `temperature`: the distance of two keys at which their order becomes doubtful; a number, or a
  tensor with one for each row (the shape of x without `dim`, or with size 1 there). At 0 the
  result is exactly torch's; ranks of equal keys are averaged. None takes √12 standard deviations
  over n, the distance of neighbours of evenly spaced keys. It is a constant for the gradient,
  follows the scale of the row, and is 1 where all keys are equal: as they meet, results jump.
- `tails`: `"light"` is Laplace's distribution, whose gradient falls by e with every temperature of
  distance; `"heavy"` averages four with temperatures T, 8 T, 64 T and 512 T, for keys that are far
  from where they belong, at four times the cost.
- `mask`: a boolean tensor that broadcasts to x, True for valid elements. The others, padding,
  influence nothing and get no gradient. Valid elements come first, what is left is 0.
- `weights`: frequencies, at least 0, that broadcast to x; an element of weight 2 is there twice.
- `hard`: return what torch would, with the gradient of the soft result.

Keys are computed in float32 at least, sums in float64. Infinite keys are certain to be at the ends.
NaN counts as larger than infinity, as in `torch.sort`, and gives no other element a NaN. Values of
tensors on a GPU are not checked, since the host would have to wait for them.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsewire.annotations import Float
from sparsewire.checks import check_count, check_devices, check_floating
from sparsewire.sorting.soft_sort._call import Tails
from sparsewire.sorting.soft_sort._inputs import Rows
from sparsewire.sorting.soft_sort.quantile import soft_median, soft_quantile

__all__ = [
    "SoftTopK",
    "soft_median",
    "soft_permutation",
    "soft_quantile",
    "soft_rank",
    "soft_sort",
    "soft_topk",
    "soft_topk_mask",
    "sort_by",
]

_GATE_TEMPERATURE = 1.0


class SoftTopK(NamedTuple):
    """The largest elements in soft order, and the indices of the hard ones."""

    values: Tensor
    indices: Tensor


def soft_sort(
    x: Float[Tensor, "*b"],
    dim: int = -1,
    descending: bool = False,
    *,
    temperature: float | Tensor | None = None,
    tails: Tails = "light",
    mask: Tensor | None = None,
    hard: bool = False,
) -> Float[Tensor, "*b"]:
    """Return the elements in soft order; see the module for the arguments.

    Examples:
        >>> x = torch.tensor([3.0, 1.0, 2.0])
        >>> soft_sort(x, temperature=0.1)
        tensor([1.0034, 2.0000, 2.9966])
        >>> soft_sort(x, temperature=1.0)
        tensor([1.4501, 2.0000, 2.5499])
    """
    rows = Rows(x, dim, descending, temperature, tails, mask, fused=not hard)
    if rows.kernels:
        return rows.back(rows.by_kernels(None))
    return rows.back(_first(rows, None, hard))


def soft_rank(
    x: Float[Tensor, "*b"],
    dim: int = -1,
    descending: bool = False,
    *,
    temperature: float | Tensor | None = None,
    tails: Tails = "light",
    mask: Tensor | None = None,
    weights: Tensor | None = None,
    hard: bool = False,
) -> Float[Tensor, "*b"]:
    """Return the rank of each element in the soft order, from 0; see the module for the arguments.

    The rank is the sum of the weights of smaller elements; that of a masked element is 0.

    Examples:
        >>> soft_rank(torch.tensor([3.0, 1.0, 2.0]), temperature=1.0)
        tensor([1.7484, 0.2516, 1.0000])
        >>> soft_rank(torch.tensor([5.0, 5.0, 7.0]), temperature=0.0)
        tensor([0.5000, 0.5000, 2.0000])
    """
    rows = Rows(x, dim, descending, temperature, tails, mask, weights, fused=not hard)
    if rows.kernels:
        found = rows.by_kernels(None, ranks=True)
    else:
        found = rows.choose(lambda: rows.compute("rank"), lambda: _hard_ranks(rows), hard)
    return rows.back(found if rows.mask is None else found.where(rows.mask, 0))


def soft_permutation(
    x: Float[Tensor, "*b"],
    dim: int = -1,
    descending: bool = False,
    *,
    temperature: float | Tensor | None = None,
    tails: Tails = "light",
    mask: Tensor | None = None,
    hard: bool = False,
) -> Float[Tensor, "*p"]:
    """Return the matrix P for which `P @ x` is in soft order; see the module for the arguments.

    Its last two dimensions are positions and elements; `dim` is removed from where it was. Rows and
    columns of valid elements sum to one.

    Examples:
        >>> soft_permutation(torch.tensor([2.0, 1.0]), temperature=1.0)
        tensor([[0.3033, 0.6967],
                [0.6967, 0.3033]])
    """
    rows = Rows(x, dim, descending, temperature, tails, mask)
    n = rows.values.shape[-1]

    def soft() -> Tensor:
        levels = torch.arange(n + 1, dtype=torch.float64, device=x.device)
        found = rows.below(levels).diff(dim=-2).to(rows.keys.dtype)
        return found if rows.weights is None else found * rows.weights.unsqueeze(-2)

    def hard_one() -> Tensor:
        order = rows.order()
        taken = (torch.ones_like(rows.keys) * rows.present(order)).unsqueeze(-1)
        found = (0 * rows.keys).unsqueeze(-2).repeat(1, n, 1)
        return found.scatter(-1, order.unsqueeze(-1), taken)

    found = rows.choose(soft, hard_one, hard).to(x.dtype)
    shape = [size for d, size in enumerate(x.shape) if d != rows.dim] if x.dim() else []
    return found.reshape(*shape, n, n)


def sort_by(
    keys: Float[Tensor, "*b"],
    payload: Float[Tensor, "*x"],
    dim: int = -1,
    descending: bool = False,
    *,
    temperature: float | Tensor | None = None,
    tails: Tails = "light",
    mask: Tensor | None = None,
    hard: bool = False,
) -> Float[Tensor, "*x"]:
    """Return a payload in the soft order of its keys; see the module for the arguments.

    `dim` is a dimension of the keys. The payload begins with their shape and may have any further
    dimensions.

    Examples:
        >>> sort_by(torch.tensor([2.0, 1.0]), torch.eye(2), temperature=0.0)
        tensor([[0., 1.],
                [1., 0.]])
    """
    check_floating("keys", keys)
    check_floating("payload", payload)
    check_devices(keys=keys, payload=payload)
    if payload.shape[: keys.dim()] != keys.shape or not keys.dim():
        raise ValueError(
            f"payload must begin with the shape of keys, {tuple(keys.shape)}, of at least one "
            f"dimension; got {tuple(payload.shape)}"
        )
    fused = not hard and payload.dtype != torch.float64
    rows = Rows(keys, dim, descending, temperature, tails, mask, name="keys", fused=fused)
    moved = payload.movedim(rows.dim, keys.dim() - 1)
    flat = moved.reshape(*rows.values.shape, moved.shape[keys.dim() :].numel())
    if rows.mask is not None:
        flat = flat.where(rows.mask.unsqueeze(-1), 0)
    if rows.kernels and flat.shape[-1]:
        found = rows.by_kernels(flat.float())
    else:
        found = _first(rows, flat, hard)
    found = found.to(payload.dtype)
    return found.reshape(moved.shape).movedim(keys.dim() - 1, rows.dim)


def soft_topk(
    x: Float[Tensor, "*b"],
    k: int,
    dim: int = -1,
    largest: bool = True,
    *,
    temperature: float | Tensor | None = None,
    tails: Tails = "light",
    mask: Tensor | None = None,
    hard: bool = False,
) -> SoftTopK:
    """Return the k largest elements in soft order, and the indices of the hard ones.

    With `largest=False`, the k smallest. Where fewer than k elements are valid, the other values
    are 0, and their indices those of masked elements. See the module for the other arguments.

    Examples:
        >>> soft_topk(torch.tensor([1.0, 4.0, 2.0]), k=2, temperature=0.0)
        SoftTopK(values=tensor([4., 2.]), indices=tensor([1, 2]))
    """
    rows = Rows(x, dim, largest, temperature, tails, mask)
    n = rows.values.shape[-1]
    if not 0 <= check_count("k", k) <= n:
        raise ValueError(f"k must be 0 to {n}, the elements of the dimension; got {k}")
    values, indices = _first(rows, None, hard, k), rows.order()[:, :k]
    if not x.dim():
        return SoftTopK(values.to(x.dtype).view([1] * k)[(0,) * k], indices.view([1] * k)[(0,) * k])
    return SoftTopK(rows.back(values), rows.back(indices).long())


def soft_topk_mask(
    x: Float[Tensor, "*b"],
    k: int | float | Tensor,
    dim: int = -1,
    largest: bool = True,
    *,
    temperature: float | Tensor | None = None,
    tails: Tails = "light",
    mask: Tensor | None = None,
    hard: bool = False,
) -> Float[Tensor, "*b"]:
    """Return how far each element belongs to the k largest: numbers from 0 to 1 that sum to k.

    With `largest=False`, to the k smallest. k is a whole or broken number, or a tensor with one for
    each row. Where it is more than the number of valid elements, all of these have 1. See the
    module for the other arguments.

    As a gate, `x * soft_topk_mask(scores, k)`, it selects k features while it is trained. For that
    the temperature None is 1, whatever the scale of the scores: a temperature that follows the
    scale would decide at the first step, in which scores differ by chance.

    Examples:
        >>> soft_topk_mask(torch.tensor([3.0, 1.0, 2.0, 0.0]), k=2)
        tensor([0.8884, 0.3033, 0.6967, 0.1116])
        >>> soft_topk_mask(torch.tensor([3.0, 1.0, 2.0, 0.0]), k=1.5, hard=True)
        tensor([1.0000, 0.0000, 0.5000, 0.0000])
    """
    temperature = _GATE_TEMPERATURE if temperature is None else temperature
    rows = Rows(x, dim, largest, temperature, tails, mask)
    sizes = rows.by_row("k", k, float(rows.values.shape[-1]))

    def soft() -> Tensor:
        found = rows.below(sizes).squeeze(-2).to(rows.keys.dtype)
        # Beyond the ends there is no threshold.
        found = torch.where(sizes <= 0, 0, torch.where(sizes >= rows.count(), 1, found))
        return found if rows.mask is None else found.where(rows.mask, 0)

    def hard_one() -> Tensor:
        order, places = rows.order(), torch.arange(rows.values.shape[-1], device=x.device)
        taken = (sizes - places).clamp(0, 1) * rows.present(order)
        return (0 * rows.keys).scatter(-1, order, taken)

    return rows.back(rows.choose(soft, hard_one, hard))


def _first(rows: Rows, payload: Tensor | None, exact: bool, k: int | None = None) -> Tensor:
    """The payload in order, (b, k, f), or without one the elements themselves, (b, k)."""
    n = rows.values.shape[-1]
    k = n if k is None else k
    given = rows.known().unsqueeze(-1) if payload is None else payload

    def soft() -> Tensor:
        if not (k and given.shape[-1]):
            return given[:, :k]
        return rows.compute(
            "mix", given, None if k == n else torch.arange(k + 1.0, device=given.device)
        )

    def hard(values: Tensor = given) -> Tensor:
        index = rows.order()[:, :k].unsqueeze(-1).expand(-1, -1, values.shape[-1])
        return values.gather(-2, index) + 0 * rows.keys[:, :k].unsqueeze(-1)

    found = rows.choose(soft, hard, exact)
    if payload is not None:
        return found
    found = found.squeeze(-1)
    if rows.special and n:  # infinite elements and NaN are certain
        values = rows.values.detach()
        values = values if rows.mask is None else values.where(rows.mask, 0)
        certain = hard(values.unsqueeze(-1)).squeeze(-1)
        found = torch.where(certain.isfinite(), found, certain)
    return found


def _hard_ranks(rows: Rows) -> Tensor:
    """The mean of the ranks that equal keys share."""
    keys = rows.keys.detach().contiguous()
    order = rows.order()
    ordered = keys.gather(-1, order)
    weights = torch.ones_like(keys) if rows.weights is None else rows.weights
    total = F.pad(weights.gather(-1, order).double().cumsum(-1), (1, 0))
    ends = [total.gather(-1, torch.searchsorted(ordered, keys, right=r)) for r in (False, True)]
    return ((ends[0] + ends[1] - weights) / 2).to(keys.dtype) + 0 * rows.keys
