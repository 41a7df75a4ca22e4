"""Batches of any shape, inputs of any size, and how many wirings they get."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.helpers import assert_same, seeded
from tests.nn.dense import (
    KINDS,
    MODES,
    Look,
    apply_dense,
    gradients_of,
    input_for,
    matrix_of,
    random_input,
)

from sparsewire import HyperLayer, SparseLayer

in_all_modes = pytest.mark.parametrize("mode", MODES)


# Shapes.


SHAPES: dict[str, Any] = {"in_shape": (2, 3), "out_shape": (4,)}
LAYERS: dict[str, Callable[[], HyperLayer]] = {
    "one wiring": lambda: SparseLayer(**SHAPES, tuples=6, seed=0),
    "several wirings": lambda: SparseLayer(**SHAPES, tuples=6, wirings=3, seed=0),
    "one wiring each": lambda: HyperLayer(Look((2, 3), 6, 3), **SHAPES, wirings=3),
}


@in_all_modes
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("prefix", [(), (3,), (2, 1, 2), (0,), (2, 0)], ids=str)
def test_any_batch_prefix(prefix, kind, mode):
    layer = LAYERS[kind]()
    x = random_input(*prefix, 2, 3, dtype=torch.float32)
    y = layer(x, mode=mode, generator=seeded(1))
    assert y.shape == (*prefix, 4)
    flat = layer(x.reshape(math.prod(prefix), 2, 3), mode=mode, generator=seeded(1))
    torch.testing.assert_close(y.reshape(flat.shape), flat)
    y.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())


@in_all_modes
@pytest.mark.parametrize("features", [(4,), (2, 3), (1,), (0,)], ids=str)
def test_matrix_by_matrix(features, mode):
    """What a layer for vectors does to each column, one for matrices does to all of them."""
    vectors = LAYERS["one wiring"]().double()
    matrices = SparseLayer(**SHAPES, tuples=6, seed=0, features=len(features)).double()
    weights = matrix_of(vectors, mode=mode, generator=seeded(1))
    x = random_input(2, 5, 2, 3, *features)
    expected = apply_dense(weights.view(4, 2, 3), x, 1, features=len(features))
    torch.testing.assert_close(matrices(x, mode=mode, generator=seeded(1)), expected)


def test_sizes_may_change_between_calls():
    layer = SparseLayer((None, 3), (4,), tuples=6, edge="clamp", seed=0).double().eval()
    for size in (2, 7, 1, 7):
        fixed = SparseLayer((size, 3), (4,), tuples=6, edge="clamp", seed=0).double().eval()
        x = random_input(5, size, 3)
        for mode in MODES:
            outputs = (each(x, mode=mode, generator=seeded(1)) for each in (layer, fixed))
            torch.testing.assert_close(*outputs)
        assert torch.equal(layer.wiring(x).means, fixed.wiring().means)


# How many wirings a batch gets.


@pytest.mark.parametrize(
    ("batch", "wirings", "groups"),
    [
        (6, 1, [0, 0, 0, 0, 0, 0]),
        (6, 3, [0, 0, 1, 1, 2, 2]),
        (7, 3, [0, 0, 0, 1, 1, 2, 2]),
        (5, 4, [0, 0, 1, 2, 3]),
        (6, 6, [0, 1, 2, 3, 4, 5]),
        (6, 99, [0, 1, 2, 3, 4, 5]),
        (1, 3, [0]),
    ],
)
def test_each_group_of_instances_has_a_draw_of_its_own(batch, wirings, groups):
    """A layer for matrices, given the identity, returns the weights of every instance."""
    layer = KINDS["free"](wirings=wirings).double()
    shown = KINDS["free"](wirings=wirings, features=1).double()
    weights = shown(torch.eye(5).double().expand(batch, 5, 5), generator=seeded(1))
    drawn = [weights[groups.index(group)] for group in sorted(set(groups))]
    for instance, group in enumerate(groups):
        torch.testing.assert_close(weights[instance], drawn[group], rtol=0, atol=0)
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(drawn, 2))
    totals = weights.sum((1, 2))
    torch.testing.assert_close(totals, shown.wiring().values.sum().expand(batch))

    x = random_input(batch, 5)
    expected = torch.stack([w @ row for w, row in zip(weights, x, strict=True)])
    torch.testing.assert_close(layer(x, generator=seeded(1)), expected)


def test_gradients_are_those_of_all_groups_together():
    """With nothing left to chance, one draw for each instance gives the gradient of one for all."""
    options, x = {"local_samples": 0, "global_samples": 0, "bias": True}, random_input(7, 5)
    layers = (KINDS["free"](wirings=wirings, **options).double() for wirings in (1, 3))
    one, many = (gradients_of(layer, layer(x).square().sum()) for layer in layers)
    assert_same(one, many)


def test_evaluation_ignores_the_number_of_wirings():
    one, many = (KINDS["free"](wirings=wirings).eval() for wirings in (1, 3))
    x = input_for(one, 7)
    assert torch.equal(one(x), many(x))
