"""Computing in the precision that tensors have, whatever autocast would do."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def without_autocast(tensor: Tensor) -> AbstractContextManager[object]:
    """Return a context in which nothing is cast on the device of a tensor."""
    kind = tensor.device.type
    # Tensors without numbers have a device that autocast does not know.
    return nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)
