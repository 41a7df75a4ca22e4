"""Keys in order, and how values are mixed by the doubt about it: the engines in PyTorch.

The specification is the matrices of each level of cuts, applied one after the other: the engine
`"reference"`. With a reach of two the engine `"chunked"` mixes numbers by `_mixing`, and payloads
if the keys are finite, and `"triton"` by kernels. Most soft sorts are computed from
the keys on by `_soft_numbers`, `_soft_payload` and `_short_rows` instead.
"""

import functools
import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsewire.checks import check_choice, check_count, check_floating, check_range
from sparsewire.engines import Name
from sparsewire.precision import without_autocast
from sparsewire.sorting._rows import sort_rows
from sparsewire.sorting.halves import CERTAIN_DISTANCE, DISTRIBUTIONS, Distribution, half, log_odds
from sparsewire.sorting.soft_sort._mixing import Mix
from sparsewire.sorting.soft_sort._short_rows import ShortOrder, are_short


class Call(NamedTuple):
    """The arguments of a soft sort."""

    operation: Literal["sort", "rank", "permutation", "payload"]
    keys: Tensor  # (*b, n), in float32 or float64
    payload: Tensor | None  # (*b, n, f)
    descending: bool
    temperature: float | Tensor | None
    distribution: Distribution
    reach: int
    hard: bool


def by_torch(call: Call, engine: Name) -> Tensor:
    """Compute a soft sort in PyTorch, and with `"triton"` by kernels as far as they take it."""
    keys = call.keys
    order = SoftOrder(
        keys, call.descending, call.temperature, call.distribution, call.reach, engine
    )
    if call.operation == "sort":
        soft, exact = order.soft(), order.exact()
    elif call.operation == "rank":
        soft = order.ranks()
        soft = soft + order.nothing() if order.sure else soft
        exact = order.scattered(order.places()) if call.hard else soft
    else:
        if call.payload is None:
            zeros = keys.new_zeros(*keys.shape, keys.shape[-1])
            exact = zeros.scatter(-1, order.index.unsqueeze(-1), 1.0)
        else:
            exact = order.ordered(call.payload)
        soft = order.mixed(exact.to(torch.promote_types(exact.dtype, keys.dtype)))
        soft = soft + order.nothing().unsqueeze(-1) if order.sure else soft
        soft = soft.to(exact.dtype)
    if not call.hard:
        return soft
    # The hard result with the gradient of the soft one.
    return exact.detach() + finite_part(soft - soft.detach())


class _Cuts(NamedTuple):
    """How sorted elements are mixed by some cuts.

    Buckets have `size` places; the `width` places around the middle of each are mixed by a matrix,
    of which each row is a place and each column an element.
    """

    size: int
    width: int
    matrix: Tensor  # (*b, buckets, width, width)
    outside: int = 0  # places before the first bucket, and behind the last


class SoftOrder:
    """Keys in order, and how doubtful their order is.

    Args:
        keys: The last dimension is sorted; in float32 or float64.
        descending: Whether the largest come first.
        temperature: As in `sparsewire.sorting.soft_sort`.
        distribution: The same.
        reach: The same.
        engine: `"reference"`, `"chunked"` for concrete keys on the CPU, or `"triton"`.
    """

    def __init__(
        self,
        keys: Tensor,
        descending: bool,
        temperature: float | Tensor | None,
        distribution: Distribution,
        reach: int,
        engine: Name,
    ) -> None:
        self.reach = check_count("reach", reach, least=1)
        self.distribution: Distribution = check_choice("distribution", distribution, DISTRIBUTIONS)
        if isinstance(temperature, Tensor):
            check_floating("temperature", temperature)
        elif temperature is not None:
            check_range("temperature", temperature, 0.0, math.inf)
        self.wide = keys
        self.descending = descending
        n = keys.shape[-1]
        self.eager, self.kernels = engine == "chunked", engine == "triton"
        exact = not isinstance(temperature, Tensor) and temperature == 0
        self.sure = exact or n < 2
        self.full = full_size(n)
        self.finite = False
        if self.kernels and are_short(self.wide, temperature):
            self.index, self.gaps = ShortOrder.apply(self.wide, temperature, descending)
            return
        found, self.index = sort_rows(self.wide, descending)
        self.inorder = -found if descending else found
        # What is not finite is at the ends.
        self.finite = self.eager and n > 0 and _all_finite(self.inorder.detach())
        self.gaps = self.inorder
        if not self.sure:
            self.gaps = gaps_between(self.inorder, descending, temperature, self.finite)

    @functools.cached_property
    def inorder(self) -> Tensor:
        """The keys in order, the largest with the other sign if they come first."""
        found = self.wide.gather(-1, self.index)
        return -found if self.descending else found

    def sorted(self, values: Tensor) -> Tensor:
        """Mix values that stand in the hard order, (*b, n)."""
        return self._mixed_numbers(values, back=False)

    def unsorted(self, places: Tensor) -> Tensor:
        """Of values for places return what is expected for each element, both in order."""
        return self._mixed_numbers(places, back=True)

    def exact(self) -> Tensor:
        """The keys in order."""
        return -self.inorder if self.descending else self.inorder

    def soft(self) -> Tensor:
        """The keys in soft order; those that are infinite stay so."""
        exact = self.exact()
        if self.finite:
            return self.sorted(exact)
        return torch.where(exact.abs() < torch.inf, self.sorted(finite_part(exact)), exact)

    def ranks(self) -> Tensor:
        """The place that is expected for each element."""
        return self.scattered(self.unsorted(self.places()))

    def places(self) -> Tensor:
        """The number of each place."""
        shape = self.wide.shape
        places = torch.arange(shape[-1], dtype=self.wide.dtype, device=self.wide.device)
        return places.expand(shape)

    def ordered(self, payload: Tensor) -> Tensor:
        """The payload, (*b, n, f), in the hard order."""
        return payload.gather(-2, self.index.unsqueeze(-1).expand_as(payload))

    def mixed(self, values: Tensor, back: bool = False) -> Tensor:
        """Mix values with a last dimension of features, (*b, n, f)."""
        if self.sure:
            return values
        if self._has_kernel(values):
            return self._by_kernel(values, back)
        n = values.shape[-2]
        values = F.pad(values, (0, 0, 0, self.full - n)) if self.full > n else values
        if self.reach == 2 and self.finite and values.numel():
            rows = values.reshape(-1, *values.shape[-2:])
            gaps = self.gaps.to(values.dtype).reshape(-1, self.full - 1)
            mixed: Tensor = Mix.apply(rows, gaps, back, self.distribution)  # pyright: ignore
            return mixed.view(values.shape).narrow(-2, 0, n)
        with without_autocast(values):
            levels = _cuts(self.gaps, self.distribution, self.reach)
            for cuts in reversed(levels) if back else levels:
                values = _mix(values, cuts, back)
        return values.narrow(-2, 0, n)

    def nothing(self) -> Tensor:
        """Zeros that hang on the keys: a result without doubt can be differentiated too."""
        return finite_part(self.wide) * 0

    def scattered(self, inorder: Tensor) -> Tensor:
        """Bring what stands in order to where the elements were."""
        empty = torch.empty_like(inorder)
        # In place saves a copy; `vmap` has no rule for it.
        scatter = empty.scatter_ if self.eager else empty.scatter
        return scatter(-1, self.index, inorder)

    def _mixed_numbers(self, values: Tensor, back: bool) -> Tensor:
        if self.sure:
            return values
        if self.reach != 2 or not self.eager or self._has_kernel(values):
            return self.mixed(values.unsqueeze(-1), back).squeeze(-1)
        n = values.shape[-1]
        values = F.pad(values, (0, self.full - n)) if self.full > n else values
        rows, gaps = values.reshape(-1, self.full), self.gaps.reshape(-1, self.full - 1)
        mixed: Tensor = Mix.apply(rows, gaps, back, self.distribution)  # pyright: ignore
        mixed = mixed.view(values.shape)
        return mixed[..., :n] if self.full > n else mixed

    def _has_kernel(self, values: Tensor) -> bool:
        if not self.kernels or self.reach != 2 or self.distribution == "cauchy":
            return False
        if values.dtype != torch.float32 or self.gaps.dtype != torch.float32:
            return False
        return bool(values.numel()) and not torch._C._are_functorch_transforms_active()

    def _by_kernel(self, values: Tensor, back: bool) -> Tensor:
        from sparsewire.sorting.soft_sort._triton.mixing_library import NUMBERS, mix_sorted

        n, features = values.shape[-2:]
        gaps = self.gaps.reshape(-1, self.full - 1)
        mixed = mix_sorted(values.reshape(-1, n, features), gaps, back, NUMBERS[self.distribution])
        return mixed.view(values.shape)


def full_size(n: int) -> int:
    """The power of two to which n elements are filled up."""
    return 2 ** math.ceil(math.log2(n)) if n > 1 else n


def gaps_between(
    inorder: Tensor, descending: bool, temperature: float | Tensor | None, finite: bool
) -> Tensor:
    """Distances of neighbours in order, over the temperature: (*b, full - 1).

    What is filled up to a power of two is far above the last, and equal; so are infinite keys.
    """
    heat = _temperature(inorder, temperature, finite)
    if not finite:
        # What is not a number is where torch puts it: the largest of all.
        end = -torch.inf if descending else torch.inf
        inorder = inorder.nan_to_num(nan=end, posinf=torch.inf, neginf=-torch.inf)
    gaps = (inorder[..., 1:] - inorder[..., :-1]) / heat
    if not finite:
        gaps = gaps.nan_to_num(nan=0.0, posinf=10 * CERTAIN_DISTANCE)
    n = inorder.shape[-1]
    missing = full_size(n) - n
    if not missing:
        return gaps
    far = gaps.new_full((*gaps.shape[:-1], 1), 10 * CERTAIN_DISTANCE)
    return F.pad(torch.cat([gaps, far], dim=-1), (0, missing - 1))


def _cuts(gaps: Tensor, distribution: Distribution, reach: int) -> list[_Cuts]:
    """Return all levels for the gaps of sorted keys, that of the largest buckets first.

    A level of buckets up to twice the reach mixes whole buckets; in larger ones all cuts are alike,
    and computed together. Where their windows do not overlap they are also made together.
    """
    full = gaps.shape[-1] + 1
    levels = []
    size = 2
    while size <= min(full, 2 * reach):
        matrix = _matrix(_windows(gaps, 0, size, size), distribution)
        levels.append(_Cuts(size, size, matrix))
        size *= 2
    if size <= full:
        apart, width = size // 2, 2 * reach
        matrix = _matrix(_windows(gaps, apart - reach, width, apart), distribution)
        if width == apart:
            levels.append(_Cuts(apart, width, matrix, outside=reach))
            return levels[::-1]
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


def _matrix(gaps: Tensor, distribution: Distribution) -> Tensor:
    """The half-permutations of windows of sorted keys around their middle, from their gaps."""
    middle = gaps.shape[-1] // 2
    pivot = gaps[..., middle : middle + 1] / 2  # from the middle of this gap
    above = torch.cat([pivot, gaps[..., middle + 1 :]], dim=-1).cumsum(-1)
    below = torch.cat([gaps[..., :middle], pivot], dim=-1).flip(-1).cumsum(-1).flip(-1)
    return half(log_odds(torch.cat([-below, above], dim=-1), distribution), middle + 1)


def _temperature(inorder: Tensor, temperature: float | Tensor | None, finite: bool) -> Tensor:
    """The temperature of each row, (*b, 1), or of all: one by which it can be divided."""
    least = torch.finfo(inorder.dtype).tiny
    if isinstance(temperature, Tensor):
        heat = temperature.to(inorder).clamp(min=least)
        return heat.unsqueeze(-1) if temperature.dim() else heat
    if temperature is not None:
        return inorder.new_tensor(max(temperature, least))
    with torch.no_grad():
        n = inorder.shape[-1]
        away = (inorder - inorder[..., (n - 1) // 2 : (n + 1) // 2]).abs()
        # Divided first: the sum of large ones may be too large.
        if finite:
            mean = (away / n).sum(-1, keepdim=True)
        else:
            # Not by `isfinite`: that is four passes, and on a GPU it is passes that take time.
            away = away.nan_to_num(nan=0.0, posinf=0.0)
            there = (inorder.abs() < torch.inf).sum(-1, keepdim=True)
            mean = (away / there).sum(-1, keepdim=True)  # no number, if none is there
        heat = mean * (4 / max(n, 1))
        heat = heat if finite else heat.nan_to_num(nan=0.0, posinf=0.0)
        return torch.where(heat > 0, heat.clamp(min=least), 1.0)


def _mix(values: Tensor, cuts: _Cuts, back: bool) -> Tensor:
    n, start = values.shape[-2], (cuts.size - cuts.width) // 2
    buckets = values.narrow(-2, cuts.outside, n - 2 * cuts.outside).unflatten(-2, (-1, cuts.size))
    matrix = (cuts.matrix.transpose(-1, -2) if back else cuts.matrix).to(values.dtype)
    window = buckets.narrow(-2, start, cuts.width)
    if values.shape[-1] == 1:
        # Many small products of a matrix and a vector: faster one number at a time.
        mixed = (matrix * window.transpose(-1, -2)).sum(-1, keepdim=True)
    else:
        mixed = matrix @ window
    mixed = _between(buckets, mixed, start).flatten(-3, -2)
    return _between(values, mixed, cuts.outside)


def _between(whole: Tensor, middle: Tensor, ends: int) -> Tensor:
    """Put what is in the middle between so many of both ends."""
    if not ends:
        return middle
    first, last = whole.narrow(-2, 0, ends), whole.narrow(-2, whole.shape[-2] - ends, ends)
    return torch.cat([first, middle, last], dim=-2)


def _all_finite(inorder: Tensor) -> bool:
    """Whether sorted numbers are finite, and not too far apart to tell."""
    return bool((inorder[..., -1] - inorder[..., 0]).isfinite().all())


def finite_part(x: Tensor) -> Tensor:
    """Replace what is infinite: it is put in its place later, and must not spoil others."""
    return x.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
