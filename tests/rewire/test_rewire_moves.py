"""Rewiring: which tuples move, where to, and how they begin there."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import assert_same, pairwise, sampled_layer, seeded, seeds
from tests.nn.dense import tuples_of
from tests.rewire.wires import (
    NARROW,
    SOURCES,
    Setup,
    all_wasted,
    allowed_places,
    flat_layer,
    held_by,
    keepers_one_by_one,
    make,
    offer,
    put,
    setup,
)
from torch import Tensor

from sparsewire import FreeTuples, HyperLayer, Rewire
from sparsewire.ops.bound import EDGES

# Which tuples move, and where to.


def rewired(
    layer: HyperLayer,
    means: Any,
    values: Any,
    places: Sequence[Sequence[int]],
    sizes: Sequence[float] = (),
    raw_variances: Any = NARROW,
    **options: Any,
) -> Setup:
    """Rewire a layer with tuples at these means, when these places are offered, best first."""
    one = setup(layer, **options)
    put(layer, means, values, raw_variances)
    offer(one.rewire, places, sizes or [float(len(places) - i) for i in range(len(places))])
    one.rewire.rewire()
    return one


def test_tuples_too_near_to_a_stronger_one_move():
    layer, means = flat_layer(9, 4), [[3, 3], [3.6, 3], [6, 6], [6.8, 6]]
    rewired(layer, means, [1.0, -0.8, 0.9, 1.0], [[0, 5], [8, 0]], [0.1, 0.4])
    assert held_by(layer) == [(3, 3), (8, 0), (6, 6), (7, 6)]
    torch.testing.assert_close(tuples_of(layer).values, torch.tensor([0.2, 0.0, 0.9, 1.0]))


def test_wide_tuples_bring_little():
    layer, means, raw_variances = flat_layer(9, 3), [[0, 0], [4, 4], [8, 8]], [NARROW, 3.0, NARROW]
    values, options = [1.0, 1.0, 1.0], {"patience": 0, "negligible": 0.3}
    rewired(layer, means, values, [[2, 6]], raw_variances=raw_variances, **options)
    assert held_by(layer) == [(0, 0), (2, 6), (8, 8)]


@pytest.mark.parametrize("patience", [0, 1, 3])
def test_fresh_tuples_have_time_to_contribute(patience):
    one = setup(flat_layer(9, 2), patience=patience)
    put(one.layer, [[0, 0], [4, 4]], [1.0, 0.0])
    places: list[tuple[int, ...]] = [(4, 4)]
    for target in range(2 * patience + 2):
        offer(one.rewire, [[8, target]], [1.0])
        one.rewire.rewire()
        places.append(held_by(one.layer)[1])
    stays = [(4, 4)] * (patience + 1) + [(8, patience)] * (patience + 1) + [(8, 2 * patience + 1)]
    assert places == stays
    assert one.rewire.moves == 2


@pytest.mark.parametrize("free", [0, 1, 2])
def test_tuples_without_a_free_place_stay_as_they_are(free):
    layer, values = flat_layer(9, 4), [1.0, 0.5, 0.25, 0.125]
    put(layer, [[3, 3]] * 4)
    source = tuples_of(layer)
    before = [source.raw_means.detach().clone(), source.raw_variances.detach().clone()]
    goals = [(8, 8), (8, 7)][:free]
    rewired(layer, [[3, 3]] * 4, values, [(3, 3), *goals])
    assert held_by(layer) == [(3, 3), *goals, *[(3, 3)] * (3 - free)]
    staying = [0, *range(1 + free, 4)]
    for was, now in zip(before, (source.raw_means, source.raw_variances), strict=True):
        assert torch.equal(was[staying], now[staying])
    assert source.values.tolist() == [sum(values[: 1 + free]), *[0.0] * free, *values[1 + free :]]


@pytest.mark.filterwarnings("ignore:.* tuples compete for")
@settings(max_examples=60)
@given(data=st.data(), size=st.integers(2, 5), count=st.integers(1, 10), patience=st.integers(0, 2))
def test_exactly_the_wasted_tuples_move(data, size, count, patience):
    grid = st.integers(0, 8 * (size - 1))
    each = {"min_size": count, "max_size": count}
    means = torch.tensor(data.draw(st.lists(st.tuples(grid, grid), **each))) / 8
    values = data.draw(st.lists(st.sampled_from([-1.0, 0.0, 0.001, 0.5, 2.0]), **each))
    ages = data.draw(st.lists(st.integers(0, 3), **each))
    negligible = data.draw(st.sampled_from([0.0, 0.05, 0.4]))
    index = st.integers(0, size - 1)
    offers = data.draw(st.lists(st.tuples(index, index), min_size=1, max_size=4 * count))
    one = setup(flat_layer(size, count), patience=patience, negligible=negligible)
    put(one.layer, means, values)
    one.rewire.layers[0].ages.copy_(torch.tensor(ages))
    offer(one.rewire, offers[::-1], [float(i) for i in range(len(offers))])  # the worst has none

    held = held_by(one.layer)
    strength = [abs(value) for value in values]
    exact = one.layer.wiring().means.double().mul(8).round().div(8)
    keeper = keepers_one_by_one(exact.tolist(), [list(place) for place in held], strength)
    typical = math.sqrt(sum(s**2 for s in strength) / count)
    free = iter([place for place in dict.fromkeys(offers[:-1]) if place not in held])
    want, moved = list(held), []
    for i in range(count):
        weak = strength[i] < negligible * typical and ages[i] + 1 > patience
        if (keeper[i] != i or weak) and (place := next(free, None)):
            want[i] = place
            moved.append(i)

    one.rewire.rewire()
    assert held_by(one.layer) == want
    assert one.rewire.layers[0].ages.tolist() == [
        0 if i in moved else a + 1 for i, a in enumerate(ages)
    ]
    assert one.rewire.moves == len(moved)
    assert (one.rewire.layers[0].gradients == -1).all()


# How a tuple begins at its new place.


@pytest.mark.parametrize(
    "options", pairwise(kind=list(SOURCES), edge=EDGES, dtype=[torch.float32, torch.float64])
)
def test_every_allowed_place_can_be_taken(options):
    """Tuples begin there sure of their place, and with nothing."""
    one, places = all_wasted(**options)
    before = one.layer.wiring()
    one.rewire.rewire()
    after, others = one.layer.wiring(), len(places) - 1
    assert held_by(one.layer) == places
    assert one.rewire.moves == others
    assert all(p.dtype == options["dtype"] for p in one.layer.parameters())
    assert (after.variances[1:] >= 0.1).all()
    assert (after.variances[1:] < 0.1 + 0.01 * math.e).all()
    assert torch.equal(after.variances[0], before.variances[0])
    assert after.values.tolist() == [float(len(places))] + [0.0] * others


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((8, 8), {}),
        ((5, 40), {"variance_scale": 0.5, "variance_floor": 0.02}),
        ((300, 20), {"variance_scale": 0.5, "variance_floor": 0.02}),
        ((300, 20), {}),
    ],
)
def test_tuples_begin_with_a_variance_of_a_hundredth_above_the_floor(sizes, options):
    layer = sampled_layer(sizes[:1], sizes[1:], tuples=2, edge="clamp", **options)
    rewired(layer, [[1, 1], [1, 1]], [1.0, 0.5], [[3, 3]])
    above = layer.wiring().variances[1] - layer.variance_floor
    want = torch.tensor(layer.space()) / max(sizes) * 0.01
    torch.testing.assert_close(above, want, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("scale", [0.0, 1e-6])
def test_variances_that_cannot_grow_do_not_matter(scale):
    layer = flat_layer(9, 2, variance_scale=scale)
    rewired(layer, [[1, 1], [1, 1]], [1.0, 0.5], [[3, 3]])
    assert held_by(layer) == [(1, 1), (3, 3)]
    torch.testing.assert_close(layer.wiring().variances, torch.full((2, 2), 0.1), rtol=0, atol=0.02)


ONE_VALUE = FreeTuples(3, 2, values=0.5, value_count=1, edge="clamp")


@pytest.mark.parametrize(
    ("layer", "values", "held"),
    [
        (flat_layer(9, 3, values=0.75, learn_values=False), [0.75] * 3, [(3, 3), (1, 1), (2, 2)]),
        (flat_layer(9, 3, share_values=[0, 1, 0]), [0.5, 2.0], [(1, 1), (3, 3), (2, 2)]),
        (HyperLayer(ONE_VALUE, (9,), (9,)), [0.5], [(3, 3), (1, 1), (2, 2)]),
    ],
    ids=["fixed", "shared", "one for all"],
)
def test_values_that_are_fixed_or_shared_stay(layer, values, held):
    rewired(layer, [[3, 3]] * 3, values, [[1, 1], [2, 2]])
    assert held_by(layer) == held
    assert tuples_of(layer).values.tolist() == values


@given(seed=seeds, kind=st.sampled_from(["rank 2", "rank 3", "lower", "banded"]))
def test_moves_of_duplicates_leave_the_rounded_layer_as_it_is(seed, kind):
    """Where no tuple is too near to another place, or negligible."""
    layer = make(kind, tuples=14, edge="clamp", bias=True).double()
    one = setup(layer, negligible=0.0)
    allowed = torch.tensor(allowed_places(layer))
    chosen = allowed[torch.randint(len(allowed), (14,), generator=seeded(seed))]
    with torch.no_grad():
        tuples_of(layer).raw_means.copy_(layer.raw_means_at(chosen))
    free = [place for place in allowed.tolist() if tuple(place) not in held_by(layer)]
    repeated = len(held_by(layer)) - len(set(held_by(layer)))
    offer(one.rewire, free, [1.0] * len(free))
    x = torch.randn(5, *(size or 1 for size in layer.in_shape), dtype=torch.float64)
    before = layer(x, mode="rounded")
    one.rewire.rewire()
    assert one.rewire.moves == min(repeated, len(free))
    torch.testing.assert_close(layer(x, mode="rounded"), before)


@pytest.mark.parametrize(
    ("optimizer", "options", "states"),
    [
        (torch.optim.Adam, {}, 12),
        (torch.optim.Adam, {"fused": True}, 12),
        (torch.optim.Adam, {"amsgrad": True}, 16),
        (torch.optim.SGD, {}, 0),
        (torch.optim.SGD, {"momentum": 0.9}, 4),
    ],
)
def test_the_optimiser_forgets_tuples_that_moved_and_no_others(optimizer, options, states):
    layer = flat_layer(9, 5, bias=True)
    optimizer = optimizer(layer.parameters(), lr=1e-3, **options)
    rewire = Rewire(layer, optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        layer(torch.randn(16, 9)).square().mean().backward()
        optimizer.step()

    def state() -> dict[str, Tensor]:
        return {
            f"{key} of {name}": number.clone()
            for name, parameter in layer.named_parameters()
            for key, number in optimizer.state[parameter].items()
            if torch.is_tensor(number)
        }

    put(layer, [[3, 3], [3, 3], [7, 7], [7, 7], [1, 8]], [0.5, 1.0, 1.0, 0.2, 1.0])
    offer(rewire, [[8, 0], [5, 0]], [2.0, 1.0])
    want = state()
    rewire.rewire()
    assert held_by(layer) == [(8, 0), (3, 3), (7, 7), (5, 0), (1, 8)]
    assert len(want) == states
    for name, number in want.items():
        if "source" in name and number.dim():  # all but counts of steps, and the bias
            assert number[[0, 3]].count_nonzero(), name
            number[[0, 3]] = 0
    assert_same(state(), want, rtol=0, atol=0)
