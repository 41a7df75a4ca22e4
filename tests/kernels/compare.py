"""What the tests of the kernels share: calls on the device, and errors relative to float64."""

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.helpers import output_and_gradients, seeded
from torch import Tensor

import sparsewire as sw

# Relative errors of norms that rounding explains; plain PyTorch in float32 comes to 2e-6.
EXACT = {torch.float32: 4e-6, torch.float64: 1e-12}

dtypes = (torch.float32, torch.float64)


def random_tuples(prefix: Sequence[int], count: int, shape: Sequence[int], seed: int = 0) -> Tensor:
    """Integer tuples inside `shape`, (*prefix, count, rank); columns of one size differ too."""
    generator = seeded(seed)
    columns = [torch.randint(n, (*prefix, count), generator=generator) for n in shape]
    return torch.stack(columns, dim=-1)


def cast(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: tensor.to(dtype) for name, tensor in tensors.items()}


def moved(things: Mapping[str, Any], device: str) -> dict[str, Any]:
    """The same by name, with tensors on the device."""
    return {n: t.to(device) if isinstance(t, Tensor) else t for n, t in things.items()}


def by_kernels(
    function: Callable[..., Tensor], leaves: Mapping[str, Tensor], device: str, **fixed: Any
) -> dict[str, Tensor]:
    """Output and gradients by name, computed by the kernels on the device; all on the CPU."""

    def call(**inputs: Tensor) -> Tensor:
        return function(**moved(inputs, device), **moved(fixed, device)).cpu()

    with sw.engine("triton"):
        return output_and_gradients(call, leaves)


def exactly(
    reference: Callable[..., Tensor], leaves: Mapping[str, Tensor], **fixed: Any
) -> dict[str, Tensor]:
    """Output and gradients by name, from the same numbers by a reference in float64."""
    return output_and_gradients(lambda **t: reference(**t, **fixed), cast(leaves, torch.float64))


def assert_near(
    got: Mapping[str, Tensor], want: Mapping[str, Tensor], tolerance: float | None = None
) -> None:
    """Compare by name: the norm of the error with the norm of what is exact."""
    assert got.keys() == want.keys()
    for name, exact in want.items():
        mine = got[name]
        assert mine.shape == exact.shape, name
        assert mine.isfinite().all(), f"{name}: {mine}"
        limit = EXACT[mine.dtype] if tolerance is None else tolerance
        mine, exact = mine.detach().double(), exact.detach().double()
        error, size = float((mine - exact).norm()), float(exact.norm())
        assert error <= limit * size, f"{name}: error {error:.1e} in {size:.1e}"


def assert_within(
    got: Mapping[str, Tensor],
    want: Mapping[str, Tensor],
    scales: Mapping[str, Tensor],
    share: float,
) -> None:
    """Compare by name and element by element: no error larger than this share of its scale."""
    assert got.keys() == want.keys() == scales.keys()
    for name, exact in want.items():
        mine = got[name]
        assert mine.shape == exact.shape, name
        assert mine.isfinite().all(), f"{name}: {mine}"
        error = (mine.double() - exact.double()).abs()
        # Numbers below the smallest normal one are rounded, or flushed to zero.
        limit = scales[name] * share + 10 * torch.finfo(mine.dtype).tiny
        assert (error <= limit).all(), f"{name}: {mine - exact} where {limit} are allowed"


def note_calls(monkeypatch: pytest.MonkeyPatch, library: ModuleType, *names: str) -> list[str]:
    """Return a list to which the names of these operators are added when they are called."""
    called: list[str] = []
    for name in names:
        operator = getattr(library, name)

        def noted(*given: Any, name: str = name, operator: Any = operator) -> Any:
            called.append(name)
            return operator(*given)

        monkeypatch.setattr(library, name, noted)
    return called
