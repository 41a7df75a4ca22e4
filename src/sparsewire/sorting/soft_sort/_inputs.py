"""Checked rows of keys, in the form that engines take: finite, ascending, with a temperature."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sparsewire.checks import check_choice, check_devices, check_floating, check_range
from sparsewire.engines import Engine, chosen, dispatch, kernels_run
from sparsewire.sorting._rows import concrete_on_cpu, sort_rows
from sparsewire.sorting.soft_sort import _numpy
from sparsewire.sorting.soft_sort._call import TAILS, Call, Operation, Tails, distribution
from sparsewire.sorting.soft_sort._operator import by_numpy
from sparsewire.sorting.soft_sort._reference import by_pairs
from sparsewire.sorting.soft_sort._scan import by_scan

_AWAY = 64  # temperatures between the keys and what is certain to be at an end
_HOT, _COOLER, _COLDEST = 2.0**100, 2.0**-60, 1e-37


def _by_kernels(call: Call) -> Tensor:
    from sparsewire.sorting.soft_sort._triton import operators

    return operators.by_kernels(call)


def _kernels_take(call: Call) -> bool:
    from sparsewire.sorting.soft_sort._triton import operators

    return operators.takes(call)


def _when_asked(call: Call) -> bool:
    """These kernels have run under the interpreter alone: `"auto"` waits for a GPU's verdict."""
    return False


_ENGINES = (
    Engine("triton", _by_kernels, _kernels_take, _when_asked),
    Engine("numpy", by_numpy, _numpy.takes),
    Engine("chunked", by_scan),
    Engine("reference", by_pairs),
)


class Rows:
    """The rows of a tensor along a dimension, (b, n), and how they are sorted."""

    def __init__(
        self,
        x: Tensor,
        dim: int,
        descending: bool,
        temperature: float | Tensor | None,
        tails: Tails,
        mask: Tensor | None = None,
        weights: Tensor | None = None,
        name: str = "x",
        fused: bool = False,
    ) -> None:
        check_floating(name, x)
        if not -max(1, x.dim()) <= dim < max(1, x.dim()):
            raise IndexError(f"dim must be a dimension of {name}, {tuple(x.shape)}; got {dim}")
        self.given, self.dim, self.name = x, dim % max(1, x.dim()), name
        self.tails: Tails = check_choice("tails", tails, tuple(TAILS))
        self.values = self._flat(x.to(torch.promote_types(x.dtype, torch.float32)))
        self.mask, self.weights = self._flags(mask), self._weights(weights)
        if self.mask is not None:
            if self.weights is None:
                self.weights = self.mask.to(self.values.dtype)
            else:
                self.weights = self.weights.where(self.mask, 0)
        self.descending = descending
        self.kernels = self._kernels(temperature) if fused else None
        if self.kernels is None:
            self._prepare(temperature)

    def _kernels(self, temperature: float | Tensor | None) -> Any:
        """The operators that take rows as they are, or None."""
        if chosen() != "triton" or self.tails != "light":
            return None
        kernels_run(self.values.device)  # refuses other devices
        if isinstance(temperature, Tensor) or temperature == 0 or _numpy.runs_forward():
            return None  # a row may have temperature zero
        from sparsewire.sorting.soft_sort._triton import operators

        self.given_heat = None
        if temperature is not None:
            heat = self.by_row("temperature", temperature, torch.finfo(self.values.dtype).max)
            cold = temperature < _COLDEST  # not 0 in float32
            self.given_heat = torch.full_like(heat, _COLDEST) if cold else heat
        fixed = self.weights is None or not self.weights.requires_grad
        return operators if fixed and operators.takes_short_rows(self.values) else None

    def _prepare(self, temperature: float | Tensor | None) -> None:
        keys = -self.values if self.descending else self.values
        # Without a look at the values, every row may have special ones.
        looks = concrete_on_cpu(self.given)
        self.special = not looks or not bool(self.values.detach().sum().isfinite())
        self.finite = self.mask
        if self.special:
            finite = torch.isfinite(keys)
            self.finite = finite if self.mask is None else finite & self.mask
        heat = self._heat(temperature, keys)
        self.keys, self.heat = (keys, heat) if self.finite is None else self._filled(keys, heat)

    def _flat(self, x: Tensor) -> Tensor:
        if not x.dim():
            return x.view(1, 1)
        x = x if self.dim == x.dim() - 1 else x.movedim(self.dim, -1)
        return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])

    def back(self, found: Tensor) -> Tensor:
        """Return rows of results, (b, n), in the shape and dtype that was given."""
        if not self.given.dim():
            return found.view(()).to(self.given.dtype)
        shape = list(self.given.shape)
        del shape[self.dim]
        found = found.reshape(*shape, found.shape[-1]).to(self.given.dtype)
        return found if self.dim == len(shape) else found.movedim(-1, self.dim)

    def _flags(self, mask: Tensor | None) -> Tensor | None:
        if mask is None:
            return None
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
            raise TypeError(f"mask must be a tensor of torch.bool, True for valid; got {got}")
        return self._flat(self._alike("mask", mask))

    def _weights(self, weights: Tensor | None) -> Tensor | None:
        if weights is None:
            return None
        if not isinstance(weights, Tensor):
            raise TypeError(f"weights must be a tensor; got {type(weights).__name__}")
        if concrete_on_cpu(weights) and not bool(
            (weights >= 0).logical_and(weights < math.inf).all()
        ):
            raise ValueError(f"weights must be finite and at least 0; got {_worst(weights)}")
        return self._flat(self._alike("weights", weights)).to(self.values.dtype)

    def _alike(self, name: str, t: Tensor) -> Tensor:
        check_devices(**{self.name: self.given, name: t})
        try:
            return t.expand(self.given.shape)
        except RuntimeError:
            raise ValueError(
                f"{name} must have a shape that broadcasts to that of {self.name}, "
                f"{tuple(self.given.shape)}; got {tuple(t.shape)}"
            ) from None

    def by_row(self, name: str, number: int | float | Tensor, most: float) -> Tensor:
        """Check a number of at least 0, or a tensor of one for each row; return it as (b, 1)."""
        if not isinstance(number, Tensor):
            number = float(number) if type(number) is int else number
            return self.values.new_full((len(self.values), 1), check_range(name, number, 0.0, most))
        check_devices(**{self.name: self.given, name: number})
        rows = [1 if d == self.dim else size for d, size in enumerate(self.given.shape)]
        fitting = number
        if 0 < number.dim() < len(rows):  # the shape without the dimension
            fitting = number.reshape(*[1] * (len(rows) - 1 - number.dim()), *number.shape)
            fitting = fitting.unsqueeze(self.dim)
        try:
            fitting = fitting.expand(rows)
        except RuntimeError:
            raise ValueError(
                f"{name} must be a number, or have the shape of {self.name} without dimension "
                f"{self.dim} or with size 1 there, {tuple(rows)}; got {tuple(number.shape)}"
            ) from None
        if concrete_on_cpu(number) and not bool(((number >= 0) & (number <= most)).all()):
            raise ValueError(f"{name} must be between 0 and {most:g}; got {_worst(number)}")
        return self._flat(fitting).to(self.values.dtype)

    def _heat(self, temperature: float | Tensor | None, keys: Tensor) -> Tensor:
        """The temperature of each row; rows of temperature zero are `cold`."""
        self.cold: bool | Tensor = False
        if temperature is None:
            return self._default_heat(keys)
        heat = self.by_row("temperature", temperature, torch.finfo(keys.dtype).max)
        if not isinstance(temperature, Tensor):
            self.cold = temperature == 0
            return torch.ones_like(heat) if self.cold else heat
        cold = heat == 0
        if concrete_on_cpu(temperature) and not bool(cold.any()):
            return heat
        self.cold = cold
        return torch.where(cold, 1, heat)

    def _default_heat(self, keys: Tensor) -> Tensor:
        """√12 standard deviations over n: the distance of neighbours of evenly spaced keys."""
        keys = keys.detach()
        if not keys.shape[-1]:
            return keys.new_ones(len(keys), 1)
        known = keys.double() if self.finite is None else keys.double().where(self.finite, 0)
        if self.finite is None and self.weights is None:
            mean, count = known.mean(-1, keepdim=True), keys.shape[-1]
            variance = (known - mean).square().mean(-1, keepdim=True)
        else:
            weights = (
                torch.ones_like(known) if self.weights is None else self.weights.detach().double()
            )
            weights = weights if self.finite is None else weights.where(self.finite, 0)
            count = weights.sum(-1, keepdim=True).clamp(min=torch.finfo(keys.dtype).tiny)
            mean = (weights * known).sum(-1, keepdim=True) / count
            variance = (weights * (known - mean).square()).sum(-1, keepdim=True) / count
        heat = (12 * variance).sqrt() / count
        # Rounding leaves some spread where there is none.
        spread = heat * count > (4e-15 * mean.abs()).clamp(min=1e-30)
        return torch.where(spread, heat.clamp(1e-30, 2.0**126), 1).to(keys.dtype)

    def _ends(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """The smallest and the largest finite key of each row."""
        if self.finite is None:
            low, high = keys.aminmax(dim=-1, keepdim=True)
            return low, high
        low = keys.where(self.finite, math.inf).amin(-1, keepdim=True)
        high = keys.where(self.finite, -math.inf).amax(-1, keepdim=True)
        there = low <= high
        return low.where(there, 0), high.where(there, 0)

    def _filled(self, keys: Tensor, heat: Tensor) -> tuple[Tensor, Tensor]:
        """Put infinite keys, NaN, and then masked ones, at a distance that leaves no doubt."""
        assert self.finite is not None
        # Very hot rows are scaled, lest this distance overflows.
        cooler = torch.where(heat > _HOT, _COOLER, 1.0).to(keys.dtype)
        heat, keys = (heat * cooler).clamp(max=2.0**110), keys * cooler
        with torch.no_grad():
            if not keys.shape[-1]:
                return keys, heat
            low, high = self._ends(keys)
            away = _AWAY * TAILS[self.tails][-1][1] * heat
            most = torch.finfo(keys.dtype).max

            def beyond(end: Tensor) -> Tensor:
                after = torch.nextafter(end, torch.full_like(end, math.inf))
                return torch.maximum(end + away, after).clamp(max=most)

            top = beyond(high)
            bottom = -beyond(-low)
            last, first = beyond(top), -beyond(-bottom)
            fill = torch.where(keys > 0, top, bottom)
            fill = torch.where(keys.isnan(), first if self.descending else last, fill)
            if self.mask is not None:
                fill = fill.where(self.mask, beyond(last))
        return keys.where(self.finite, fill), heat

    # What is computed.

    def order(self) -> Tensor:
        """Where the elements of each row are in hard order; masked ones come last."""
        return sort_rows(self.keys.detach())[1]

    def present(self, order: Tensor) -> Tensor | float:
        """Whether positions in this order hold a valid element."""
        return 1.0 if self.mask is None else self.mask.gather(-1, order).to(self.keys.dtype)

    def count(self) -> Tensor:
        """The sum of weights of each row, (b, 1), in float64."""
        if self.weights is None:
            return torch.full_like(self.heat, self.keys.shape[-1], dtype=torch.float64)
        return self.weights.double().sum(-1, keepdim=True)

    def compute(
        self, operation: Operation, payload: Tensor | None = None, levels: Tensor | None = None
    ) -> Tensor:
        """Compute by the first engine that takes the call."""
        if levels is not None:
            levels = levels.double().expand(len(self.keys), -1)
        if payload is not None and payload.dtype != torch.float64:
            payload = payload.float()
        call = Call(operation, self.keys, payload, self.weights, self.heat, levels, self.tails)
        return dispatch(_ENGINES, self.keys.device, call)

    def by_kernels(self, payload: Tensor | None, ranks: bool = False) -> Tensor:
        """Sort rows as they are, or a payload, or return ranks: in one operator."""
        assert self.kernels is not None
        given = self.values, payload, self.weights, self.given_heat, self.descending, ranks
        return self.kernels.soft_rows(*given)[0]

    def choose(self, soft: Callable[[], Tensor], hard: Callable[[], Tensor], exact: bool) -> Tensor:
        """Return what is soft; hard in cold rows, or, if exact, everywhere with its gradient."""
        if self.cold is True or not self.keys.numel():
            return hard()
        found = soft()
        if isinstance(self.cold, Tensor):
            cold = self.cold.view(-1, *[1] * (found.dim() - 1))
            found = torch.where(cold, hard(), found)
        if not exact:
            return found
        return hard().detach() + (found - found.detach()).nan_to_num(0.0, 0.0, 0.0)

    def below(self, levels: Tensor) -> Tensor:
        """F((b − x) / T) of each level and each key, (b, l, n), in float64."""
        at = self.compute("threshold", levels=levels).unsqueeze(-1)
        far = (at - self.keys.double().unsqueeze(-2)) / self.heat.double().unsqueeze(-1)
        return distribution(far, self.tails)

    def known(self) -> Tensor:
        """The values, with 0 for what is not finite or masked."""
        return self.values if self.finite is None else self.values.where(self.finite, 0)


def _worst(t: Tensor) -> float:
    """A number of a tensor that is out of range: NaN, or the smallest or largest."""
    ends = t.amin().item(), t.amax().item()
    return float(ends[0] if not ends[0] >= 0 else ends[1])
