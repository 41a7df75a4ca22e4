"""Rewiring: who contributes, who keeps a place, how it lives, what it refuses."""

import copy
import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import LargestStorage, sampled_layer
from tests.nn.dense import Look, tuples_of
from tests.rewire.wires import (
    SOURCES,
    all_wasted,
    flat_layer,
    keepers_one_by_one,
    offer,
    put,
    setup,
    train,
)
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import sparsewire as sw
from sparsewire import HyperLayer, Rewire, Wiring
from sparsewire.nn.wiring import contributions
from sparsewire.ops import flat_index, rounded
from sparsewire.rewire import find_keepers
from sparsewire.rewire.places import is_in, unflatten

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


@pytest.mark.parametrize(
    ("means", "strength", "want"),
    [
        ([3.0, 3.0, 3.0], [1.0, 1.0, 1.0], [0, 0, 0]),  # ties: the first
        ([3.0, 3.6], [0.5, 1.0], [1, 1]),  # 0.6 apart
        ([3.0, 3.75], [1.0, 0.5], [0, 1]),
        ([2.6, 3.4], [1.0, 0.5], [0, 0]),  # of one place at any distance
        # The weakest of three would go to one that goes itself: it stays, for this time.
        ([3.0, 3.6, 4.1], [3.0, 2.0, 1.0], [0, 0, 2]),
        ([[3.4, 3.4], [3.6, 3.6], [3.6, 2.9]], [1.0, 2.0, 3.0], [1, 1, 2]),  # the nearer one
    ],
)
def test_keepers_by_hand(means, strength, want):
    space = (9,) * np.ndim(means)
    table = torch.tensor(means, dtype=torch.float64).view(-1, len(space))
    held = rounded(table, space)
    assert find_keepers(table, held, torch.tensor(strength), space).tolist() == want


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
    assert torch.equal(is_in(left, right), torch.isin(left, right))


@pytest.mark.parametrize("space", [(5,), (1, 7), (3, 4), (2, 1, 3), (2, 3, 2, 2), (2**31, 2**31)])
def test_places_get_their_indices_back(space):
    every = torch.tensor(list(itertools.product(*({0, 1 % n, n - 1} for n in space))))
    assert torch.equal(unflatten(flat_index(every, space), space), every)


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
    layers = (sampled_layer((8,), (8,), tuples=8, seed=0) for _ in range(2))
    whole, other = (setup(layer, every=10) for layer in layers)
    train(whole, 15, target)
    saved = torch.get_rng_state()
    for part, same in zip(whole, other, strict=True):
        same.load_state_dict(copy.deepcopy(part.state_dict()))
    ends = []
    for one in (other, whole):
        torch.set_rng_state(saved)
        train(one, 25, target)
        assert one.rewire.moves > 0
        ends.append(
            [*one.layer.parameters(), one.rewire.layers[0].places, one.rewire.layers[0].gradients]
        )
    assert other.rewire.steps == whole.rewire.steps == 40
    assert all(map(torch.equal, *ends))


def test_a_saved_state_is_a_copy_and_fits_as_many_tuples_only():
    one, other = setup(flat_layer(9, 2)), setup(flat_layer(9, 3))
    state = one.rewire.state_dict()
    one.layer(torch.randn(4, 9)).square().sum().backward()
    one.rewire.rewire()
    assert (state["layers"][0]["gradients"] == -1).all()
    assert state["layers"][0]["ages"].tolist() == [0, 0]
    with pytest.raises(ValueError, match="state must be of a layer with 3 tuples; got 2"):
        other.rewire.load_state_dict(one.rewire.state_dict())
    assert other.rewire.steps == 0


def test_removed_it_reads_no_more():
    layer = flat_layer(9, 4)
    first = setup(layer)
    first.rewire.remove()
    assert layer.on_sample is None
    layer(torch.randn(4, 9)).sum().backward()
    assert (first.rewire.layers[0].gradients == -1).all()
    second = setup(layer)
    first.rewire.remove()
    layer(torch.randn(4, 9)).sum().backward()
    assert (second.rewire.layers[0].gradients >= 0).any()


def test_nothing_dense_is_made():
    """The matrix would take 64 MiB; a share of each of 64 tuples for each sample takes 224 KiB."""
    size, tuples = 4096, 64
    one = setup(sampled_layer((size,), (size,), tuples=tuples, seed=0))
    x = torch.randn(2, size)
    with LargestStorage() as largest:
        one.layer(x).square().mean().backward()
    each = 4 + one.layer.local_samples + one.layer.global_samples
    assert largest.bytes <= 2 * 8 * tuples * tuples * each
    with LargestStorage() as largest:
        one.rewire.rewire()
    assert largest.bytes <= 16 * 8 * tuples
    (state,) = one.rewire.state_dict()["layers"]
    assert sum(v.numel() for v in state.values()) <= 11 * tuples


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


FREE = "layer must be a layer with free tuples, like SparseLayer; got "
INSIDE = "layer must be or contain a layer with free tuples, like SparseLayer; got "
SIZES = "layer must have fixed sizes; got in_shape (None, 4)"
SAMPLES = "layer must have local or global samples, to discover places; got none"
SHARE = "negligible must be between 0 and 1; got "

REFUSED: list[tuple[Callable[[], Any], dict[str, Any], type[Exception], str]] = [
    (lambda: HyperLayer(Look((4,), 2, 2), (4,), (4,)), {}, TypeError, FREE + "Look"),
    (lambda: nn.Linear(4, 4), {}, TypeError, INSIDE + "Linear"),
    (lambda: flat_layer(9, 2), {"distinct": True}, ValueError, "distinct must be False for a"),
    (
        lambda: HyperLayer(sw.BlockDiagonal(2, 3), (4,), (4,)),
        {"distinct": True},
        ValueError,
        "distinct must be False for a layer with a learned output column; got True for HyperLayer",
    ),
    (lambda: sampled_layer((None, 4), (4,), 3), {}, ValueError, SIZES),
    (lambda: flat_layer(4, 3, local_samples=0, global_samples=0), {}, ValueError, SAMPLES),
    (lambda: flat_layer(9, 2), {"every": 0}, ValueError, "every must be at least 1; got 0"),
    (lambda: flat_layer(9, 2), {"negligible": -0.1}, ValueError, SHARE + "-0.1"),
    (lambda: flat_layer(9, 2), {"negligible": 1.5}, ValueError, SHARE + "1.5"),
    (lambda: flat_layer(9, 2), {"patience": -1}, ValueError, "patience must be at least 0; got -1"),
    (
        lambda: flat_layer(9, 2),
        {"patience": 2**70},
        ValueError,
        "patience must be at most 2**63 - 1",
    ),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("make", "options", "error", "message"), REFUSED, ids=[row[3] for row in REFUSED]
)
def test_bad_layers_and_options_are_refused(make, options, error, message):
    layer = make()
    with pytest.raises(error, match=re.escape(message)):
        setup(layer, **options)
    assert getattr(layer, "on_sample", None) is None


def test_a_second_one_for_the_same_layer_is_refused():
    one = setup(flat_layer(9, 2))
    with pytest.raises(ValueError, match="layer must not be rewired yet; remove"):
        setup(one.layer)
    assert one.layer.on_sample == one.rewire.layers[0]._on_sample


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_optimizer_of_the_layer_is_refused():
    layer = flat_layer(9, 2)
    source = tuples_of(layer)
    for parameters in ([nn.Parameter(torch.ones(2))], [source.raw_means, source.values]):
        with pytest.raises(ValueError, match="optimizer must hold the parameters of the layer"):
            Rewire(layer, torch.optim.SGD(parameters, lr=0.1))
    bad: Any
    for bad in (None, [], "Adam"):
        with pytest.raises(TypeError, match=r"must be a torch\.optim\.Optimizer; got [Nls]"):
            Rewire(layer, bad)
    assert layer.on_sample is None
