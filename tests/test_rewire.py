"""Rewiring: which tuples are wasted, where they go, and what training finds with it."""

import copy
import functools
import gc
import itertools
import json
import math
import re
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import LargestStorage, seeded, seeds
from tests.layers.dense import Look, matrix_of, tuples_of
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import sparsewire as sw
from sparsewire import Draw, FreeTuples, HyperLayer, Rewire, SparseLayer, Wiring
from sparsewire.ops import flat_index, rounded
from sparsewire.ops.tuples import EDGES
from sparsewire.rewire import _is_in, _unflatten, contributions, find_keepers

NARROW = -20.0  # raw variance of a tuple that is sure of its place


class Setup(NamedTuple):
    layer: HyperLayer
    optimizer: torch.optim.Optimizer
    rewire: Rewire


def setup(layer: HyperLayer, every: int = 10**9, **options: Any) -> Setup:
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
    return Setup(layer, optimizer, Rewire(layer, optimizer, every, **options))


def space_of(layer: HyperLayer) -> tuple[int, ...]:
    return layer.layout.space(shapes_of(layer))


def shapes_of(layer: HyperLayer) -> sw.Shapes:
    return sw.Shapes(layer.out_shape, layer.in_shape)  # pyright: ignore[reportArgumentType]


def held_by(layer: HyperLayer) -> list[tuple[int, ...]]:
    places = layer.layout.settle(rounded(layer.wiring().means, space_of(layer)), shapes_of(layer))
    return [tuple(place) for place in places.tolist()]


@torch.no_grad()
def put(layer: HyperLayer, means: Any, values: Any = None, raw_variances: Any = NARROW) -> None:
    """Put the tuples of a layer with edge clamp at exact means."""
    source, last = tuples_of(layer), torch.tensor(space_of(layer)) - 1
    raw = torch.as_tensor(means, dtype=source.raw_means.dtype) / last.clamp(min=1)
    source.raw_means.copy_(raw)
    source.raw_variances.copy_(torch.as_tensor(raw_variances).expand_as(source.raw_variances))
    if values is not None:
        source.values.copy_(torch.as_tensor(values))


def offer(rewire: Rewire, places: Sequence[Sequence[int]], sizes: Sequence[float]) -> None:
    """Let these be the places that were kept, with the sizes of their gradients."""
    flat = flat_index(torch.tensor(places), space_of(rewire.layer))
    rewire.gradients.fill_(-1.0)
    rewire.places[: len(flat)] = flat
    rewire.gradients[: len(flat)] = torch.tensor(sizes)


def flat_layer(size: int, tuples: int, **options: Any) -> SparseLayer:
    options = {"edge": "clamp", "seed": 0, **options}
    return SparseLayer((size,), (size,), tuples=tuples, **options)


def train(one: Setup, steps: int, target: Tensor, batch: int = 64) -> None:
    layer, ins = one.layer, [size or 1 for size in one.layer.in_shape]
    for _ in range(steps):
        x = torch.randn(batch, *ins)
        one.optimizer.zero_grad()
        (layer(x).flatten(1) - x.flatten(1) @ target.T).square().mean().backward()
        one.optimizer.step()
        one.rewire.step()


# What a tuple contributes.


def mass_on_integers(variance: float) -> float:
    steps = np.arange(-2000, 2001)
    return float(np.exp(-(steps**2) / (2 * variance)).sum())


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    ("variances", "tolerance"),
    [
        ((0.01, 0.03, 0.05), 1e-3),  # narrow: nothing is left for the neighbours
        ((1.0, 7.0, 400.0), 1e-6),  # wide: the sum over integers is the integral
        ((0.01, 9.0, 0.02), 1e-3),
        ((0.1, 1 / (2 * math.pi), 0.3), 0.09),  # between the two, the worst is 8.6 % for an axis
    ],
)
def test_contributions_are_the_share_at_the_mean(rank, variances, tolerance):
    values = torch.tensor([2.0, -3.0], dtype=torch.float64)
    table = torch.tensor([variances[:rank], variances[::-1][:rank]], dtype=torch.float64)
    got = contributions(Wiring(torch.zeros_like(table), table, values))
    want = [
        abs(v) / math.prod(mass_on_integers(s) for s in row)
        for v, row in zip(values.tolist(), table.tolist(), strict=True)
    ]
    torch.testing.assert_close(
        got, torch.tensor(want, dtype=torch.float64), rtol=(1 + tolerance) ** rank - 1, atol=0
    )


# Who keeps a place.


def keepers(
    means: Any, strength: Sequence[float], space: Sequence[int], held: Any = None
) -> list[int]:
    table = torch.tensor(means, dtype=torch.float64).view(-1, len(space))
    places = rounded(table, space) if held is None else torch.tensor(held).view_as(table)
    return find_keepers(table, places, torch.tensor(strength), space).tolist()


def test_keepers_by_hand():
    assert keepers([3.0, 3.1, 7.0], [0.5, 1.0, 1.0], (9,)) == [1, 1, 2]
    assert keepers([3.0, 3.0, 3.0], [1.0, 1.0, 1.0], (9,)) == [0, 0, 0]  # ties: the first
    assert keepers([3.0, 3.6], [1.0, 0.5], (9,)) == [0, 0]  # 0.6 apart
    assert keepers([3.0, 3.6], [0.5, 1.0], (9,)) == [1, 1]
    assert keepers([3.0, 3.75], [1.0, 0.5], (9,)) == [0, 1]
    assert keepers([2.6, 3.4], [1.0, 0.5], (9,)) == [0, 0]  # of one place at any distance
    assert keepers([5.0], [0.0], (9,)) == [0]


def test_keepers_of_a_row_of_tuples_by_hand():
    """The weakest of three would go to one that goes itself: it stays, for this time."""
    assert keepers([3.0, 3.6, 4.1], [3.0, 2.0, 1.0], (9,)) == [0, 0, 2]
    assert keepers([3.0, 3.6, 4.1], [1.0, 2.0, 3.0], (9,)) == [0, 2, 2]
    assert keepers([3.0, 3.6, 4.1], [1.0, 3.0, 2.0], (9,)) == [1, 1, 1]


def test_keepers_across_a_corner_by_hand():
    means = [[3.4, 3.4], [3.6, 3.6], [3.6, 2.9]]
    assert keepers(means, [1.0, 3.0, 2.0], (9, 9)) == [1, 1, 2]
    assert keepers(means, [1.0, 2.0, 3.0], (9, 9)) == [1, 1, 2]  # the nearer one, not the stronger


def test_the_first_and_the_last_place_of_an_axis_are_no_neighbours():
    assert keepers([0.0, 3.0, 6.0], [1.0, 2.0, 3.0], (7,)) == [0, 1, 2]
    # As numbers, (0, 2) and (1, 0) follow each other.
    assert keepers([[0.0, 2.0], [0.4, 0.0]], [1.0, 2.0], (2, 3), [[0, 2], [1, 0]]) == [0, 1]


def keepers_one_by_one(
    means: list[list[float]], held: list[list[int]], strength: list[float]
) -> list[int]:
    """The definition, pair by pair."""
    everyone = range(len(means))
    order = sorted(everyone, key=lambda i: (-strength[i], i))
    turn = {i: n for n, i in enumerate(order)}
    owner = {tuple(held[i]): i for i in reversed(order)}
    first = []
    for i in everyone:
        options: list[tuple[float, tuple[int, ...], int]] = [(math.inf, (), i)]
        for place, j in owner.items():
            offset = [there - here for there, here in zip(place, held[i], strict=True)]
            if turn[j] >= turn[i] or max(map(abs, offset)) > 1:
                continue
            distance = math.dist(means[i], means[j]) if any(offset) else 0.0
            if distance < 0.7:  # at equal distance: the lower place first
                options.append((distance, tuple((0, -1, 1).index(step) for step in offset), j))
        first.append(min(options)[2])
    return [keeper if first[keeper] == keeper else i for i, keeper in enumerate(first)]


@st.composite
def tables(draw: st.DrawFn) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Crowded means in eighths, whose distances are exact; few strengths, so that ties occur."""
    space = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    count = draw(st.integers(1, 12))
    rows = st.tuples(*(st.integers(0, 8 * (n - 1)) for n in space))
    means = torch.tensor(draw(st.lists(rows, min_size=count, max_size=count))) / 8
    strength = draw(st.lists(st.sampled_from([0.0, 1.0, 2.0, 2.5]), min_size=count, max_size=count))
    return means, torch.tensor(strength), space


@settings(max_examples=150)
@given(table=tables())
def test_keepers_are_those_of_the_definition(table):
    means, strength, space = table
    held = rounded(means, space)
    got = find_keepers(means, held, strength, space).tolist()
    assert got == keepers_one_by_one(means.tolist(), held.tolist(), strength.tolist())
    assert all(got[keeper] == keeper for keeper in got)


@given(
    places=st.lists(st.integers(0, 9), min_size=1), holds=st.lists(st.integers(0, 9), min_size=1)
)
def test_held_places_are_found(places, holds):
    left, right = torch.tensor(places), torch.tensor(holds)
    assert torch.equal(_is_in(left, right), torch.isin(left, right))


@pytest.mark.parametrize("space", [(5,), (1, 7), (3, 4), (2, 1, 3), (2, 3, 2, 2)])
def test_places_get_their_indices_back(space):
    every = list(itertools.product(*map(range, space)))
    assert list(map(tuple, _unflatten(torch.arange(len(every)), space).tolist())) == every


def test_the_largest_places_get_their_indices_back():
    space = (2**31, 2**31)
    corner = torch.tensor([[2**31 - 1, 2**31 - 1], [2**31 - 1, 0]])
    assert torch.equal(_unflatten(flat_index(corner, space), space), corner)


# What is kept of each pass.


class Pass(NamedTuple):
    indices: Tensor
    gradient: Tensor


def watched(one: Setup) -> list[Pass]:
    """Collect the draws of every pass, with the gradients of their values."""
    passes: list[Pass] = []

    def watch(draw: Draw) -> None:
        indices = draw.indices
        draw.values.register_hook(lambda g: passes.append(Pass(indices, g.clone())))
        one.rewire._watch(draw)

    one.layer.watch = watch
    return passes


Samples = list[tuple[float, int]]


def samples(layer: HyperLayer, passes: Sequence[Pass]) -> list[Samples]:
    """The local and global samples of each pass: the size of its gradient, and its place."""
    space = space_of(layer)
    found: list[Samples] = []
    for indices, gradient in passes:
        each = 2 ** len(space) + layer.local_samples + layer.global_samples
        flat = flat_index(indices, space).flatten().tolist()
        pairs = enumerate(zip(flat, gradient.flatten().tolist(), strict=True))
        found.append([(abs(g), place) for n, (place, g) in pairs if n % each >= 2 ** len(space)])
    return found


def kept_by(rewire: Rewire) -> Samples:
    filled = rewire.gradients >= 0
    return list(zip(rewire.gradients[filled].tolist(), rewire.places[filled].tolist(), strict=True))


def assert_best_kept(rewire: Rewire, found: list[Samples]) -> None:
    """Of what was kept and each pass the best as many as fit, and of those each place once."""
    model: Samples = []
    for new in found:
        best = sorted([*model, *new], reverse=True)[: len(rewire.gradients)]
        model = [(g, place) for n, (g, place) in enumerate(best) if place not in _places(best[:n])]
    assert sorted(kept_by(rewire), reverse=True) == model


def _places(samples: Samples) -> set[int]:
    return {place for _, place in samples}


LAYERS: dict[str, Callable[[], HyperLayer]] = {
    "plain": lambda: SparseLayer((9,), (8,), tuples=6, seed=0),
    "wirings": lambda: SparseLayer((9,), (8,), tuples=6, wirings=4, seed=0),
    "contexts": lambda: SparseLayer((9,), (8,), tuples=6, context=2, wirings=3, seed=0),
    "high rank": lambda: SparseLayer((3, 4), (2, 2), tuples=5, local_samples=1, seed=0),
    "one axis": lambda: SparseLayer((), (9,), tuples=4, seed=0),
    "local only": lambda: SparseLayer((9,), (8,), tuples=6, global_samples=0, seed=0),
    "global only": lambda: SparseLayer((9,), (8,), tuples=6, local_samples=0, seed=0),
    "features": lambda: SparseLayer((9,), (8,), tuples=6, features=1, seed=0),
}


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("count", [1, 5])
def test_the_best_samples_of_all_passes_are_kept(kind, count):
    one = setup(LAYERS[kind]())
    layer = one.layer
    passes = watched(one)
    for _ in range(count):
        x = torch.randn(10, *(size or 1 for size in layer.in_shape), *[3] * layer.features)
        layer(x).square().mean().backward()
    assert len(passes) == count
    assert_best_kept(one.rewire, samples(layer, passes))


def test_few_samples_leave_room():
    one = setup(SparseLayer((9,), (8,), tuples=6, local_samples=1, global_samples=1, seed=0))
    passes = watched(one)
    one.layer(torch.randn(10, 9)).square().mean().backward()
    (found,) = samples(one.layer, passes)
    assert len(found) == 12
    assert {place for _, place in kept_by(one.rewire)} == {place for _, place in found}
    assert_best_kept(one.rewire, [found])


def test_kept_gradients_are_those_of_a_dense_matrix():
    one = setup(SparseLayer((7,), (6,), tuples=5, seed=0))
    x, target = torch.randn(12, 7), torch.randn(12, 6)
    y = one.layer(x)
    (y - target).square().mean().backward()
    dense = (2 * (y - target) / y.numel()).detach().T @ x
    kept = one.rewire.gradients >= 0
    assert kept.sum() > 5
    at = one.rewire.places[kept]
    torch.testing.assert_close(one.rewire.gradients[kept], dense.flatten()[at].abs())


def test_several_backward_passes_of_a_step_are_all_kept():
    one = setup(SparseLayer((9,), (8,), tuples=6, seed=0))
    passes = watched(one)
    losses = [one.layer(torch.randn(5, 9)).square().mean() for _ in range(3)]
    torch.stack(losses).sum().backward()
    assert len(passes) == 3
    assert_best_kept(one.rewire, samples(one.layer, passes))


SOURCES: dict[str, tuple[Callable[..., FreeTuples], tuple[int, ...], tuple[int, ...]]] = {
    "lower": (sw.LowerTriangular, (5,), (6,)),
    "banded": (functools.partial(sw.Banded, 1, 2), (7,), (6,)),
    "convolution": (functools.partial(sw.Convolution, (3,)), (2, 4), (3, 4)),
    "rank 1": (functools.partial(FreeTuples, rank=1), (), (9,)),
    "rank 2": (functools.partial(FreeTuples, rank=2), (5,), (6,)),
    "rank 3": (functools.partial(FreeTuples, rank=3), (3, 2), (4,)),
    "rank 4": (functools.partial(FreeTuples, rank=4), (3, 1), (2, 4)),
}


def make(kind: str, tuples: int, **options: Any) -> HyperLayer:
    source, in_shape, out_shape = SOURCES[kind]
    edge, values = options.pop("edge", "sigmoid"), options.pop("values", None)
    return HyperLayer(
        source(tuples=tuples, seed=0, edge=edge, values=values), in_shape, out_shape, **options
    )


def allowed_places(layer: HyperLayer) -> list[tuple[int, ...]]:
    every = list(itertools.product(*map(range, space_of(layer))))
    allowed = layer.layout.allowed(torch.tensor(every), shapes_of(layer))
    return every if allowed is None else list(itertools.compress(every, allowed.tolist()))


@pytest.mark.parametrize("kind", ["lower", "banded", "convolution"])
def test_places_that_are_not_allowed_are_never_kept(kind):
    one = setup(make(kind, tuples=12))
    passes = watched(one)
    for _ in range(4):
        x = torch.randn(10, *(size or 1 for size in one.layer.in_shape))
        everything = 10 * x.flatten(1).sum(1).view(-1, *[1] * len(one.layer.out_shape))
        (one.layer(x) - everything).square().mean().backward()  # asks for every place alike
    places = one.rewire.places[one.rewire.gradients >= 0]
    allowed = flat_index(torch.tensor(allowed_places(one.layer)), space_of(one.layer)).tolist()
    assert set(places.tolist()) <= set(allowed)
    found = samples(one.layer, passes)
    assert_best_kept(one.rewire, [[s for s in each if s[1] in allowed] for each in found])


def test_gradients_that_are_not_finite_are_not_kept():
    one = setup(SparseLayer((9,), (8,), tuples=6, seed=0))
    x = torch.randn(10, 9)
    x[:, 3] = math.nan
    x[:, 4] = math.inf
    one.layer(x).sum().backward()
    columns = {place % 9 for _, place in kept_by(one.rewire)}
    assert columns
    assert not columns & {3, 4}


@pytest.mark.parametrize("mode", ["rounded", "expected"])
def test_passes_that_sample_nothing_are_not_watched(mode):
    one = setup(SparseLayer((9,), (8,), tuples=6, seed=0))
    one.layer(torch.randn(4, 9), mode=mode).sum().backward()
    assert (one.rewire.gradients == -1).all()
    with torch.no_grad():
        one.layer(torch.randn(4, 9))
    assert (one.rewire.gradients == -1).all()


def test_a_pass_leaves_nothing_behind():
    one = setup(SparseLayer((9,), (8,), tuples=6, seed=0))
    alive: list[Any] = []

    def watch(draw: Draw) -> None:
        alive.append(weakref.ref(draw.values))
        one.rewire._watch(draw)

    one.layer.watch = watch
    for _ in range(3):
        one.layer(torch.randn(4, 9)).sum().backward()
    gc.collect()
    assert [ref() for ref in alive] == [None] * 3


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


def all_wasted(kind: str, dtype: torch.dtype, **options: Any) -> tuple[Setup, list[Any]]:
    """A layer with all tuples at one place, and all other allowed places to go to."""
    places = allowed_places(make(kind, tuples=1))
    one = setup(make(kind, tuples=len(places), values=1.0, **options).to(dtype))
    with torch.no_grad():
        source = tuples_of(one.layer)
        source.raw_means.copy_(source.raw_means[:1].expand_as(source.raw_means))
        source.raw_variances.fill_(0.0)
    home = held_by(one.layer)[0]
    goals = [place for place in places if place != home]
    order = torch.randperm(len(goals), generator=seeded(1)).tolist()
    goals = [goals[i] for i in order]
    offer(one.rewire, goals, [float(len(goals) - i) for i in range(len(goals))])
    return one, [home, *goals]


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


# The life of a Rewire.


def test_rewirings_come_every_so_many_steps():
    one = setup(flat_layer(9, 2), every=3)
    moves = []
    for step in range(1, 8):
        put(one.layer, [[4, 4], [4, 4]], [1.0, 0.5])
        offer(one.rewire, [[8, step]], [1.0])
        one.rewire.step()
        moves.append(int(one.rewire.moves))
    assert moves == [0, 0, 1, 1, 1, 2, 2]
    assert one.rewire.steps == 7
    assert repr(one.rewire) == "Rewire(every=3, negligible=0.05, steps=7)"


def test_saved_and_loaded_it_continues_exactly():
    target = torch.eye(8)[torch.randperm(8)]

    def begin() -> Setup:
        return setup(SparseLayer((8,), (8,), tuples=8, seed=0), every=10)

    whole = begin()
    train(whole, 15, target)
    parts = whole._asdict()
    state = {name: copy.deepcopy(part.state_dict()) for name, part in parts.items()}
    saved = torch.get_rng_state()
    other = begin()
    for name, part in other._asdict().items():
        part.load_state_dict(state[name])
    ends = []
    for one in (other, whole):
        torch.set_rng_state(saved)
        train(one, 25, target)
        assert one.rewire.moves > 0
        ends.append([*one.layer.parameters(), one.rewire.places, one.rewire.gradients])
    assert other.rewire.steps == whole.rewire.steps == 40
    for mine, true in zip(*ends, strict=True):
        assert torch.equal(mine, true)


def test_a_saved_state_is_a_copy():
    one = setup(flat_layer(9, 2))
    state = one.rewire.state_dict()
    one.layer(torch.randn(4, 9)).square().sum().backward()
    one.rewire.rewire()
    assert (state["gradients"] == -1).all()
    assert state["ages"].tolist() == [0, 0]


def test_the_state_of_another_number_of_tuples_is_refused():
    state = setup(flat_layer(9, 2)).rewire.state_dict()
    one = setup(flat_layer(9, 3))
    with pytest.raises(ValueError, match="state must be of a layer with 3 tuples; got 2"):
        one.rewire.load_state_dict(state)
    assert one.rewire.steps == 0


def test_removed_it_watches_no_more():
    layer = flat_layer(9, 4)
    first = setup(layer)
    first.rewire.remove()
    assert layer.watch is None
    layer(torch.randn(4, 9)).sum().backward()
    assert (first.rewire.gradients == -1).all()
    second = setup(layer)
    first.rewire.remove()
    layer(torch.randn(4, 9)).sum().backward()
    assert (second.rewire.gradients >= 0).any()


def test_nothing_dense_is_made():
    """The matrix would take 64 MiB; a share of each of 64 tuples for each sample takes 224 KiB."""
    size, tuples = 4096, 64
    one = setup(SparseLayer((size,), (size,), tuples=tuples, seed=0))
    x = torch.randn(2, size)
    with LargestStorage() as largest:
        one.layer(x).square().mean().backward()
    each = 4 + one.layer.local_samples + one.layer.global_samples
    assert largest.bytes <= 2 * 8 * tuples * tuples * each
    with LargestStorage() as largest:
        one.rewire.rewire()
    assert largest.bytes <= 16 * 8 * tuples
    kept = sum(v.numel() for v in one.rewire.state_dict().values() if torch.is_tensor(v))
    assert kept <= 10 * tuples


class HostNumbers(TorchFunctionMode):
    """While it is on, counts the tensors that are made from numbers of the host."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in (torch.tensor, torch.as_tensor, Tensor.new_tensor)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", SOURCES)
def test_rewiring_copies_nothing_from_the_host(kind):
    """Each such copy makes the host wait for a GPU. The first rewiring may, for constants."""
    one, _ = all_wasted(kind, torch.float32)
    one.rewire.rewire()
    with HostNumbers() as numbers:
        one.rewire.rewire()
    assert numbers.count == 0


# What is refused.


BAD_LAYERS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (
        lambda: HyperLayer(Look((4,), 2, 2), (4,), (4,)),
        TypeError,
        "layer must be a layer with free tuples, like SparseLayer; got Look",
    ),
    (
        lambda: nn.Linear(4, 4),
        TypeError,
        "layer must be a layer with free tuples, like SparseLayer; got Linear",
    ),
    (
        lambda: SparseLayer((4,), (4,), template=sw.fan_in((4,), (4,))),
        ValueError,
        "layer must let its tuples go anywhere (no template, no block diagonal); got Template",
    ),
    (
        lambda: HyperLayer(sw.BlockDiagonal(2, 3), (4,), (4,)),
        ValueError,
        "layer must let its tuples go anywhere (no template, no block diagonal); "
        "got BlockDiagonalLayout",
    ),
    (
        lambda: SparseLayer((None, 4), (4,), tuples=3),
        ValueError,
        "layer must have fixed sizes; got in_shape (None, 4)",
    ),
    (
        lambda: SparseLayer((4,), (4,), tuples=3, local_samples=0, global_samples=0),
        ValueError,
        "layer must draw local or global samples, to find places; got none",
    ),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("layer", "kind", "message"), BAD_LAYERS, ids=[b[2] for b in BAD_LAYERS])
def test_layers_that_cannot_be_rewired_are_refused(layer, kind, message):
    bad = layer()
    with pytest.raises(kind, match=re.escape(message)):
        setup(bad)


def test_a_second_one_for_the_same_layer_is_refused():
    one = setup(flat_layer(9, 2))
    with pytest.raises(ValueError, match="layer must not be rewired yet; remove"):
        setup(one.layer)
    assert one.layer.watch == one.rewire._watch


def test_an_optimizer_of_other_parameters_is_refused():
    layer = flat_layer(9, 2)
    source = tuples_of(layer)
    for parameters in ([nn.Parameter(torch.ones(2))], [source.raw_means, source.values]):
        with pytest.raises(ValueError, match="optimizer must hold the parameters of the layer"):
            Rewire(layer, torch.optim.SGD(parameters, lr=0.1))
    assert layer.watch is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every must be at least 1; got 0"),
        ({"negligible": -0.1}, "negligible must be between 0 and 1; got -0.1"),
        ({"negligible": 1.5}, "negligible must be between 0 and 1; got 1.5"),
        ({"patience": -1}, "patience must be at least 0; got -1"),
    ],
)
def test_bad_options_are_refused(options, message):
    layer = flat_layer(9, 2)
    with pytest.raises(ValueError, match=re.escape(message)):
        setup(layer, **options)
    assert layer.watch is None


COMPILED = """
import torch
import sparsewire as sw

layer = sw.SparseLayer((8,), (8,), tuples=4)
rewire = sw.Rewire(layer, torch.optim.Adam(layer.parameters()))
torch.compile(layer, backend="eager", fullgraph=True)(torch.randn(2, 8))
"""


def test_a_compiled_layer_without_graph_breaks_is_refused():
    """In a process of its own: the checks of annotations cannot be compiled."""
    script = [sys.executable, "-c", COMPILED]
    result = subprocess.run(script, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "Rewire watches gradients inside of the layer, which cannot be compiled" in result.stderr


# What training finds.


def found(layer: HyperLayer, target: Tensor) -> float:
    places = torch.nonzero(target.view(*layer.out_shape, *(n or 1 for n in layer.in_shape)))
    wanted = set(map(tuple, places.tolist()))
    return len(wanted & set(held_by(layer))) / len(wanted)


@pytest.mark.usefixtures("unchecked")
def test_a_permutation_is_found_with_free_values():
    target = torch.eye(32)[torch.randperm(32, generator=seeded(3))]
    shares = []
    for every in (50, 10**9):
        torch.manual_seed(0)
        one = setup(SparseLayer((32,), (32,), tuples=32, seed=0), every)
        train(one, 800, target)
        shares.append(found(one.layer, target))
        if every == 50:
            torch.testing.assert_close(
                matrix_of(one.layer, mode="rounded"), target, rtol=0, atol=0.2
            )
    assert shares[0] == 1.0
    assert shares[1] < 0.8


@pytest.mark.usefixtures("unchecked")
def test_a_planted_tensor_of_rank_three_is_found():
    target = torch.zeros(8, 16)
    columns = torch.randperm(16, generator=seeded(0))[:8]
    target[torch.arange(8), columns] = torch.tensor([1.5, -1.5]).repeat(4)
    shares = []
    for every in (50, 10**9):
        torch.manual_seed(0)
        one = setup(SparseLayer((4, 4), (8,), tuples=10, seed=0), every)
        train(one, 800, target)
        shares.append(found(one.layer, target))
    assert shares[0] == 1.0
    assert shares[1] < 1.0


def captured_training(device: str, size: int, steps: int) -> tuple[Setup, sw.CapturedStep]:
    """Learn the identity, with the step captured and the rewiring after it."""
    layer = SparseLayer((size,), (size,), tuples=size, values=1.0, seed=0).to(device)
    source = tuples_of(layer)
    groups = [
        {"params": [source.raw_means], "lr": 0.02 * min(1.0, 32 / size)},
        {"params": [source.raw_variances, source.values]},
    ]
    optimizer = torch.optim.Adam(groups, lr=0.02, fused=True)
    rewire = Rewire(layer, optimizer, every=50)

    def step() -> Tensor:
        x = torch.randn(64, size, device=device)
        optimizer.zero_grad()
        loss = (layer(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    captured = sw.capture(step, optimizer=optimizer)
    for _ in range(steps):
        captured()
        rewire.step()
    return Setup(layer, optimizer, rewire), captured


@pytest.mark.usefixtures("unchecked")
def test_after_a_captured_step_on_the_cpu():
    one, step = captured_training("cpu", 16, 500)
    assert not step.captured
    assert found(one.layer, torch.eye(16)) == 1.0


# In several processes.

PROCESS = """
import json, sys
import torch
from torch import distributed
import sparsewire as sw

rank, store, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.set_num_threads(1)
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
layer = sw.SparseLayer((8,), (8,), tuples=4, edge="clamp", seed=0)
optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
rewire = sw.Rewire(layer, optimizer, every=10)
with torch.no_grad():
    layer.source.raw_means.fill_(3 / 7)
    layer.source.values.copy_(torch.tensor([4.0, 1.0, 1.0, 1.0]))
mine = [[9, 4.0], [50, 2.0]] if rank == 0 else [[60, 3.0], [9, 1.0]]
rewire.places[:2] = torch.tensor([int(place) for place, _ in mine])
rewire.gradients[:2] = torch.tensor([size for _, size in mine])
rewire.rewire()
held = (layer.wiring().means.round().long() @ torch.tensor([8, 1])).tolist()
layer.source.reset_parameters(torch.Generator().manual_seed(1))
torch.manual_seed(rank)
draws = []
for _ in range(40):
    optimizer.zero_grad()
    x = torch.randn(16, 8)
    draws.append(x[0, 0].item())
    (layer(x) - x).square().mean().backward()
    for parameter in layer.parameters():
        distributed.all_reduce(parameter.grad)
    optimizer.step()
    rewire.step()
state = [p.detach().flatten().tolist() for p in layer.parameters()]
result = {"held": held, "draws": draws, "state": state, "moves": int(rewire.moves)}
with open(out, "w") as file:
    json.dump(result, file)
distributed.destroy_process_group()
"""


def test_processes_pool_their_places_and_make_the_same_moves(tmp_path):
    outs = [tmp_path / f"{rank}.json" for rank in range(2)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(rank), str(tmp_path / "store"), str(out)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, out in enumerate(outs)
    ]
    try:
        for process in processes:
            errors = process.communicate(timeout=120)[1]
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
    first, second = (json.loads(out.read_text()) for out in outs)
    assert first["held"] == [3 * 8 + 3, 9, 60, 50]
    assert first["draws"] != second["draws"]
    assert first["moves"] > 3
    for name in ("held", "state", "moves"):
        assert first[name] == second[name]


# On a GPU.

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture
def any_order() -> Iterator[None]:
    """Sums on a GPU are added in any order; deterministic mode would refuse some of them."""
    torch.use_deterministic_algorithms(False)
    yield
    torch.use_deterministic_algorithms(True)


@needs_cuda
@pytest.mark.usefixtures("any_order", "unchecked")
def test_cuda_captured_training_finds_the_identity():
    one, step = captured_training("cuda", 64, 2000)
    assert step.captured
    assert one.rewire.moves > 0
    assert found(one.layer, torch.eye(64)) == 1.0


@needs_cuda
@pytest.mark.usefixtures("any_order")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("kind", ["rank 2", "rank 3", "lower", "banded", "convolution"])
def test_cuda_rewiring_never_waits(kind):
    one = setup(make(kind, tuples=12).cuda(), every=1)

    def step() -> None:
        x = torch.randn(16, *(size or 1 for size in one.layer.in_shape), device="cuda")
        one.optimizer.zero_grad()
        one.layer(x).square().mean().backward()
        one.optimizer.step()

    step()
    one.rewire.step()  # copies constants to the device
    step()
    try:
        torch.cuda.set_sync_debug_mode("error")
        one.rewire.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert one.rewire.moves > 0


@needs_cuda
@pytest.mark.usefixtures("any_order")
@pytest.mark.parametrize("kind", SOURCES)
def test_cuda_moves_are_those_of_the_cpu(kind):
    places = []
    for device in ("cpu", "cuda"):
        one, goals = all_wasted(kind, torch.float32)
        layer = one.layer.to(device)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
        one.rewire.remove()
        moved = Rewire(layer, optimizer)
        moved.load_state_dict(one.rewire.state_dict())
        moved.rewire()
        places.append(held_by(layer.cpu()))
        assert places[-1] == goals
    assert places[0] == places[1]
