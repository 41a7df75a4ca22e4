"""Floors are what the sizes say, counted by hand here, and scale as they must."""

import pytest
from lab.tests.bench.rows import RATES

from sparsewire_lab.bench.cases import Case, Sizes, sizes_of
from sparsewire_lab.bench.floors import Work, floor, forward, forward_backward


def test_spread_by_hand() -> None:
    """Two tuples against three points on one axis: 6 pairs, 3 numbers a tuple, 13 bytes a point."""
    sizes = Sizes(contexts=1, k=2, m=3, r=1)
    inputs, points = 2 * 3 * 4, 3 * (8 + 1 + 4)
    assert forward(sizes) == Work(6, 6 * 7, inputs + points)
    assert forward_backward(sizes) == Work(12, 6 * (7 + 13), 3 * inputs + 2 * points)


def test_layers_move_what_goes_in_and_out_and_write_no_points() -> None:
    """Two tuples, r = 1, of a layer from 5 to 4 with batch 7: raw numbers are 3 a tuple."""
    sizes = Sizes(1, 2, 30, 1, lanes=7, in_size=5, out_size=4, trained=True)
    raw, x, y = 2 * 3 * 4, 7 * 5 * 4, 7 * 4 * 4
    assert forward(sizes) == Work(60, 60 * 7 + 2 * 30 * 7, raw + x + y)
    backward = Work(60, 60 * 13 + 2 * 30 * 7, 2 * raw + x + y)
    adam = Work(0, 12 * 6, 7 * 6 * 4)
    assert forward_backward(sizes) == forward(sizes).plus(backward).plus(adam)


@pytest.mark.parametrize("name", ["spread", "step"])
def test_pairs_grow_with_the_square_and_bytes_linearly(name: str) -> None:
    small, large = (forward_backward(sizes_of(Case(name, "auto", n, batch=64))) for n in (64, 640))
    assert large.exps == 100 * small.exps
    assert large.bytes == 10 * small.bytes
    assert 10 * small.flops < large.flops <= 100 * small.flops


def test_a_floor_is_the_longest_of_three_times() -> None:
    assert floor(Work(2 * 10**9, 0, 2 * 10**10), RATES) == (2000.0, "exp")
    assert floor(Work(10**9, 0, 6 * 10**10), RATES) == (3000.0, "bytes")
    assert floor(Work(10**9, 5 * 10**11, 2 * 10**10), RATES) == (5000.0, "flops")
    assert floor(Work(1, 1, 1), {"copy": 1.0}) is None


def test_fewer_pairs_lower_the_floor_but_never_to_nothing() -> None:
    for case in (
        Case("spread", "auto", 64),
        Case("step", "auto", 64, batch=64),
        Case("glimpse", "auto", 1024, "1×32×32", batch=2),
    ):
        sizes = sizes_of(case)
        floors = [floor(forward_backward(sizes, p), RATES) for p in (0, sizes.pairs // 2, None)]
        times = [0.0 if f is None else f.ms for f in floors]
        assert 0 < times[0] <= times[1] <= times[2]
        assert forward_backward(sizes, sizes.pairs) == forward_backward(sizes)
