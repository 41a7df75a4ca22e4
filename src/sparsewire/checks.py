"""Argument checks that all stages share; errors name the argument, the expected, and what came."""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy
import torch
from torch import Tensor

LARGEST_INDEX = 2**63 - 1

Choice = TypeVar("Choice", bound=str)
T = TypeVar("T")
P = ParamSpec("P")


def check_shape(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Return `shape` as a tuple of positive integers whose product fits an int64."""
    sizes = check_sizes(name, shape)
    if (elements := math.prod(sizes)) > LARGEST_INDEX:
        raise ValueError(
            f"{name} must have at most 2**63 - 1 elements, so that each has an exact int64 index; "
            f"got {sizes} with {elements}"
        )
    return sizes


def check_sizes(name: str, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return `sizes` as a tuple of positive integers, without looking at their product."""
    if type(sizes) is tuple and all(type(size) is int and size > 0 for size in sizes):
        return sizes  # the common case, in a hot path
    if isinstance(sizes, str) or not isinstance(sizes, Sequence):
        raise TypeError(f"{name} must be a sequence of integers; got {sizes!r}")
    return tuple(check_count(f"{name}[{i}]", size, least=1) for i, size in enumerate(sizes))


def check_count(name: str, count: int, least: int = 0) -> int:
    """Return `count` if it is an integer of at least `least`."""
    if isinstance(count, bool) or not isinstance(count, (int, torch.SymInt, numpy.integer)):
        raise TypeError(f"{name} must be an integer; got {count!r}")
    if count < least:
        raise ValueError(f"{name} must be at least {least}; got {count}")
    if isinstance(count, int) and count > LARGEST_INDEX:
        raise ValueError(f"{name} must be at most 2**63 - 1; got {count}")
    return int(count) if isinstance(count, numpy.integer) else count  # pyright: ignore[reportReturnType]


def check_open_shape(name: str, shape: Sequence[int | None]) -> tuple[int | None, ...]:
    """Return `shape` as a tuple of positive integers, or None where the size may change."""
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise TypeError(f"{name} must be a sequence of integers or None; got {shape!r}")
    sizes = check_shape(name, [1 if n is None else n for n in shape])
    return tuple(None if n is None else size for n, size in zip(shape, sizes, strict=True))


def check_rank(name: str, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return `sizes`, as `check_shape` does, if there is at least one of them."""
    if not (shape := check_shape(name, sizes)):
        raise ValueError(f"{name} must have at least one size, that of a learned column; got ()")
    return shape


def check_range(name: str, number: float, least: float, most: float) -> float:
    """Return `number` if it is a real number in a range, both ends included."""
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise TypeError(f"{name} must be a number; got {number!r}")
    if not least <= number <= most:
        raise ValueError(f"{name} must be between {least:g} and {most:g}; got {number}")
    return float(number)


def check_choice(name: str, choice: object, choices: Sequence[Choice]) -> Choice:
    """Return `choice` if it is one of `choices`."""
    for known in choices:
        if choice == known:
            return known
    raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}; got {choice!r}")


def check_floating(name: str, tensor: Tensor) -> None:
    """Refuse what is not a tensor of real floating-point numbers."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor; got {type(tensor).__name__}")
    if not tensor.is_floating_point():
        raise TypeError(f"{name} must have a floating-point dtype; got {tensor.dtype}")


def check_integer(name: str, tensor: Tensor) -> None:
    """Refuse what is not a tensor of int64 indices."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor; got {type(tensor).__name__}")
    if tensor.dtype != torch.int64:
        raise TypeError(f"{name} must have dtype torch.int64; got {tensor.dtype}")


def check_dims(name: str, tensor: Tensor, expected: Sequence[int | None], axes: str) -> None:
    """Refuse a tensor whose last dimensions are not `expected` (None: any size)."""
    actual = tuple(tensor.shape)
    last = actual[-len(expected) :] if expected else ()
    fits = len(actual) >= len(expected) and all(
        want is None or have == want for have, want in zip(last, expected, strict=True)
    )
    if not fits:
        sizes = ", ".join("any" if want is None else str(want) for want in expected)
        raise ValueError(f"{name} must have shape {axes} ending in ({sizes}); got {actual}")


def check_exact(name: str, tensor: Tensor, expected: Sequence[int]) -> None:
    """Refuse a tensor whose shape is not `expected`."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor; got {type(tensor).__name__}")
    if tuple(tensor.shape) != tuple(expected):
        raise ValueError(f"{name} must have shape {tuple(expected)}; got {tuple(tensor.shape)}")


def check_saved(name: str, mine: Tensor | None, saved: object) -> None:
    """Refuse a saved state that was made with another constant than this module has."""
    if not isinstance(saved, Tensor) or mine is None or mine.is_meta:
        return  # whether it is missing, or there at all, is checked by load_state_dict
    if tuple(saved.shape) != tuple(mine.shape) or not torch.equal(saved.to(mine), mine):
        raise ValueError(f"{name} must be the one that the state was saved with; got another")


def check_devices(**tensors: Tensor | None) -> None:
    """Refuse tensors on different devices."""
    devices = {name: t.device for name, t in tensors.items() if t is not None}
    if len(set(devices.values())) > 1:
        found = ", ".join(f"{name} on {device}" for name, device in devices.items())
        raise ValueError(f"{', '.join(devices)} must be on one device; got {found}")


def constant(numbers: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return `numbers` as a tensor that is copied to the device once and cached.

    A copy in each call would make the host wait for the GPU and break graph capture.
    """
    return _constant(tuple(numbers), dtype, device)


def cached(make: Callable[P, T]) -> Callable[P, T]:
    """Cache the constant tensors, or tuples and lists of them, that a function returns.

    The arguments must be hashable. Nothing is ever evicted: a captured graph reads the memory of
    the cached tensors. They are made outside inference mode, for autograd cannot use inference
    tensors later. Subclasses (fake tensors) are not cached: they belong to their trace.
    """
    results: dict[Any, T] = {}

    @functools.wraps(make)
    def get(*args: P.args, **options: P.kwargs) -> T:
        key = (args, *options.items())
        if not torch.compiler.is_compiling() and key in results:
            return results[key]
        with torch.inference_mode(False):
            result = make(*args, **options)
        if not torch.compiler.is_compiling() and all(type(t) is Tensor for t in _flat(result)):
            results[key] = result
        return result

    return get


def _flat(result: object) -> Iterator[object]:
    if isinstance(result, (tuple, list)):
        for part in result:
            yield from _flat(part)
    else:
        yield result


@cached
def _constant(numbers: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=dtype, device=device)
