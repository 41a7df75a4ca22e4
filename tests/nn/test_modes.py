"""What is drawn and when, for batches and inputs of any shape."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.helpers import assert_same, sampled_layer, seeded
from tests.nn.dense import (
    KINDS,
    MODES,
    SCHEDULED,
    Look,
    apply_dense,
    gradients_of,
    input_for,
    matrix_of,
    random_input,
)
from torch import Tensor

from sparsewire import HyperLayer, SparseLayer, fan_in

in_all_modes = pytest.mark.parametrize("mode", MODES)

X = random_input(4, 8, dtype=torch.float32)


def eight(**options: Any) -> SparseLayer:
    return sampled_layer((8,), (8,), tuples=8, seed=0, **options)


def test_the_same_generator_gives_the_same_output_and_another_draw_another():
    generator = seeded(1)
    first, second = (eight()(X, generator=generator) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(eight()(X, generator=seeded(1)), first)
    assert not torch.equal(eight()(X, generator=seeded(2)), first)
    torch.manual_seed(5)  # without a generator, the global one
    first, second = eight()(X), eight()(X)
    torch.manual_seed(5)
    assert torch.equal(eight()(X), first)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("mode", ["rounded", "expected"])
def test_evaluation_draws_nothing_and_training_does(mode):
    layer, before = eight(evaluation=mode).eval(), torch.get_rng_state()
    assert torch.equal(layer(X), layer(X))
    assert torch.equal(layer(X), layer(X, mode=mode))
    assert torch.equal(torch.get_rng_state(), before)
    layer.train()
    assert not torch.equal(layer(X), layer(X))
    assert not torch.equal(torch.get_rng_state(), before)


def test_a_mode_for_one_call_wins_over_training_and_evaluation():
    layer = eight(evaluation="sampled")
    trained, rounded = layer(X, generator=seeded(1)), layer(X, mode="rounded")
    layer.eval()
    assert torch.equal(layer(X, generator=seeded(1)), trained)
    assert torch.equal(layer(X, mode="rounded"), rounded)
    assert not torch.equal(trained, rounded)


def test_sampling_counts_and_regions_are_what_was_asked_for():
    counts: dict[str, Any] = {"local_samples": 3, "global_samples": 5, "region": (2, 1)}
    layer = sampled_layer((50,), (50,), tuples=6, context=2, seed=0, **counts)
    draw = layer.sample(generator=seeded(1))
    assert draw.indices.shape == (3, 2 * (4 + 3 + 5), 2)
    near = draw.indices.view(6, 12, 2)[:, 4:7] - layer.wiring().means.round().unsqueeze(1)
    assert set(near[..., 0].unique().tolist()) == {-1, 0}
    assert set(near[..., 1].unique().tolist()) == {0}


# Hardness: passes in training that are moved to those of rounded tuples.

TEMPLATE = fan_in((4,), (2, 3))
MOVED = {
    **{kind: make for kind, make in KINDS.items() if kind not in SCHEDULED},  # rounded already
    "each its own": lambda: HyperLayer(Look((2, 3), 4, 2), (2, 3), (4,), template=TEMPLATE),
    "wirings": lambda: KINDS["free"](wirings=3),
}

of_every_kind = pytest.mark.parametrize("kind", MOVED)


def made(kind: str, hardness: float | None) -> HyperLayer:
    layer = MOVED[kind]().double()
    if hardness is not None:
        layer.hardness = torch.tensor(hardness, dtype=torch.float64)
    return layer


def one_pass(layer: HyperLayer, **call: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """The output of a pass that draws after one seed, and all gradients of a weighting of it."""
    x = input_for(layer, 4, dtype=torch.float64).requires_grad_()
    leaves = {"x": x, **dict(layer.named_parameters())}
    y = layer(leaves["x"], generator=seeded(3), **call)
    weights = torch.randn(y.shape, dtype=y.dtype, generator=seeded(4))
    gradients = torch.autograd.grad(
        y, list(leaves.values()), weights, allow_unused=True, materialize_grads=True
    )
    return y.detach(), dict(zip(leaves, gradients, strict=True))


@of_every_kind
def test_hardness_moves_the_output_to_that_of_rounding_and_learns_from_the_draw(kind):
    sampled, gradients = one_pass(made(kind, None))
    rounded, _ = one_pass(made(kind, None), mode="rounded")
    assert not torch.allclose(sampled, rounded)
    assert gradients["x"].any()
    layer = made(kind, 0.0)
    assert torch.equal(one_pass(layer)[0], sampled)
    assert layer.hardness is not None
    for share in (0.25, 1.0):
        layer.hardness.fill_(share)  # in place, as a schedule does
        got, its = one_pass(layer)
        torch.testing.assert_close(got, (1 - share) * sampled + share * rounded)
        assert_same(its, gradients)


@in_all_modes
def test_hardness_is_for_training_and_for_draws(mode):
    """In evaluation it has no effect, and in training none on what is not drawn."""
    soft, hard = made("free", None).eval(), made("free", 1.0).eval()
    assert torch.equal(one_pass(hard, mode=mode)[0], one_pass(soft, mode=mode)[0])
    if mode != "sampled":
        mine, its = (one_pass(layer.train(), mode=mode)[0] for layer in (hard, soft))
        assert torch.equal(mine, its)


def test_a_hard_pass_in_half_precision_stays_there():
    layer = made("free", 1.0).float()
    x = random_input(4, 5, dtype=torch.bfloat16)
    y = layer(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y, layer(x, mode="rounded"), rtol=2e-2, atol=2e-2)


# Batches and inputs of any shape.

SHAPES: dict[str, Any] = {"in_shape": (2, 3), "out_shape": (4,)}
LAYERS: dict[str, Callable[[], HyperLayer]] = {
    "one wiring": lambda: sampled_layer(**SHAPES, tuples=6, seed=0),
    "several wirings": lambda: sampled_layer(**SHAPES, tuples=6, wirings=3, seed=0),
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
    matrices = sampled_layer(**SHAPES, tuples=6, seed=0, features=len(features)).double()
    weights = matrix_of(vectors, mode=mode, generator=seeded(1))
    x = random_input(2, 5, 2, 3, *features)
    expected = apply_dense(weights.view(4, 2, 3), x, 1, features=len(features))
    torch.testing.assert_close(matrices(x, mode=mode, generator=seeded(1)), expected)


def test_sizes_may_change_between_calls():
    layer = sampled_layer((None, 3), (4,), tuples=6, edge="clamp", seed=0).double().eval()
    for size in (2, 7, 1, 7):
        fixed = sampled_layer((size, 3), (4,), tuples=6, edge="clamp", seed=0).double().eval()
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
