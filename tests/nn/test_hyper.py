"""Layers whose wiring comes from a source: adaptive ones against a loop over the instances."""

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from tests.helpers import assert_same, seeded
from tests.nn.dense import (
    MODES,
    Look,
    filled,
    gradients_of,
    random_input,
    weights_of,
    weights_over,
    window_points,
)
from torch import Tensor, nn

from sparsewire import FreeTuples, HyperLayer, Sample, SparseLayer, Wiring, fan_in


def adaptive(template: bool = False, **options: Any) -> HyperLayer:
    """Six tuples from (2, 3) to (4,), chosen by a network that reads the input."""
    if template:
        options["template"] = fan_in((4,), (2, 3), tuples=2)
    source = Look((2, 3), tuples=8 if template else 6, rank=2 if template else 3)
    return HyperLayer(source, (2, 3), (4,), **options).double()


def one_by_one(layer: Callable[..., Tensor], x: Tensor, **call: Any) -> Tensor:
    """Run a layer on each instance of a batch alone."""
    return torch.stack([layer(instance, **call) for instance in x])


# One wiring for each instance.


@pytest.mark.parametrize("mode", ["rounded", "expected"])
@pytest.mark.parametrize(
    "options", [{}, {"context": 2}, {"bias": True}, {"template": True}], ids=str
)
def test_an_adaptive_layer_equals_a_loop_over_instances(options, mode):
    layer = adaptive(**options)
    x = random_input(5, 2, 3)
    expected = one_by_one(layer, x, mode=mode)
    assert not torch.equal(layer.wiring(x).means[0], layer.wiring(x).means[1])
    torch.testing.assert_close(layer(x, mode=mode), expected)
    torch.testing.assert_close(layer(x.view(5, 1, 2, 3), mode=mode), expected.unsqueeze(1))


@pytest.mark.parametrize("mode", MODES)
def test_each_instance_is_multiplied_by_weights_of_its_own(mode):
    """Those of its draw, of its rounded means, or of the densities over its own windows."""
    space, spans = (4, 2, 3), (2, 1, 3)
    layer = adaptive(window=spans, context=3 if mode == "sampled" else None)
    x = random_input(5, 2, 3)
    draws = zip(*layer.sample(x, generator=seeded(1)), strict=True)
    expected = []
    for draw, *wiring, instance in zip(draws, *layer.wiring(x), x, strict=True):
        means, _, values = wiring
        if mode == "sampled":
            dense = weights_of(Sample(*draw), space)
        elif mode == "rounded":
            dense = filled(means.round().long().tolist(), values.tolist(), space)
        else:
            dense = weights_over(Wiring(*wiring), [window_points(means, space, spans)], space)
        expected.append(dense.flatten(1) @ instance.flatten())
    torch.testing.assert_close(layer(x, mode=mode, generator=seeded(1)), torch.stack(expected))


def test_the_gradient_passes_through_the_source():
    """With the wiring held fixed, only the contraction depends on the input."""
    layer = adaptive(window=(4, 2, 3))
    x = random_input(3, 2, 3).requires_grad_()

    class Held(nn.Module):
        def forward(self, _: Tensor) -> Tensor:
            return layer.source(x.detach())

    held = HyperLayer(Held(), (2, 3), (4,), window=(4, 2, 3))
    outputs = [each(x, mode="expected") for each in (layer, held)]
    torch.testing.assert_close(*outputs)
    through, past = (torch.autograd.grad(y.square().sum(), x)[0] for y in outputs)
    assert (through - past).abs().max() > 1e-3
    assert all(g.abs().sum() > 0 for g in gradients_of(layer, layer(x).square().sum()).values())


def test_features_ride_along():
    class LookAtFirst(Look):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x[..., 0])

    layer = HyperLayer(LookAtFirst((5,), 6, 2), (5,), (4,), features=1).double()
    x = random_input(3, 5, 7)
    torch.testing.assert_close(layer(x, mode="expected"), one_by_one(layer, x, mode="expected"))
    first = HyperLayer(Look((5,), 6, 2).double(), (5,), (4,))
    torch.testing.assert_close(layer(x, mode="rounded")[..., 0], first(x[..., 0], mode="rounded"))


# What a source may return.

RAW = torch.randn(2, 6, 4, generator=seeded(3))
MEANS, VARIANCES, VALUES = RAW[..., :2], RAW[..., 2], RAW[..., 3]
SHARED = [0, 2, 2, 1, 0, 1]


def from_source(output: Any, **options: Any) -> Tensor:
    """The result of a layer whose source returns this, for a fixed input and draw."""
    layer = HyperLayer(lambda x: output, (5,), (4,), **options)
    return layer(random_input(2, 5, dtype=torch.float32), generator=seeded(1))


@pytest.mark.parametrize(
    ("output", "variances", "values", "options"),
    [
        ((MEANS, VARIANCES, VALUES), VARIANCES, VALUES, {}),
        ([MEANS, VARIANCES, VALUES], VARIANCES, VALUES, {}),
        ((MEANS, VARIANCES, None), VARIANCES, torch.ones(2, 6), {}),
        ((MEANS, VARIANCES, VALUES[:, :1]), VARIANCES, VALUES[:, :1], {}),
        ((MEANS, VARIANCES[:, :1], VALUES), VARIANCES[:, :1], VALUES, {}),
        ((MEANS, VARIANCES, VALUES[:, :3]), VARIANCES, VALUES[:, SHARED], {"share_values": SHARED}),
    ],
    ids=["tuple", "list", "no values", "one value", "one variance", "shared values"],
)
def test_what_a_source_may_return(output, variances, values, options):
    """A tensor of raw means, variances and values, or the three of them."""
    others = torch.stack([variances.expand(2, 6), values.expand(2, 6)], dim=-1)
    expected = from_source(torch.cat([MEANS, others], dim=-1))
    assert torch.equal(from_source(output, **options), expected)


def test_one_wiring_for_the_batch_from_a_source_that_reads_it():
    parts = MEANS[0], VARIANCES[0], VALUES[0]
    x = random_input(2, 5, dtype=torch.float32)
    expected = HyperLayer(lambda: parts, (5,), (4,))(x, generator=seeded(1))
    assert torch.equal(from_source(RAW[0]), expected)
    assert torch.equal(from_source(parts), expected)


def test_a_source_that_reads_nothing_is_a_sparse_layer():
    source = FreeTuples(6, 2, edge="wrap", seed=0)
    layer = HyperLayer(source, (5,), (4,), wirings=2)
    same = SparseLayer((5,), (4,), tuples=6, edge="wrap", seed=0, wirings=2)
    x = random_input(3, 5, dtype=torch.float32)
    assert layer.edge == "wrap"
    assert HyperLayer(source, (5,), (4,), edge="clamp").edge == "clamp"
    assert adaptive().edge == "sigmoid"
    assert not layer.adaptive
    assert torch.equal(layer(x, generator=seeded(1)), same(x, generator=seeded(1)))
    named = [gradients_of(each, each(x, generator=seeded(1)).sum()) for each in (layer, same)]
    assert_same(named[0], named[1])


# Reduced precision.


def test_a_source_under_autocast():
    layer = adaptive().float()
    x = random_input(5, 2, 3, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer.source(x).dtype == torch.bfloat16
        wiring, y = layer.wiring(x), layer(x, mode="expected")
    assert wiring.means.dtype == wiring.variances.dtype == y.dtype == torch.float32
    torch.testing.assert_close(y, layer(x, mode="expected"), rtol=0.1, atol=0.1)
    gradients = gradients_of(layer, y.square().sum())
    assert all(g.dtype == torch.float32 and g.isfinite().all() for g in gradients.values())


def test_half_of_everything():
    layer, x = adaptive().bfloat16(), random_input(5, 2, 3, dtype=torch.bfloat16)
    wide = HyperLayer(lambda _: layer.source(x).float(), (2, 3), (4,))
    for mode in MODES:
        y = layer(x, mode=mode, generator=seeded(1))
        assert y.dtype == torch.bfloat16
        expected = wide(x.float(), mode=mode, generator=seeded(1))
        torch.testing.assert_close(y, expected.bfloat16())


@pytest.mark.usefixtures("unchecked")
def test_sizes_may_be_numpy_integers():
    sizes: Any = tuple(numpy.array([5, 4]))
    layer: Any = HyperLayer(FreeTuples(6, 2), sizes[:1], sizes[1:])
    assert layer(random_input(3, 5)).shape == (3, 4)
    assert [type(n) for n in (*layer.in_shape, *layer.out_shape)] == [int, int]
