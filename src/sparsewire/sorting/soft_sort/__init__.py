"""Sorting with a gradient: soft versions of torch's family of sorting functions.

Quicksort with medians as pivots, as in the paper, cuts every bucket log₂ n times into halves by a
half-permutation (`sparsewire.sorting.halves`). Here a bucket is already in order when it is cut, so
elements far from the cut stay where they are, and only a few around it, `reach` on each side, are
mixed. There is one cut between any two neighbours in the order: the whole costs O(n log n) for the
sort and O(n · reach) for the mixing, and nothing of size n × n is stored, unless a permutation is
asked for.

All functions share these arguments:

- `dim`: the dimension that is sorted; all others are a batch.
- `descending`: whether the largest come first.
- `temperature`: distance of two keys at which their order becomes doubtful. None takes the mean
  distance of neighbours for evenly spaced keys: four times their mean absolute deviation from the
  median, over n. It thus follows the scale of the input and the number of elements. With 0 the
  result is exactly torch's, and the keys get no gradient but that of a sort.
- `distribution`: how doubt falls with distance, see `sparsewire.sorting.log_odds`. The default has
  heavy tails: a pair has a gradient, in float32 up to about 10⁸ temperatures apart.
- `reach`: number of elements on each side of a cut that take part in it.
- `hard`: return what torch would, with the gradient of the soft result.

Keys are computed in float32 at least. Infinite ones are certain to be at the ends.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from sparsewire.annotations import Float
from sparsewire.checks import check_choice, check_count, check_floating, check_range
from sparsewire.engines import Engine, dispatch
from sparsewire.sorting._rows import concrete_on_cpu, few_threads, flat_payload
from sparsewire.sorting.halves import DISTRIBUTIONS, Distribution
from sparsewire.sorting.soft_sort._order_numpy import AT_ONCE, LEAST, within_range
from sparsewire.sorting.soft_sort._short_rows import ShortSort, are_short, is_plain
from sparsewire.sorting.soft_sort._soft_numbers import SoftNumbers
from sparsewire.sorting.soft_sort._soft_order import Call, by_torch
from sparsewire.sorting.soft_sort._soft_payload import MOST, SoftPayload

_REACH = 2


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
    distribution: Distribution = "student",
    reach: int = _REACH,
    hard: bool = False,
) -> Float[Tensor, "*b"]:
    """Return the elements in soft order; see the module for the arguments.

    Examples:
        >>> x = torch.tensor([3.0, 1.0, 2.0])
        >>> soft_sort(x, temperature=0.1)
        tensor([1.0001, 2.0000, 2.9999])
        >>> soft_sort(x, temperature=0.0)
        tensor([1., 2., 3.])
    """
    how = (descending, temperature, distribution, reach, hard)
    return _back(_dispatch("sort", _last(x, dim), None, *how), x, dim)


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
    """Return the rank of each element in the soft order, from 0; see the module for the arguments.

    Examples:
        >>> soft_rank(torch.tensor([3.0, 1.0, 2.0]), temperature=1.0)
        tensor([1.8273, 0.1828, 0.9899])
    """
    how = (descending, temperature, distribution, reach, hard)
    return _back(_dispatch("rank", _last(x, dim), None, *how), x, dim)


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
    """Return the matrix P for which `P @ x` is in soft order; see the module for the arguments.

    Its last two dimensions are positions and elements; `dim` is removed from where it was. Rows and
    columns sum to one.

    Examples:
        >>> soft_permutation(torch.tensor([2.0, 1.0]), temperature=1.0)
        tensor([[0.1273, 0.8727],
                [0.8727, 0.1273]])
    """
    how = (descending, temperature, distribution, reach, hard)
    return _dispatch("permutation", _last(x, dim), None, *how)


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
    """Return a payload in the soft order of its keys; see the module for the arguments.

    The last dimension of the keys is sorted. The payload begins with the shape of the keys and may
    have any further dimensions.

    Examples:
        >>> sort_by(torch.tensor([2.0, 1.0]), torch.eye(2), temperature=0.0)
        tensor([[0., 1.],
                [1., 0.]])
    """
    flat = flat_payload(keys, payload)
    how = (descending, temperature, distribution, reach, hard)
    return _dispatch("payload", keys, flat, *how).reshape(payload.shape)


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
    """Return the k largest elements in soft order, and the indices of the hard ones.

    With `largest=False`, the k smallest. See the module for the other arguments.

    Examples:
        >>> soft_topk(torch.tensor([1.0, 4.0, 2.0]), k=2, temperature=0.0)
        SoftTopK(values=tensor([4., 2.]), indices=tensor([1, 2]))
    """
    n = x.shape[dim] if x.dim() else 1
    if not 0 <= check_count("k", k) <= n:
        raise ValueError(f"k must be 0 to {n}, the elements of the dimension; got {k}")
    how = (temperature, distribution, reach, hard)
    values = _back(_dispatch("sort", _last(x, dim), None, largest, *how), x, dim)
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

    `q` is one probability or several, for which the result has a first dimension. With `keepdim`
    the result keeps `dim`, with one element. See the module for the other arguments.

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
    how = (temperature, distribution, reach, hard)
    values = _back(_dispatch("sort", _last(x, dim), None, False, *how), x, dim)
    results = []
    for share in shares:
        below = min(int(share * (n - 1)), max(0, n - 2))
        low = values.narrow(dim, below, 1) if x.dim() else values
        high = values.narrow(dim, min(below + 1, n - 1), 1) if x.dim() else values
        part = share * (n - 1) - below
        # Avoid 0 · inf = NaN.
        results.append(low if part == 0 else high if part == 1 else torch.lerp(low, high, part))
    if x.dim() and not keepdim:
        results = [each.squeeze(dim) for each in results]
    return results[0] if isinstance(q, int | float) else torch.stack(results)


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
    """Return the median, of an even number of elements the mean of the two in the middle."""
    how: dict[str, Any] = {"distribution": distribution, "reach": reach, "hard": hard}
    return soft_quantile(x, 0.5, dim, keepdim, temperature=temperature, **how)


def _dispatch(
    operation: Literal["sort", "rank", "permutation", "payload"],
    keys: Tensor,
    payload: Tensor | None,
    *how: Any,
) -> Tensor:
    wide = keys.to(torch.promote_types(keys.dtype, torch.float32))
    result: Tensor = dispatch(_ENGINES, keys.device, Call(operation, wide, payload, *how))
    return result.to(keys.dtype if payload is None else payload.dtype)


def _last(x: Tensor, dim: int) -> Tensor:
    """Check the elements, and move the sorted dimension to the end."""
    check_floating("x", x)
    if not -max(1, x.dim()) <= dim < max(1, x.dim()):
        raise IndexError(f"dim must be a dimension of x, {tuple(x.shape)}; got {dim}")
    if not x.dim():
        return x.unsqueeze(0)
    return x if dim in (-1, x.dim() - 1) else x.movedim(dim, -1)


def _back(moved: Tensor, x: Tensor, dim: int) -> Tensor:
    """Move the sorted dimension back to where it was in x."""
    if not x.dim():
        return moved.squeeze(0)
    return moved if dim in (-1, x.dim() - 1) else moved.movedim(-1, dim)


def _by_kernels(call: Call) -> Tensor:
    short = call.operation in ("sort", "rank") and are_short(call.keys, call.temperature)
    if not short or call.hard or call.distribution == "cauchy" or not _is_two(call.reach):
        return by_torch(call, "triton")
    check_choice("distribution", call.distribution, DISTRIBUTIONS)
    options = (call.distribution, call.temperature, call.descending, call.operation == "rank")
    return ShortSort.apply(call.keys, *options)  # pyright: ignore[reportReturnType]


def _kernels_take(call: Call) -> bool:
    transformed = torch._C._are_functorch_transforms_active()
    return call.keys.dtype == torch.float32 and call.keys.numel() > 0 and not transformed


def _by_numpy(call: Call) -> Tensor:
    keys, payload, options = call.keys, call.payload, (call.temperature, call.descending)
    if call.operation in ("sort", "rank"):
        return SoftNumbers.apply(keys, *options, call.operation == "rank")  # pyright: ignore
    if payload is None:
        payload = torch.eye(keys.shape[-1]).expand(*keys.shape, keys.shape[-1])
    return SoftPayload.apply(keys, payload.float(), *options)  # pyright: ignore


def _numpy_takes(call: Call) -> bool:
    keys, payload = call.keys, call.payload
    if call.hard or call.distribution != "student" or not _is_two(call.reach):
        return False
    if not is_plain(call.temperature):
        return False
    if payload is not None and not (payload.dtype != torch.float64 and concrete_on_cpu(payload)):
        return False
    if not concrete_on_cpu(keys) or keys.dtype != torch.float32 or not keys.numel():
        return False
    return keys.shape[-1] >= LEAST and 0 < _features(call) <= MOST and within_range(keys)


def _numpy_pays(call: Call) -> bool:
    if not _is_concrete(call):
        return False
    return call.keys.numel() * _features(call) <= AT_ONCE or few_threads(call.keys)


def _is_concrete(call: Call) -> bool:
    return concrete_on_cpu(call.keys)


def _features(call: Call) -> int:
    if call.payload is not None:
        return call.payload.shape[-1]
    return call.keys.shape[-1] if call.operation == "permutation" else 1


def _is_two(reach: int) -> bool:
    return type(reach) is int and reach == 2  # other types are refused later


_ENGINES = (
    Engine("triton", _by_kernels, _kernels_take),
    Engine("numpy", _by_numpy, _numpy_takes, _numpy_pays),
    Engine(
        "chunked", lambda call: by_torch(call, "chunked"), lambda call: concrete_on_cpu(call.keys)
    ),
    Engine("reference", lambda call: by_torch(call, "reference")),
)
