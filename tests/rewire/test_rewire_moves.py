"""Rewiring: which tuples move, where to, and how they begin there."""

import functools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import seeded, seeds
from tests.nn.dense import tuples_of
from tests.rewire.wires import (
    NARROW,
    SOURCES,
    all_wasted,
    allowed_places,
    flat_layer,
    held_by,
    keepers_one_by_one,
    make,
    offer,
    put,
    setup,
    shapes_of,
    space_of,
)

from sparsewire import FreeTuples, HyperLayer, Rewire, SparseLayer
from sparsewire.ops.bound import EDGES

# Which tuples move, and where to.


def test_duplicates_move_to_the_best_free_places():
    one = setup(flat_layer(9, 5))
    put(one.layer, [[3, 3], [3.2, 3], [7, 7], [3, 2.8], [1, 8]], [0.5, 1.0, 1.0, 0.2, 1.0])
    offer(one.rewire, [[0, 5], [8, 0], [5, 0], [4, 8]], [0.1, 0.4, 0.3, 0.2])
    one.rewire.rewire()
    assert held_by(one.layer) == [(8, 0), (3, 3), (7, 7), (5, 0), (1, 8)]
    assert one.rewire.moves == 2
    assert one.rewire.ages.tolist() == [0, 1, 1, 0, 1]
    assert (one.rewire.gradients == -1).all()


def test_tuples_too_near_to_a_stronger_one_move():
    one = setup(flat_layer(9, 4))
    put(one.layer, [[3, 3], [3.6, 3], [6, 6], [6.8, 6]], [1.0, -0.8, 0.9, 1.0])
    offer(one.rewire, [[0, 5], [8, 0]], [0.1, 0.4])
    one.rewire.rewire()
    assert held_by(one.layer) == [(3, 3), (8, 0), (6, 6), (7, 6)]
    torch.testing.assert_close(tuples_of(one.layer).values, torch.tensor([0.2, 0.0, 0.9, 1.0]))


@pytest.mark.parametrize("negligible", [0.0, 0.05, 0.5])
def test_tuples_that_bring_too_little_move(negligible):
    values = [1.0, -1.0, 0.4, 0.04, 0.0, -0.02]
    one = setup(flat_layer(9, 6), negligible=negligible, patience=0)
    put(one.layer, [[i, 2 * i % 9] for i in range(6)], values)
    before = held_by(one.layer)
    offer(one.rewire, [[8, i] for i in range(6)], [6.0, 5.0, 4.0, 3.0, 2.0, 1.0])
    one.rewire.rewire()
    typical = math.sqrt(sum(value**2 for value in values) / 6)
    weak = [i for i, value in enumerate(values) if abs(value) < negligible * typical]
    assert len(weak) == {0.0: 0, 0.05: 2, 0.5: 3}[negligible]
    want = list(before)
    for turn, i in enumerate(weak):
        want[i] = (8, turn)
    assert held_by(one.layer) == want


def test_wide_tuples_bring_little():
    one = setup(flat_layer(9, 3), patience=0, negligible=0.3)
    put(one.layer, [[0, 0], [4, 4], [8, 8]], [1.0, 1.0, 1.0], [NARROW, 3.0, NARROW])
    offer(one.rewire, [[2, 6]], [1.0])
    one.rewire.rewire()
    assert held_by(one.layer) == [(0, 0), (2, 6), (8, 8)]


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


def test_duplicates_move_though_they_are_fresh():
    one = setup(flat_layer(9, 2), patience=100)
    put(one.layer, [[4, 4], [4, 4]], [1.0, 0.5])
    offer(one.rewire, [[8, 8]], [1.0])
    one.rewire.rewire()
    assert held_by(one.layer) == [(4, 4), (8, 8)]


def test_places_that_are_held_seen_twice_or_without_gradient_are_not_taken():
    one = setup(flat_layer(9, 5))
    put(one.layer, [[3, 3], [3, 3], [3, 3], [7, 7], [1, 8]], [1.0, 0.5, 0.5, 1.0, 1.0])
    held, nothing = [[3, 3], [7, 7], [1, 8]], [[2, 2], [2, 3]]
    offer(
        one.rewire,
        [*held, [5, 5], [5, 5], [6, 0], *nothing],
        [9.0, 8.0, 7.0, 6.0, 5.0, 0.5, 0.0, -1.0],
    )
    one.rewire.rewire()
    assert held_by(one.layer) == [(3, 3), (5, 5), (6, 0), (7, 7), (1, 8)]


@pytest.mark.parametrize("free", [0, 1, 2])
def test_tuples_without_a_free_place_stay_as_they_are(free):
    one = setup(flat_layer(9, 4))
    values = [1.0, 0.5, 0.25, 0.125]
    put(one.layer, [[3, 3]] * 4, values)
    source = tuples_of(one.layer)
    before = [source.raw_means.detach().clone(), source.raw_variances.detach().clone()]
    offer(one.rewire, [[3, 3], [8, 8], [8, 7]][: 1 + free], [3.0, 2.0, 1.0][: 1 + free])
    one.rewire.rewire()
    goals = [(8, 8), (8, 7)][:free]
    assert held_by(one.layer) == [(3, 3), *goals, *[(3, 3)] * (3 - free)]
    staying = [0, *range(1 + free, 4)]
    for was, now in zip(before, (source.raw_means, source.raw_variances), strict=True):
        assert torch.equal(was[staying], now[staying])
    kept = sum(values[: 1 + free])
    assert source.values.tolist() == [kept, *[0.0] * free, *values[1 + free :]]


@pytest.mark.filterwarnings("ignore:.* tuples compete for")
@settings(max_examples=60)
@given(data=st.data(), size=st.integers(2, 5), count=st.integers(1, 10), patience=st.integers(0, 2))
def test_exactly_the_wasted_tuples_move(data, size, count, patience):
    grid = st.integers(0, 8 * (size - 1))
    each = {"min_size": count, "max_size": count}
    means = torch.tensor(data.draw(st.lists(st.tuples(grid, grid), **each))) / 8
    values = data.draw(st.lists(st.sampled_from([-1.0, 0.0, 0.001, 0.5, 2.0]), **each))
    ages = data.draw(st.lists(st.integers(0, 3), **each))
    index = st.integers(0, size - 1)
    offers = data.draw(
        st.lists(st.tuples(index, index), min_size=1, max_size=4 * count, unique=True)
    )
    one = setup(flat_layer(size, count), patience=patience)
    put(one.layer, means, values)
    one.rewire.ages.copy_(torch.tensor(ages))
    offer(one.rewire, offers, [float(len(offers) - i) for i in range(len(offers))])

    held = held_by(one.layer)
    strength = [abs(value) for value in values]
    exact = one.layer.wiring().means.double().mul(8).round().div(8)
    keeper = keepers_one_by_one(exact.tolist(), [list(place) for place in held], strength)
    typical = math.sqrt(sum(s**2 for s in strength) / count)
    free = iter([place for place in offers if place not in held])
    want, moved = list(held), []
    for i in range(count):
        weak = strength[i] < 0.05 * typical and ages[i] + 1 > patience
        if (keeper[i] != i or weak) and (place := next(free, None)):
            want[i] = place
            moved.append(i)

    one.rewire.rewire()
    assert held_by(one.layer) == want
    assert one.rewire.ages.tolist() == [0 if i in moved else a + 1 for i, a in enumerate(ages)]
    assert one.rewire.moves == len(moved)
    arrivals = [want[i] for i in moved]
    assert len(set(arrivals)) == len(arrivals)
    assert not set(arrivals) & set(held)


# How a tuple begins at its new place.


for_kinds = pytest.mark.parametrize("kind", SOURCES)
for_edges = pytest.mark.parametrize("edge", EDGES)


@for_kinds
@for_edges
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_allowed_place_can_be_taken(kind, edge, dtype):
    one, places = all_wasted(kind, dtype, edge=edge)
    one.rewire.rewire()
    assert held_by(one.layer) == places
    assert one.rewire.moves == len(places) - 1
    assert all(p.dtype == dtype for p in one.layer.parameters())


@for_kinds
def test_tuples_begin_sure_of_their_place_and_with_nothing(kind):
    one, places = all_wasted(kind, torch.float32)
    before = one.layer.wiring()
    one.rewire.rewire()
    after = one.layer.wiring()
    assert (after.variances[1:] >= 0.1).all()
    assert (after.variances[1:] < 0.1 + 0.01 * math.e).all()
    assert torch.equal(after.variances[0], before.variances[0])
    assert after.values.tolist() == [float(len(places))] + [0.0] * (len(places) - 1)


@pytest.mark.parametrize("options", [{}, {"variance_scale": 0.5, "variance_floor": 0.02}])
@pytest.mark.parametrize("sizes", [(8, 8), (5, 40), (300, 20)])
def test_tuples_begin_with_a_variance_of_a_hundredth_above_the_floor(options, sizes):
    layer = SparseLayer(sizes[:1], sizes[1:], tuples=2, edge="clamp", **options)
    one = setup(layer)
    put(layer, [[1, 1], [1, 1]], [1.0, 0.5])
    offer(one.rewire, [[3, 3]], [1.0])
    one.rewire.rewire()
    above = layer.wiring().variances[1] - layer.variance_floor
    want = torch.tensor(space_of(layer)) / max(sizes) * 0.01
    torch.testing.assert_close(above, want, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("scale", [0.0, 1e-6])
def test_variances_that_cannot_grow_do_not_matter(scale):
    layer = SparseLayer((9,), (9,), tuples=2, edge="clamp", variance_scale=scale)
    one = setup(layer)
    put(layer, [[1, 1], [1, 1]], [1.0, 0.5])
    offer(one.rewire, [[3, 3]], [1.0])
    one.rewire.rewire()
    assert held_by(layer) == [(1, 1), (3, 3)]
    torch.testing.assert_close(layer.wiring().variances, torch.full((2, 2), 0.1), rtol=0, atol=0.02)


def test_fixed_values_stay():
    one = setup(flat_layer(9, 3, values=0.75, learn_values=False))
    put(one.layer, [[3, 3]] * 3)
    offer(one.rewire, [[1, 1], [2, 2]], [2.0, 1.0])
    one.rewire.rewire()
    assert held_by(one.layer) == [(3, 3), (1, 1), (2, 2)]
    assert one.layer.wiring().values.tolist() == [0.75] * 3


def test_shared_values_stay():
    one = setup(flat_layer(9, 3, share_values=[0, 1, 0]))
    put(one.layer, [[3, 3]] * 3, [0.5, 2.0])
    offer(one.rewire, [[1, 1], [2, 2]], [2.0, 1.0])
    one.rewire.rewire()
    assert held_by(one.layer) == [(1, 1), (3, 3), (2, 2)]
    assert tuples_of(one.layer).values.tolist() == [0.5, 2.0]


def test_one_value_for_all_tuples_stays():
    source = FreeTuples(3, 2, values=0.5, value_count=1, edge="clamp")
    one = setup(HyperLayer(source, (9,), (9,)))
    put(one.layer, [[3, 3]] * 3)
    offer(one.rewire, [[1, 1], [2, 2]], [2.0, 1.0])
    one.rewire.rewire()
    assert held_by(one.layer) == [(3, 3), (1, 1), (2, 2)]
    assert source.values.tolist() == [0.5]


@given(seed=seeds, kind=st.sampled_from(["rank 2", "rank 3", "lower", "banded"]))
def test_moves_of_duplicates_leave_the_rounded_layer_as_it_is(seed, kind):
    """Where no tuple is too near to another place, or negligible."""
    layer = make(kind, tuples=14, edge="clamp", bias=True).double()
    one = setup(layer, negligible=0.0)
    allowed = torch.tensor(allowed_places(layer))
    chosen = allowed[torch.randint(len(allowed), (14,), generator=seeded(seed))]
    with torch.no_grad():
        raw = layer.layout.unbound(chosen, shapes_of(layer), layer.edge)
        tuples_of(layer).raw_means.copy_(raw)
    free = [place for place in allowed.tolist() if tuple(place) not in held_by(layer)]
    repeated = len(held_by(layer)) - len(set(held_by(layer)))
    offer(one.rewire, free, [1.0] * len(free))
    x = torch.randn(5, *(size or 1 for size in layer.in_shape), dtype=torch.float64)
    before = layer(x, mode="rounded")
    one.rewire.rewire()
    assert one.rewire.moves == min(repeated, len(free))
    torch.testing.assert_close(layer(x, mode="rounded"), before)


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "Adam": functools.partial(torch.optim.Adam, lr=1e-3),
    "fused": functools.partial(torch.optim.Adam, lr=1e-3, fused=True),
    "amsgrad": functools.partial(torch.optim.Adam, lr=1e-3, amsgrad=True),
    "SGD": functools.partial(torch.optim.SGD, lr=1e-3),
    "momentum": functools.partial(torch.optim.SGD, lr=1e-3, momentum=0.9),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_optimiser_forgets_tuples_that_moved_and_no_others(kind):
    layer = flat_layer(9, 5, bias=True)
    optimizer = OPTIMIZERS[kind](layer.parameters())
    rewire = Rewire(layer, optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        layer(torch.randn(16, 9)).square().mean().backward()
        optimizer.step()
    put(layer, [[3, 3], [3, 3], [7, 7], [7, 7], [1, 8]], [0.5, 1.0, 1.0, 0.2, 1.0])
    offer(rewire, [[8, 0], [5, 0]], [2.0, 1.0])
    source = tuples_of(layer)
    before = {
        (name, key): state.clone()
        for name, p in layer.named_parameters()
        for key, state in optimizer.state[p].items()
        if torch.is_tensor(state)
    }
    rewire.rewire()
    assert held_by(layer) == [(8, 0), (3, 3), (7, 7), (5, 0), (1, 8)]
    rows = {id(p) for p in (source.raw_means, source.raw_variances, source.values)}
    compared = 0
    for name, p in layer.named_parameters():
        for key, state in optimizer.state[p].items():
            if not torch.is_tensor(state):
                continue
            want = before[name, key].clone()
            if id(p) in rows and state.shape == p.shape:
                assert want[[0, 3]].count_nonzero()
                want[[0, 3]] = 0
            assert torch.equal(state, want), (name, key)
            compared += 1
    assert compared == {"Adam": 12, "fused": 12, "amsgrad": 16, "SGD": 0, "momentum": 4}[kind]
