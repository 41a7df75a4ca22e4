"""Validate and normalise the output of a source."""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sparsewire.annotations import Float, Int
from sparsewire.checks import check_devices, check_dims, check_exact, check_floating, check_integer


class Wiring(NamedTuple):
    """Continuous index tuples in index space: their means, variances and values."""

    means: Float[Tensor, "*w k r"]
    variances: Float[Tensor, "*w k r"]
    values: Float[Tensor, "*w k"]


class Sample(NamedTuple):
    """Integer index tuples of one pass, context by context, with the values spread over them."""

    indices: Int[Tensor, "*w c m r"]
    values: Float[Tensor, "*w c m"]


def split_sample(sample: Sample, count: int) -> list[tuple[Tensor, Tensor]]:
    """Return the 2^r tuples nearest to each mean, and the `count` others, each with values.

    In the order of `sparsewire.ops.sample`.
    """
    sizes = [2 ** (rank := sample.indices.shape[-1]), count]
    indices = sample.indices.reshape(-1, sum(sizes), rank).split(sizes, 1)
    values = sample.values.reshape(-1, sum(sizes)).split(sizes, 1)
    return list(zip(indices, values, strict=True))


def reads_input(source: Callable[..., Any]) -> bool:
    """Whether the source reads the input: by its attribute `adaptive`, or by its signature."""
    adaptive = getattr(source, "adaptive", None)
    if isinstance(adaptive, bool):
        return adaptive
    call = source.forward if isinstance(source, nn.Module) else source
    by_name = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD
    return any(p.kind not in by_name for p in inspect.signature(call).parameters.values())


def read_source(
    output: Any, rank: int, value_of: Tensor | None, value_count: int | None, x: Tensor | None
) -> tuple[Float[Tensor, "*w k r"], Float[Tensor, "*w k"], Float[Tensor, "*w k"]]:
    """Validate what a source returns, see `HyperLayer`; return raw means and variances, and values.

    Where values are shared, each tuple takes number `value_of` of `value_count`. The output must be
    on the device of the input `x`.
    """
    if isinstance(output, Tensor):
        check_dims("the source's output", output, (None, rank + 2), "(*b, k, r + 2)")
        output = output[..., :rank], output[..., rank], output[..., rank + 1]
    if not isinstance(output, (tuple, list)) or len(output) != 3:
        raise TypeError(
            "source must return a tensor (*b, k, r + 2), or raw means, raw variances and values; "
            f"got {type(output).__name__}"
        )
    means, variances, values = output
    check_floating("raw means", means)
    check_dims("raw means", means, (None, rank), "(*b, k, r)")
    check_floating("raw variances", variances)
    values = torch.ones_like(means[..., 0]) if values is None else values
    check_floating("values", values)
    check_devices(x=x, raw_means=means, raw_variances=variances, values=values)
    shape = means.shape[:-1]
    if not shape[-1]:
        raise ValueError(
            f"source must return at least one tuple; got raw means of shape {tuple(means.shape)}"
        )
    if value_of is not None and value_count is not None:
        _check_count(value_of, shape[-1])
        check_dims("values", values, (*shape[:-1], None), "(*b, v)")
        if (count := values.shape[-1]) < value_count:
            raise ValueError(
                f"values must be at least {value_count}, as share_values counts them; got {count}"
            )
        values = values[..., value_of]
    values = _expand("values", values, shape)
    variances = _expand("raw variances", variances, shape)
    if means.device.type == "cpu" and not torch.compiler.is_compiling():
        _check_finite({"raw means": means, "raw variances": variances, "values": values})
    return means, variances, values


def check_value_numbers(
    numbers: Sequence[int] | Tensor | None, tuples: int | None = None
) -> tuple[Tensor, int] | tuple[None, None]:
    """Return `share_values` as a tensor of integers from zero, and how many values they count."""
    if numbers is None:
        return None, None
    try:
        value_of = torch.as_tensor(numbers)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = f"{type(numbers).__name__}: {error}"
        raise TypeError(f"share_values must be a sequence of integers; got {kind}") from None
    if value_of.dim() != 1 or not len(value_of):
        raise ValueError(f"share_values must hold a number for each tuple; got {numbers}")
    check_integer("share_values", value_of)
    if (least := int(value_of.min())) < 0:
        raise ValueError(f"share_values must hold numbers ≥ 0; got {least}")
    if tuples is not None:
        _check_count(value_of, tuples)
    return value_of, int(value_of.max()) + 1


def contributions(wiring: Wiring) -> Float[Tensor, " k"]:
    """Return |v| times the share of a density that stays at its mean, on the integers.

    Σ_j exp(−j² / 2σ²) over the integers is √(2π σ²) for wide densities, and 1 for narrow ones.

    Examples:
        >>> one = torch.tensor([[1.0], [1.0]])
        >>> contributions(Wiring(one, torch.tensor([[0.1], [100.0]]), torch.tensor([-1.0, 1.0])))
        tensor([1.0000, 0.0399])
    """
    mass = (2 * math.pi * wiring.variances).sqrt().clamp(min=1).prod(-1)
    return wiring.values.abs() / mass


def without_copies(tensor: Tensor) -> Tensor:
    """Return an expanded tensor with its copies left out, so that none is computed with."""
    for axis, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[axis] > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def _check_count(value_of: Tensor, count: int) -> None:
    if (n := len(value_of)) != count:
        raise ValueError(f"share_values must have an entry for each of the {count} tuples; got {n}")


def _expand(name: str, tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Expand one number for all tuples to one for each tuple."""
    if tuple(tensor.shape) == (*shape[:-1], 1):
        return tensor.expand(*shape)
    check_exact(name, tensor, shape)
    return tensor


def _check_finite(tensors: dict[str, Tensor]) -> None:
    # The sum is enough in most cases: it is finite only if all its terms are.
    if math.isfinite(sum(tensor.detach().sum() for tensor in tensors.values())):
        return
    for name, tensor in tensors.items():
        n = tensor.numel()
        if bad := n - int(tensor.isfinite().sum()):
            raise ValueError(f"{name} must be finite; got {bad} of {n} that are NaN or infinite")
