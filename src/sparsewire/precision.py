"""Computing in the precision that tensors have, whatever autocast would do."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def without_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """Return a context in which nothing is cast on the device of a tensor."""
    kind = tensor.device.type
    # Tensors without numbers have a device that autocast does not know.
    if kind == "meta":
        return nullcontext()
    # To switch off what is off takes longer than a small sum.
    needed = torch.compiler.is_compiling() or torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if needed else nullcontext()
