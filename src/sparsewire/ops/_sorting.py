"""Sorting rows as torch does, and on a CPU sooner.

NumPy sorts integers by vector instructions. Numbers of 32 bits become the upper half of such an
integer, in their order, and their place becomes the lower: then equal numbers stay in the order
they came, and the lower halves of what is sorted tell where everything was.
"""

import numpy as np
import torch
from torch import Tensor

# From how many elements on, and up to how many threads among which torch could share the rows.
_LONG, _FEW_THREADS = 128, 2
_SMALL = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32}


def sort_rows(x: Tensor, descending: bool = False) -> tuple[Tensor, Tensor]:
    """Return the last dimension in order, and where each element was; equal ones as they came."""
    if _is_worth_it(x) and (ranks := _ranks(x.detach())) is not None:
        ranks = (~ranks if descending else ranks) << 32
        ranks |= np.arange(x.shape[-1])
        ranks.sort(axis=-1)
        index = torch.from_numpy(ranks & 0xFFFFFFFF)
        return x.gather(-1, index), index
    found, index = x.sort(dim=-1, descending=descending, stable=True)
    return found, index


def eager_on_cpu(x: Tensor) -> bool:
    """Whether numbers are there and can be looked at: no trace, no transform, no other device."""
    plain = type(x) in (Tensor, torch.nn.Parameter) and x.device.type == "cpu"
    transformed = torch._C._are_functorch_transforms_active()
    return plain and not torch.compiler.is_compiling() and not transformed


def _is_worth_it(x: Tensor) -> bool:
    if not x.dim() or x.shape[-1] < _LONG or not x.numel() or not eager_on_cpu(x):
        return False
    return min(torch.get_num_threads(), x.numel() // x.shape[-1]) <= _FEW_THREADS


def _ranks(x: Tensor) -> np.ndarray | None:
    """Integers of 32 bits, in 64, in the order of the elements; None where there are none."""
    if x.dtype == torch.float32:
        if not torch.isfinite(x.sum()):  # or too large to tell
            return None
        # Adding zero makes the two zeros one. Of negative numbers the bits rise as they fall.
        bits = (x + 0.0).numpy().view(np.int32)
        return np.where(bits < 0, bits ^ np.int32(0x7FFFFFFF), bits).astype(np.int64)
    if x.dtype == torch.int64 and (x == x.int()).all():
        return x.numpy().copy()
    return x.numpy().astype(np.int64) if x.dtype in _SMALL else None
