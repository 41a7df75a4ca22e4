"""The floor of a sort: every key, value and gradient is read and written once."""

import math
from typing import NamedTuple

from sparsewire_lab.bench.case import Case
from sparsewire_lab.bench.floors import FLOAT, INDEX, Work
from sparsewire_lab.bench.sorting_cases import payload_of


class SortingWork(NamedTuple):
    """What must be moved in a forward pass, and in one with a backward pass."""

    forward: Work
    both: Work


def sorting_work(case: Case) -> SortingWork:
    """Count the bytes that a case must move; comparisons are free."""
    keys = case.batch * case.n * FLOAT
    if case.case == "order_loss":
        losses = case.batch * FLOAT
        target = case.batch * case.n * INDEX
        return _moved(keys + target + losses, 2 * keys + target + losses)
    if case.case == "sort_by":
        payload = keys * math.prod(payload_of(case))
        # Back: keys and payload again, and a gradient for each.
        return _moved(keys + 2 * payload, 2 * keys + 3 * payload)
    return _moved(2 * keys, 3 * keys)


def _moved(forward: int, back: int) -> SortingWork:
    return SortingWork(Work(0, 0, forward), Work(0, 0, forward + back))
