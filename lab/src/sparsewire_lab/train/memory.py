"""Memory of a run: how it is reused on the CPU, and what is said if there is not enough."""

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from sparsewire_lab.train.options import Experiment

# Parameters of glibc's mallopt, and the values that it is given.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_TRIM_BYTES, _MMAP_BYTES = 2**30, 2**25  # glibc refuses more than 2**25 for the second

# What the messages of allocators have in common.
_SIGNS = ("allocate memory", "out of memory", "calculation overflowed", "Overflow when unpacking")


class MemoryShortError(RuntimeError):
    """There is not enough memory for the arguments of an experiment."""


def keep_freed_memory() -> bool:
    """Let the allocator of the CPU keep freed memory for the next step; return whether it does.

    By default, glibc returns blocks of more than 128 KiB to the kernel as soon as they are freed,
    and the kernel clears their pages in every step anew. Where there is no glibc nothing happens.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another allocator takes the place of glibc's
        return False
    given = ((_TRIM_THRESHOLD, _TRIM_BYTES), (_MMAP_THRESHOLD, _MMAP_BYTES))
    return all(mallopt(name, value) for name, value in given)


@contextmanager
def memory_checked(experiment: Experiment) -> Iterator[None]:
    """Turn an allocator's error into one that names the arguments that decide about memory.

    Raises:
        MemoryShortError: The code in the block asked for more memory than there is.
    """
    try:
        yield
    except (MemoryError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        if not _is_memory_short(error):
            raise
        numbers = [
            (value, name)
            for name, value in experiment.deciding().items()
            if type(value) is int and not name.endswith(("steps", "every", "accumulate"))
        ]
        given = ", ".join(f"{name} {value:,}" for value, name in sorted(numbers, reverse=True))
        raise MemoryShortError(
            f"not enough memory for {given}; smaller numbers need less, and --accumulate splits "
            "a batch"
        ) from error


def _is_memory_short(error: BaseException) -> bool:
    kinds = (MemoryError, OverflowError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or any(sign in str(error) for sign in _SIGNS)
