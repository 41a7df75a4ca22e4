"""Sorting rows as torch does, and on a CPU sooner.

NumPy sorts integers by vector instructions. Numbers of 32 bits become the upper half of such an
integer, in their order, and their place becomes the lower: then equal numbers stay in the order
they came, and the lower halves of what is sorted tell where everything was.
"""

import numpy as np
import torch
from torch import Tensor

from sparsewire.checks import check_devices, check_floating
from sparsewire.engines import concrete

# From how many elements on, and up to how many threads among which torch could share the rows.
_LONG, _FEW_THREADS = 128, 2
_SMALL = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32}


def sort_rows(x: Tensor, descending: bool = False) -> tuple[Tensor, Tensor]:
    """Return the last dimension in order, and where each element was; equal ones as they came."""
    if _is_worth_it(x) and (bits := _bits(x.detach())) is not None:
        index = torch.from_numpy(sorted_places(~bits if descending else bits))
        return x.gather(-1, index), index
    found, index = x.sort(dim=-1, descending=descending, stable=True)
    return found, index


def ordered_bits(x: np.ndarray) -> np.ndarray:
    """Integers of 32 bits, in 64, in the order of numbers of 32 bits."""
    # Adding zero makes the two zeros one. Of negative numbers the bits rise as they fall.
    bits = (x + np.float32(0)).view(np.int32)
    return np.bitwise_xor(bits, (bits >> 31) & 0x7FFFFFFF, dtype=np.int64)


def sorted_places(bits: np.ndarray) -> np.ndarray:
    """Where the elements of sorted rows were, for integers of 32 bits in 64; they are lost."""
    bits <<= 32
    bits |= np.arange(bits.shape[-1])
    bits.sort(axis=-1)
    bits &= 0xFFFFFFFF
    return bits


def concrete_on_cpu(x: Tensor) -> bool:
    """Whether the tensor is concrete, and its values can be inspected without waiting."""
    return x.device.type == "cpu" and concrete(x)


def flat_payload(keys: Tensor, payload: Tensor) -> Tensor:
    """Check keys and their payload, and return the payload with one dimension of features."""
    check_floating("keys", keys)
    check_floating("payload", payload)
    check_devices(keys=keys, payload=payload)
    if not keys.dim() or payload.shape[: keys.dim()] != keys.shape:
        raise ValueError(
            f"payload must begin with the shape of keys, {tuple(keys.shape)}; "
            f"got {tuple(payload.shape)}"
        )
    return payload.flatten(keys.dim()) if payload.dim() > keys.dim() else payload.unsqueeze(-1)


def few_threads(x: Tensor) -> bool:
    """Whether too few threads share the rows for torch to be sooner."""
    return min(torch.get_num_threads(), x.numel() // x.shape[-1]) <= _FEW_THREADS


def _is_worth_it(x: Tensor) -> bool:
    if not x.dim() or x.shape[-1] < _LONG or not x.numel():
        return False
    return concrete_on_cpu(x) and few_threads(x)


def _bits(x: Tensor) -> np.ndarray | None:
    """Integers of 32 bits, in 64, in the order of the elements; None where there are none."""
    if x.dtype == torch.float32:
        return ordered_bits(x.numpy()) if torch.isfinite(x.sum()) else None  # or too large to tell
    if x.dtype == torch.int64 and (x == x.int()).all():
        return x.numpy().copy()
    return x.numpy().astype(np.int64) if x.dtype in _SMALL else None
