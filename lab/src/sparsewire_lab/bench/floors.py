"""Floors: the least that a case must compute and move, counted, and how long the machine needs.

A floor is a bound from below, not a target: every input is read once and every output written
once, the density of every pair is evaluated once in a pass, and whatever else an engine does is
free. `floor` divides the counts by the measured ceilings and takes the longest of the three times.
"""

from collections.abc import Mapping
from typing import NamedTuple

from sparsewire_lab.bench.cases import Sizes

FLOAT, INDEX, FLAG = 4, 8, 1  # bytes of a float32, an int64, a bool


class Work(NamedTuple):
    """What must be done: exponentials, other floating-point operations, bytes that move."""

    exps: int
    flops: int
    bytes: int

    def plus(self, other: "Work") -> "Work":
        """Return the work of both."""
        return Work(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


class Floor(NamedTuple):
    """The least time, and which ceiling it comes from."""

    ms: float
    limit: str


def floor(work: Work, rates: Mapping[str, float]) -> Floor | None:
    """Return the floor of some work on a machine, None where a ceiling is not known.

    Args:
        work: What must be done.
        rates: Measured ceilings by name: bytes of `copy`, `exp` and flops of `matmul float32`,
            each in a second.
    """
    if not {"copy", "exp", "matmul float32"} <= rates.keys():
        return None
    times = {
        "exp": work.exps / rates["exp"],
        "flops": work.flops / rates["matmul float32"],
        "bytes": work.bytes / rates["copy"],
    }
    limit = max(times, key=lambda name: times[name])
    return Floor(times[limit] * 1e3, limit)


def forward(sizes: Sizes, pairs: int | None = None) -> Work:
    """Count a forward pass over all pairs, or over so many of them."""
    work = _spread_forward(sizes, sizes.pairs if pairs is None else pairs)
    return work.plus(_contract_forward(sizes)) if sizes.lanes else work


def forward_backward(sizes: Sizes, pairs: int | None = None) -> Work:
    """Count a forward and a backward pass, and the optimiser's step where there is one."""
    pairs = sizes.pairs if pairs is None else pairs
    work = forward(sizes, pairs).plus(_spread_backward(sizes, pairs))
    if sizes.lanes:
        work = work.plus(_contract_backward(sizes))
    return work.plus(_adam(sizes)) if sizes.trained else work


def _spread_forward(sizes: Sizes, pairs: int) -> Work:
    # On each axis a difference, a product with the precision, and one with the difference, added;
    # then the sum of the row, and the value times the share, added to the column.
    flops = pairs * (4 * sizes.r + 3)
    return Work(pairs, flops, _tuples(sizes) + _points(sizes))


def _spread_backward(sizes: Sizes, pairs: int) -> Work:
    # The distance again; the share times the incoming gradient, summed and weighed; on each axis
    # its products with the pull (added to the mean's gradient) and the pull again (the variance's).
    flops = pairs * (4 * sizes.r + 4 + 5 * sizes.r)
    return Work(pairs, flops, 2 * _tuples(sizes) + _points(sizes))


def _tuples(sizes: Sizes) -> int:
    """Bytes of the continuous tuples: means, variances and values, or the raw ones of a layer."""
    numbers = sizes.r + 2 if sizes.lanes else 2 * sizes.r + 1
    return sizes.contexts * sizes.k * numbers * FLOAT


def _points(sizes: Sizes) -> int:
    """Bytes of the integer tuples and their shares: a layer need not write them down."""
    if sizes.lanes:
        return 0
    return sizes.contexts * sizes.m * (sizes.r * INDEX + FLAG + FLOAT)


def _contract_forward(sizes: Sizes) -> Work:
    products = sizes.contexts * sizes.m * sizes.lanes
    return Work(0, 2 * products, _read(sizes) + _written(sizes))


def _contract_backward(sizes: Sizes) -> Work:
    products = sizes.contexts * sizes.m * sizes.lanes
    # To the values always; to the input where it is not the data itself.
    passes = 1 if sizes.trained else 2
    return Work(0, 2 * products * passes, _read(sizes) * passes + _written(sizes))


def _read(sizes: Sizes) -> int:
    """Bytes of the input that the integer tuples can reach."""
    reached = min(sizes.in_size, sizes.contexts * sizes.m // sizes.wirings)
    return sizes.wirings * sizes.lanes * reached * FLOAT


def _written(sizes: Sizes) -> int:
    return sizes.wirings * sizes.lanes * sizes.out_size * FLOAT


def _adam(sizes: Sizes) -> Work:
    """Read a number, its gradient and two moments; write all but the gradient."""
    numbers = sizes.contexts * sizes.k * (sizes.r + 2)
    return Work(0, 12 * numbers, 7 * numbers * FLOAT)
