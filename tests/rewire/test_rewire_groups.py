"""Rewiring: templates and block diagonals, whose tuples stay in their group."""

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import sampled_layer, seeded
from tests.nn.dense import tuples_of
from tests.rewire.test_rewire import HostNumbers
from tests.rewire.wires import NARROW, Setup, keepers_one_by_one, put, setup
from torch import Tensor

import sparsewire as sw
from sparsewire import HyperLayer, SparseLayer

Place = tuple[int, ...]


def groups_of(layer: HyperLayer) -> list[int]:
    groups = layer.layout.groups(len(tuples_of(layer).raw_means))
    assert groups is not None
    return groups.tolist()


def fan_layer(counts: list[int], size: int, mixed: bool = False, **options: Any) -> SparseLayer:
    """A layer whose outputs have these numbers of wires, one after another or mixed."""
    outs = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    if mixed:
        outs = outs[torch.randperm(len(outs), generator=seeded(0))]
    table = torch.stack([outs, torch.full_like(outs, -1)], 1)
    options = {"edge": "clamp", "seed": 0, "template": table, **options}
    return sampled_layer((size,), (len(counts),), **options)


def block_layer(blocks: int, tuples: int, size: int) -> HyperLayer:
    source = sw.BlockDiagonal(blocks, tuples, edge="clamp", schedule=None, seed=0)
    return HyperLayer(source, (blocks * size,), (blocks * size,))


def offer_by_group(one: Setup, offers: dict[int, list[tuple[Place, float]]]) -> None:
    """Let these be the places that were saved for each group."""
    part, layer = one.rewire.layers[0], one.layer
    owners = sorted(groups_of(layer))
    part.gradients.fill_(-1.0)
    for group, places in offers.items():
        first = 4 * owners.index(group)
        for slot, (place, size) in enumerate(places):
            flat = 0
            for index, n in zip(place, layer.space(), strict=True):
                flat = flat * n + index
            part.places[first + slot], part.gradients[first + slot] = flat, size


def held(layer: HyperLayer) -> list[Place]:
    return [tuple(place) for place in layer.nearest_places(layer.wiring().means).tolist()]


@st.composite
def layers(draw: st.DrawFn) -> Callable[[], HyperLayer]:
    if draw(st.booleans()):
        size, blocks = draw(st.integers(2, 3)), draw(st.integers(1, 3))
        return partial(block_layer, blocks, draw(st.integers(1, 3)), size)
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    context = draw(st.sampled_from([None, 1]))  # None: the largest
    size = draw(st.integers(4, 6))
    return partial(fan_layer, counts, size, draw(st.booleans()), context=context)


@settings(max_examples=100)
@given(data=st.data(), make=layers(), patience=st.integers(0, 1))
def test_groups_move_as_layers_of_their_own(data, make, patience):
    """A plain loop over groups, with the definition of wasted tuples and the best free places."""
    layer = make()
    groups, space = groups_of(layer), layer.space()
    count = len(groups)
    each: Any = {"min_size": count, "max_size": count}
    rows = st.tuples(*(st.integers(0, 8 * (n - 1)) for n in space))
    means = torch.tensor(data.draw(st.lists(rows, **each))) / 8
    values = data.draw(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), **each))
    every = list(itertools.product(*map(range, space)))
    one = setup(layer, patience=patience)
    put(layer, means, values)
    offers = {}
    for group in set(groups):
        most = min(4 * groups.count(group), 6)
        places = data.draw(st.lists(st.sampled_from(every), max_size=most))
        sizes = data.draw(st.permutations(range(len(places))))
        offers[group] = [(p, float(s)) for p, s in zip(places, sizes, strict=True)]
    offer_by_group(one, offers)

    before, strength = held(layer), [abs(value) for value in values]
    exact = layer.wiring().means.double().mul(8).round().div(8).tolist()
    typical = math.sqrt(sum(s**2 for s in strength) / count)
    want, new_values = list(before), list(values)
    moved = []
    for group in set(groups):
        mine = [i for i in range(count) if groups[i] == group]
        keeper = keepers_one_by_one(
            [exact[i] for i in mine], [list(before[i]) for i in mine], [strength[i] for i in mine]
        )
        taken = {before[i] for i in mine}
        best = sorted(offers[group], key=lambda pair: -pair[1])
        free = iter(dict.fromkeys(p for p, size in best if size > 0 and p not in taken))
        for n, i in enumerate(mine):
            weak = strength[i] < 0.05 * typical and patience == 0
            if (keeper[n] != n or weak) and (place := next(free, None)):
                want[i] = place
                moved.append(i)
                if keeper[n] != n:
                    new_values[mine[keeper[n]]] += values[i]
                    new_values[i] = 0.0
    for i in moved:
        new_values[i] = 0.0

    one.rewire.rewire()
    assert held(layer) == want
    assert one.rewire.moves == len(moved)
    torch.testing.assert_close(tuples_of(layer).values, torch.tensor(new_values))


@pytest.mark.parametrize("counts", [[2, 2, 2], [1, 3, 2]])
@pytest.mark.parametrize(
    "options", [{}, {"context": 1}, {"context": 1, "wirings": 3}, {"mixed": True}]
)
def test_saved_places_are_those_of_their_group(counts, options):
    """Their gradients are those of a dense matrix, at the output of the group."""
    layer = fan_layer(counts, 9, **options)
    one = setup(layer)
    x, target = torch.randn(12, 9), torch.randn(12, len(counts)) * torch.tensor([1.0, 1e3, 1.0])
    y = layer(x)
    (y - target).square().mean().backward()
    dense = (2 * (y - target) / y.numel()).detach().T @ x
    if "wirings" in options:
        return_shares = dense.new_zeros(3, *dense.shape)
        for part, rows in enumerate(torch.arange(12).chunk(3)):
            error = 2 * (y[rows] - target[rows]) / y.numel()
            return_shares[part] = error.detach().T @ x[rows]
        dense = return_shares
    part = one.rewire.layers[0]
    kept = part.gradients >= 0
    groups = torch.tensor(sorted(groups_of(layer))).repeat_interleave(4)
    assert set(groups[kept].tolist()) == {0, 1, 2}  # a large gradient starves no other group
    wanted = dense.abs()[..., groups[kept], part.places[kept]]
    got = part.gradients[kept]
    assert torch.isclose(wanted, got.expand_as(wanted), rtol=1e-4).view(-1, len(got)).any(0).all()


def test_a_wire_on_an_input_that_is_always_zero_is_wasted():
    layer = sampled_layer((16,), (2,), template=sw.fan_in((2,), (16,), 2), edge="clamp", seed=0)
    one = setup(layer, every=2, patience=0)
    put(layer, [[0.0], [9.0], [12.0], [0.0]], [1.0, 1.0, 1.0, 1.0], NARROW)
    for _ in range(2):
        x = torch.randn(32, 16)
        x[:, :5] = 0
        (layer(x) - 3 * x[:, [7, 8]]).square().mean().backward()
        one.rewire.step()
    assert one.rewire.moves == 2
    places = [place for (place,) in held(layer)]
    assert places[1:3] == [9, 12]
    assert min(places) >= 5
    assert one.rewire.layers[0].signals.tolist() == [0.0] * 4


@pytest.mark.parametrize("fixed", [True, False])
def test_wires_of_an_output_without_error_stay(fixed):
    """All its gradients are exactly 0, as on an input that is 0."""
    template = {"template": sw.fan_in((4,), (6,))} if fixed else {"tuples": 4}
    options: Any = {"edge": "clamp", "values": 1.0, "learn_values": False, **template}
    layer = sampled_layer((6,), (4,), train_mode="straight-through", **options)
    one = setup(layer, every=1, patience=0)
    put(layer, [[5.0], [4.0], [1.0], [0.0]] if fixed else [[0, 5], [1, 4], [2, 1], [3, 0]])
    for _ in range(3):
        x = torch.randn(32, 6)
        (layer(x) - x[:, [5, 4, 1, 2]]).square().mean().backward()
        one.rewire.step()
    assert one.rewire.moves == 0


def selected(layer: SparseLayer, target: Tensor) -> float:
    frozen = layer.freeze()
    found = torch.zeros_like(target).index_put_((frozen.rows, frozen.cols), torch.ones(()))
    return float((found * target).count_nonzero() / target.count_nonzero())


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("seed", range(2))
def test_a_fan_in_target_is_found_with_rewiring_alone(seed):
    """Inputs in no order: wires learn nothing from their neighbours."""
    shares = []
    target = torch.zeros(8, 64)
    for row in target:
        columns = torch.randperm(64, generator=seeded(seed))[:3]
        row[columns] = torch.tensor([1.0, -1.0, 1.0])
        seed += 100
    for every in (40, 10**9):
        torch.manual_seed(seed)
        layer = sw.SparseLinear(64, 8, fan_in=3, seed=seed)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
        rewire = sw.Rewire(layer, optimizer, every)
        for _ in range(800):
            x = torch.randn(64, 64)
            optimizer.zero_grad()
            (layer(x) - x @ target.T).square().mean().backward()
            optimizer.step()
            rewire.step()
        shares.append(selected(layer, target))
    assert shares[0] == 1.0
    assert shares[1] < 0.7


@pytest.mark.parametrize("kind", ["fan-in", "uneven", "blocks"])
def test_rewiring_groups_copies_nothing_from_the_host(kind):
    layer = {
        "fan-in": lambda: fan_layer([2, 2], 6),
        "uneven": lambda: fan_layer([1, 3], 6, context=1),
        "blocks": lambda: block_layer(2, 3, 3),
    }[kind]()
    one = setup(layer, every=1)

    def step() -> None:
        layer(torch.randn(8, *layer.in_shape)).square().mean().backward()
        one.rewire.step()

    step()
    with HostNumbers() as numbers:
        step()
    assert numbers.count == 0


@pytest.mark.parametrize("counts", [[1, 1], [2, 4]])
def test_places_of_all_groups_must_have_numbers(counts):
    outs = torch.arange(2).repeat_interleave(torch.tensor(counts))
    table = torch.stack([outs, *[torch.full_like(outs, -1)] * 2], 1)
    layer = SparseLayer((2**31, 2**31), (2,), template=table, schedule=None)
    with pytest.raises(ValueError, match=r"layer must have fewer than 2\*\*63 places"):
        setup(layer.double())


def test_fixed_inputs_and_learned_outputs_make_groups_too():
    table = torch.tensor([[-1, 0], [-1, 0], [-1, 2], [-1, 2]])
    layer = sampled_layer((3,), (9,), template=table, edge="clamp", seed=0)
    one = setup(layer)
    put(layer, [[4.0], [4.0], [4.0], [6.0]], [1.0, 0.5, 1.0, 1.0])
    offer_by_group(one, {0: [((6,), 2.0)], 1: [((1,), 9.0)]})
    one.rewire.rewire()
    assert held(layer) == [(4,), (6,), (4,), (6,)]


# Distinct inputs.


def test_distinct_inputs_are_not_shared_by_outputs():
    layer = fan_layer([1, 1, 1], 9)
    one = setup(layer, distinct=True)
    put(layer, [[3.0], [3.0], [7.0]], [1.0, 0.5, 1.0])
    offer_by_group(one, {0: [((5,), 9.0)], 1: [((7,), 3.0), ((1,), 1.0)]})
    one.rewire.rewire()
    assert held(layer) == [(3,), (1,), (7,)]
    # Another output computed with the value of the wire that moved.
    assert tuples_of(layer).values.tolist() == [1.0, 0.0, 1.0]


def test_a_distinct_place_goes_to_the_output_with_the_largest_gradient():
    layer = fan_layer([1, 1, 1], 9)
    one = setup(layer, distinct=True)
    put(layer, [[3.0], [3.0], [3.0]], [1.0, 0.5, 0.4])
    offer_by_group(one, {1: [((5,), 2.0), ((8,), 1.0)], 2: [((5,), 3.0)]})
    one.rewire.rewire()
    assert held(layer) == [(3,), (8,), (5,)]
