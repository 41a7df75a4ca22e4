"""What the tests on a GPU share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

MARKS = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.usefixtures("any_order"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]


def on_cuda(test: Callable[..., None]) -> Callable[..., None]:
    for mark in MARKS:
        test = mark(test)
    return test


@contextmanager
def never_waits() -> Iterator[None]:
    """Raise an error where the host waits for the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
