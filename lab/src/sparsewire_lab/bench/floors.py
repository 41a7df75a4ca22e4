"""Floors: the least that a case must compute and move, counted, and how long the machine needs.

A floor is a lower bound, not a target: every input is read once and every output written once, the
density of every pair is evaluated once in a pass, and whatever else an engine does is free.
`floor` divides the counts by the measured ceilings and takes the longest of the three times.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sparsewire_lab.bench import cases
from sparsewire_lab.bench.cases import Case

FLOAT, INDEX, FLAG = 4, 8, 1  # bytes of a float32, an int64, a bool


@dataclass(frozen=True)
class Sizes:
    """The sizes that the work of `spread` and of a layer follows from; letters as in `ops`."""

    contexts: int
    k: int
    m: int
    r: int
    lanes: int = 0  # instances that share a wiring; 0 where nothing is contracted
    wirings: int = 1
    in_size: int = 0
    out_size: int = 0
    trained: bool = False  # whether the step of an optimiser is included

    @property
    def pairs(self) -> int:
        """Pairs of a continuous and an integer tuple, over all contexts."""
        return self.contexts * self.k * self.m


class Work(NamedTuple):
    """What must be done: exponentials, other floating-point operations, bytes that move."""

    exps: int
    flops: int
    bytes: int


def sizes_of(case: Case) -> Sizes | None:
    """Return the sizes of a case that has pairs, None for any other."""
    each = 4 + sum(cases.samples_of(case))
    if case.case == "glimpse":
        outs, ins = math.prod(cases.GLIMPSES[case.variant]), math.prod(cases.IMAGE)
        return Sizes(case.batch * outs, 1, each, 2, 1, case.batch, ins, outs)
    if case.case in ("spread", cases.FEW):
        return Sizes(1, case.n, case.n * each, 2)
    layer = {"lanes": case.batch, "in_size": case.n, "out_size": case.n, "trained": True}
    if case.case == "step":
        return Sizes(1, case.n, case.n * each, 2, **layer)
    if case.case == "contexts":
        k = cases.CONTEXT
        return Sizes(cases.CONTEXT_TUPLES // k, k, k * each, 2, **layer)
    return None


def works_of(case: Case, pairs: int | None = None) -> tuple[Work, Work] | None:
    """Return the work of a forward pass and of both passes, over all pairs or so many of them.

    None for a case whose work is not counted.
    """
    if case.case in cases.SORTS:
        return _sorting(case)
    if (sizes := sizes_of(case)) is None:
        return None
    return layer_works(sizes, pairs)


def floor(work: Work, rates: Mapping[str, float]) -> tuple[float, str] | None:
    """Return the least time in ms and what takes it; None where a ceiling is not in `rates`."""
    if not {"copy", "exp", "matmul float32"} <= rates.keys():
        return None
    times = {
        "exp": work.exps / rates["exp"],
        "flops": work.flops / rates["matmul float32"],
        "bytes": work.bytes / rates["copy"],
    }
    limit = max(times, key=lambda name: times[name])
    return times[limit] * 1e3, limit


def layer_works(sizes: Sizes, pairs: int | None = None) -> tuple[Work, Work]:
    """Count a forward pass, and both passes with the optimiser's step; all pairs or so many."""
    pairs = sizes.pairs if pairs is None else pairs
    tuples, points = sizes.contexts * sizes.k, sizes.contexts * sizes.m
    if sizes.lanes:  # the raw numbers of a layer, which need not store points
        inputs, outputs = tuples * (sizes.r + 2) * FLOAT, 0
    else:  # means, variances and values; integer tuples and their shares
        inputs = tuples * (2 * sizes.r + 1) * FLOAT
        outputs = points * (sizes.r * INDEX + FLAG + FLOAT)
    # The input that the integer tuples can reach, and the output.
    reached = min(sizes.in_size, points // sizes.wirings)
    read, written = (sizes.wirings * sizes.lanes * n * FLOAT for n in (reached, sizes.out_size))
    products = 2 * points * sizes.lanes
    # On each axis a difference, a product with the precision, and one with the difference, added;
    # then the sum of the row, and the value times the share, added to the column.
    there = Work(pairs, pairs * (4 * sizes.r + 3) + products, inputs + outputs + read + written)
    # The distance again; the share times the incoming gradient, summed and weighed; on each axis
    # its products with the pull (added to the mean's gradient) and the pull again (the variance's).
    flops = pairs * (4 * sizes.r + 4 + 5 * sizes.r)
    # Gradients of a contraction: to the values always, to the input where it is not the data.
    passes = 1 if sizes.trained else 2
    # Adam reads a number, its gradient and two moments; it writes all but the gradient.
    numbers = tuples * (sizes.r + 2) if sizes.trained else 0
    both = Work(
        there.exps + pairs,
        there.flops + flops + products * passes + 12 * numbers,
        there.bytes + 2 * inputs + outputs + read * passes + written + 7 * numbers * FLOAT,
    )
    return there, both


def _sorting(case: Case) -> tuple[Work, Work]:
    """Count the bytes that a sort must move; comparisons are free."""
    keys = case.batch * case.n * FLOAT
    there, back = 2 * keys, 3 * keys
    if case.case == "order_loss":
        rest = case.batch * (FLOAT + case.n * INDEX)  # the losses, and the order
        there, back = keys + rest, 2 * keys + rest
    elif case.case == "soft_permutation":
        there, back = keys * (1 + case.n), keys * (2 + case.n)
    elif case.case == "sort_by":
        payload = keys * math.prod(cases.payload_of(case))
        # Back: keys and payload again, and a gradient for each.
        there, back = keys + 2 * payload, 2 * keys + 3 * payload
    return Work(0, 0, there), Work(0, 0, there + back)
