import itertools
import math
from collections.abc import Iterator, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import DTYPES, assert_uniform, prefixes, seeded, seeds
from torch import Tensor

from sparsewire.ops import everywhere, local, nearest, rounded, sample, window

shapes = st.lists(st.integers(1, 9), min_size=1, max_size=6).map(tuple)


def means_inside(prefix: Sequence[int], k: int, shape: Sequence[int], seed: int) -> Tensor:
    """Random means, a third of them on exact integers and a third of them at a bound."""
    generator = seeded(seed)
    last = torch.tensor(shape) - 1.0
    drawn = torch.rand(3, *prefix, k, len(shape), generator=generator) * last
    kind = torch.randint(3, drawn.shape[1:], generator=generator)
    at_bound = torch.where(drawn[1] < last / 2, torch.zeros_like(last), last)
    return torch.where(kind == 0, drawn[0], torch.where(kind == 1, drawn[2].round(), at_bound))


def regions_of(shape: Sequence[int]) -> st.SearchStrategy[tuple[int, ...]]:
    return st.tuples(*(st.integers(1, n) for n in shape))


shapes_with_regions = shapes.flatmap(lambda shape: st.tuples(st.just(shape), regions_of(shape)))


def region_ranges(
    mean: Sequence[float], shape: Sequence[int], region: Sequence[int]
) -> list[range]:
    """The region by its definition: around the rounded mean, pushed inside at a bound."""
    starts = (
        min(max(round(x) - span // 2, 0), n - span)
        for x, n, span in zip(mean, shape, region, strict=True)
    )
    return [range(start, start + span) for start, span in zip(starts, region, strict=True)]


def regions_and_tuples(
    means: Tensor, shape: Sequence[int], region: Sequence[int], found: Tensor
) -> Iterator[tuple[list[range], list[list[int]]]]:
    """For each mean the region it should have, and the tuples that were found there."""
    for mean, rows in zip(means.flatten(0, -2), found.flatten(0, -3), strict=True):
        yield region_ranges(mean.tolist(), shape, region), rows.tolist()


def assert_valid(indices: Tensor, shape: Sequence[int]) -> None:
    assert indices.dtype == torch.int64
    assert (indices >= 0).all()
    assert (indices < torch.tensor(shape)).all()


# Near.


@pytest.mark.parametrize(
    ("mean", "size", "expected"),
    [
        (2.3, 8, [2, 3]),
        (2.0, 8, [2, 3]),
        (0.0, 8, [0, 1]),
        (6.999, 8, [6, 7]),
        (7.0, 8, [6, 7]),
        (0.5, 2, [0, 1]),
        (1.0, 2, [0, 1]),
        (0.0, 1, [0, 0]),
        (-3.0, 8, [0, 1]),
        (99.0, 8, [6, 7]),
    ],
)
def test_nearest_by_hand(mean, size, expected):
    assert nearest(torch.tensor([[mean]]), (size,)).flatten().tolist() == expected


@given(shapes, prefixes, st.integers(0, 3), seeds)
def test_nearest_are_distinct_valid_corners(shape, prefix, k, seed):
    means = means_inside(prefix, k, shape, seed)
    found = nearest(means, shape)
    assert found.shape == (*prefix, k, 2 ** len(shape), len(shape))
    assert_valid(found, shape)
    for corners in found.flatten(0, -3).tolist():
        assert len(set(map(tuple, corners))) == math.prod(min(n, 2) for n in shape)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple), seeds)
def test_nearest_are_the_closest_of_all_tuples(shape, seed):
    """By the largest step along an axis, no tuple outside is closer than one inside."""
    (mean,) = means_inside((), 1, shape, seed)
    chosen = torch.unique(nearest(mean.unsqueeze(0), shape).squeeze(0), dim=0)
    everything = torch.tensor(list(itertools.product(*map(range, shape))))
    closest = (everything - mean).abs().amax(-1).sort().values[: len(chosen)]
    torch.testing.assert_close((chosen - mean).abs().amax(-1).sort().values, closest)


@given(shapes, prefixes, seeds)
def test_rounded_is_the_closest_and_among_the_nearest(shape, prefix, seed):
    means = means_inside(prefix, 2, shape, seed)
    found = rounded(means, shape)
    assert_valid(found, shape)
    assert ((found - means).abs() <= 0.5).all()
    assert (nearest(means, shape) == found.unsqueeze(-2)).all(-1).any(-1).all()


# Around.


@given(shapes_with_regions, prefixes, st.integers(0, 3), st.integers(0, 20), seeds)
def test_local_stays_in_the_region(case, prefix, k, count, seed):
    shape, region = case
    means = means_inside(prefix, k, shape, seed)
    drawn = local(means, shape, region, count, seeded(seed))
    assert drawn.shape == (*prefix, k, count, len(shape))
    assert_valid(drawn, shape)
    for ranges, rows in regions_and_tuples(means, shape, region, drawn):
        assert all(index in span for row in rows for index, span in zip(row, ranges, strict=True))


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4)
    .map(tuple)
    .flatmap(lambda shape: st.tuples(st.just(shape), regions_of(shape))),
    prefixes,
    seeds,
)
def test_window_enumerates_the_region_once(case, prefix, seed):
    shape, region = case
    means = means_inside(prefix, 2, shape, seed)
    found = window(means, shape, region)
    assert found.shape == (*prefix, 2, math.prod(region), len(shape))
    for ranges, rows in regions_and_tuples(means, shape, region, found):
        assert list(map(tuple, rows)) == list(itertools.product(*ranges))


# Everything together.


@given(
    shapes_with_regions, prefixes, st.integers(0, 3), st.integers(0, 3), st.integers(0, 3), seeds
)
def test_sample_joins_near_around_and_anywhere(case, prefix, k, around, anywhere, seed):
    shape, region = case
    means = means_inside(prefix, k, shape, seed)
    found = sample(means, shape, region, around, anywhere, seeded(seed))
    each, rank = 2 ** len(shape) + around + anywhere, len(shape)
    assert found.shape == (*prefix, k * each, rank)
    assert_valid(found, shape)
    generator = seeded(seed)
    parts = found.reshape(*prefix, k, each, rank).split([2**rank, around, anywhere], dim=-2)
    assert torch.equal(parts[0], nearest(means, shape))
    assert torch.equal(parts[1], local(means, shape, region, around, generator))
    assert torch.equal(parts[2], everywhere((*prefix, k), shape, anywhere, generator))


@pytest.mark.parametrize(
    "draw",
    [
        lambda g: sample(torch.full((2, 4, 3), 50.0), (100, 100, 100), (7, 7, 7), 4, 4, g),
        lambda g: local(torch.full((4, 1), 50.0), (100,), (70,), 8, g),
        lambda g: everywhere((4,), (100,), 8, g),
    ],
    ids=["sample", "local", "everywhere"],
)
def test_the_generator_decides_the_draw(draw):
    generator = seeded(7)
    state = generator.get_state()
    first, second = draw(generator), draw(generator)
    assert torch.equal(draw(generator.set_state(state)), first)
    assert torch.equal(draw(seeded(7)), first)
    assert not torch.equal(second, first)
    assert not torch.equal(draw(seeded(8)), first)


def test_without_a_generator_the_global_seed_decides():
    def draw() -> Tensor:
        return everywhere((), (1000,), 20)

    torch.manual_seed(3)
    first, second = draw(), draw()
    torch.manual_seed(3)
    assert torch.equal(draw(), first)
    assert not torch.equal(second, first)


def test_samples_carry_no_gradient():
    means = torch.tensor([[1.2, 3.4]], requires_grad=True)
    assert not sample(means, (8, 8), (3, 3), 2, 2).requires_grad


# Uniformity.


@pytest.mark.parametrize("shape", [(2,), (7,), (64,), (3, 5), (2, 3, 4)])
def test_everywhere_is_uniform_over_all_tuples(shape):
    drawn = everywhere((30, 20), shape, 100, seeded(0))
    strides = torch.tensor([math.prod(shape[axis + 1 :]) for axis in range(len(shape))])
    assert_uniform((drawn * strides).sum(-1), math.prod(shape))


def test_successive_draws_are_independent():
    drawn = everywhere((), (7,), 60_000, seeded(0)).view(-1, 2)
    assert_uniform(drawn[:, 0] * 7 + drawn[:, 1], 49)


@pytest.mark.parametrize("mean", [0.0, 3.4, 41.5, 99.0])
@pytest.mark.parametrize("span", [2, 3, 10, 100])
def test_local_is_uniform_over_the_region(mean, span):
    drawn = local(torch.full((60, 1), mean), (100,), (span,), 1000, seeded(0))
    (inside,) = region_ranges([mean], (100,), (span,))
    assert_uniform(drawn - inside.start, span)


@pytest.mark.parametrize("size", [3 * 2**30, 3 * 2**40, 5 * 2**50, 2**53 - 1])
def test_long_axes_are_uniform(size):
    """A remainder of 32 random bits would draw the first third of 3·2³⁰ twice as often."""
    bins, count = 12, 20_000
    means = torch.full((1, 1), size / 3, dtype=torch.float64)
    for drawn in (
        everywhere((), (size,), count, seeded(0)),
        local(means, (size,), (size,), count, seeded(1)),
    ):
        assert_valid(drawn, (size,))
        assert_uniform((drawn.double() / size * bins).long(), bins)
    naive = torch.randint(2**32, (count,), generator=seeded(0)) % (3 * 2**30)
    with pytest.raises(AssertionError):
        assert_uniform(naive // 2**28, bins)


# Numbers that are not inside the bounds, or that the dtype does not resolve.


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 6e4, -6e4, -0.0])
def test_bad_means_still_give_valid_indices(number, dtype):
    means, shape, region = torch.full((2, 3), number, dtype=dtype), (9, 1, 300), (4, 1, 300)
    assert_valid(sample(means, shape, region, 3, 3), shape)
    assert_valid(window(means, shape, region), shape)
    assert_valid(rounded(means, shape), shape)


@pytest.mark.parametrize("number", [None, math.inf], ids=["last index", "infinity"])
@pytest.mark.parametrize(
    ("dtype", "bits"),
    [(torch.float16, 11), (torch.bfloat16, 8), (torch.float32, 24), (torch.float64, 53)],
    ids=str,
)
def test_indices_are_valid_on_axes_longer_than_the_dtype_resolves(dtype, bits, number):
    for size in range(2**bits - 2, 2**bits + 40):
        last = torch.tensor(size - 1).to(dtype)
        if number is None and int(last) > size - 1:
            last = torch.nextafter(last, torch.zeros_like(last))
        means = last.view(1, 1) if number is None else torch.full((1, 1), number, dtype=dtype)
        assert_valid(sample(means, (size,), (3,), 4, 0), (size,))
        assert_valid(rounded(means, (size,)), (size,))
