"""Validate and normalise the output of a source."""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sparsewire.annotations import Float, Int
from sparsewire.checks import (
    check_devices,
    check_dims,
    check_exact,
    check_floating,
    check_integer,
)


class Wiring(NamedTuple):
    """Continuous index tuples in index space: their means, variances and values."""

    means: Float[Tensor, "*w k r"]
    variances: Float[Tensor, "*w k r"]
    values: Float[Tensor, "*w k"]


class Sample(NamedTuple):
    """Integer index tuples of one pass, context by context, with the values spread over them."""

    indices: Int[Tensor, "*w c m r"]
    values: Float[Tensor, "*w c m"]


class Raw(NamedTuple):
    """Parameters on the real line, as a source gives them; values are used as they are."""

    means: Float[Tensor, "*w k r"]
    variances: Float[Tensor, "*w k"]
    values: Float[Tensor, "*w k"]


def reads_input(source: Callable[..., Any]) -> bool:
    """Whether the source reads the input: by its attribute `adaptive`, or by its signature."""
    adaptive = getattr(source, "adaptive", None)
    if isinstance(adaptive, bool):
        return adaptive
    call = source.forward if isinstance(source, nn.Module) else source
    positional = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    )
    return any(p.kind in positional for p in inspect.signature(call).parameters.values())


def read_source(
    output: Any, rank: int, value_of: Tensor | None, value_count: int, x: Tensor | None
) -> Raw:
    """Validate the output of a source, and return it in the form of `Raw`.

    Args:
        output: A tensor (*b, k, r + 2), or raw means (*b, k, r), raw variances (*b, k) or (*b, 1),
            and values (*b, k), (*b, 1) or None for ones.
        rank: Number of learned columns, r.
        value_of: Number of the value that each tuple takes, where values are shared.
        value_count: How many values there are then.
        x: The layer's input, which must be on the same device.
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
    values = _expand("values", _values_of_tuples(values, value_of, value_count, shape), shape)
    raw = Raw(means, _expand("raw variances", variances, shape), values)
    if means.device.type == "cpu" and not torch.compiler.is_compiling():
        _check_finite(raw)
    return raw


def check_value_numbers(
    numbers: Sequence[int] | Tensor | None, tuples: int | None = None
) -> Tensor | None:
    """Return `share_values` as a tensor of integers from zero, one for each tuple."""
    if numbers is None:
        return None
    try:
        value_of = torch.as_tensor(numbers)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"share_values must be a sequence of integers; got {type(numbers).__name__}: {error}"
        ) from None
    if value_of.dim() != 1 or not len(value_of):
        raise ValueError(f"share_values must hold a number for each tuple; got {numbers}")
    check_integer("share_values", value_of)
    if (least := int(value_of.min())) < 0:
        raise ValueError(f"share_values must hold numbers ≥ 0; got {least}")
    if tuples is not None:
        _check_count(value_of, tuples)
    return value_of


def without_copies(tensor: Tensor) -> Tensor:
    """Return an expanded tensor with its copies left out, so that none is computed with."""
    for axis, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[axis] > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def _values_of_tuples(
    values: Tensor, value_of: Tensor | None, value_count: int, shape: Sequence[int]
) -> Tensor:
    """Return the value of each tuple, where tuples share values."""
    if value_of is None:
        return values
    _check_count(value_of, shape[-1])
    check_dims("values", values, (*shape[:-1], None), "(*b, v)")
    if values.shape[-1] < value_count:
        raise ValueError(
            f"values must be at least {value_count}, as share_values counts them; "
            f"got {values.shape[-1]}"
        )
    return values[..., value_of]


def _check_count(value_of: Tensor, tuples: int) -> None:
    if len(value_of) != tuples:
        raise ValueError(
            f"share_values must have an entry for each of the {tuples} tuples; got {len(value_of)}"
        )


def _expand(name: str, tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """Expand one number for all tuples to one for each tuple."""
    if tuple(tensor.shape) == (*shape[:-1], 1):
        return tensor.expand(*shape)
    check_exact(name, tensor, shape)
    return tensor


def _check_finite(raw: Raw) -> None:
    # The sum is enough in most cases: it is finite only if all its terms are.
    if math.isfinite(sum(tensor.detach().sum() for tensor in raw)):
        return
    for name, tensor in raw._asdict().items():
        if not bool(tensor.isfinite().all()):
            bad = tensor.numel() - int(tensor.isfinite().sum())
            name = name if name == "values" else f"raw {name}"
            raise ValueError(
                f"{name} must be finite; got {bad} of {tensor.numel()} that are NaN or infinite"
            )
