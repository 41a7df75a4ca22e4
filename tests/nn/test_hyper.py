# ruff: noqa: E501  # a table, one bad output a line
"""Layers whose wiring comes from a source: adaptive ones against a loop over the instances."""

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special
from tests.helpers import assert_same, sampled_layer, seeded
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

from sparsewire import FreeTuples, HyperLayer, Sample, Wiring, fan_in
from sparsewire.nn.wiring import reads_input

ONES: Any = torch.ones


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
    same = sampled_layer((5,), (4,), tuples=6, edge="wrap", seed=0, wirings=2)
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
    sizes: Any = tuple(np.array([5, 4]))
    layer: Any = HyperLayer(FreeTuples(6, 2), sizes[:1], sizes[1:])
    assert layer(random_input(3, 5)).shape == (3, 4)
    assert [type(n) for n in (*layer.in_shape, *layer.out_shape)] == [int, int]


class Alone(nn.Module):
    def forward(self) -> Tensor:
        return ONES(3)


class Says(nn.Module):
    """Hides its signature, as compilers and other wrappers do, and says whether it reads."""

    def __init__(self, adaptive: bool) -> None:
        super().__init__()
        self.adaptive = adaptive

    def forward(self, *inputs: Tensor) -> Tensor:
        return ONES(3)


@pytest.mark.parametrize(
    ("source", "reads"),
    [
        (nn.Sequential(nn.Linear(3, 3)), True),
        (lambda *inputs: inputs[0], True),
        (lambda x: x, True),
        (Alone(), False),
        (lambda *, scale=1.0: scale, False),
        (lambda: None, False),
        (functools.partial(lambda x: x, 1), False),
        (Says(adaptive=True), True),
        (Says(adaptive=False), False),
    ],
)
def test_a_source_reads_the_input_if_it_takes_an_argument_or_says_so(source, reads):
    assert reads_input(source) is reads


def test_means_variances_and_values_follow_the_formulas():
    scales: dict[str, Any] = {"variance_scale": 0.3, "variance_floor": 0.2}
    layer = sampled_layer((7,), (5,), tuples=6, seed=0, **scales).double()
    raw = {name: t.detach().numpy() for name, t in layer.named_parameters()}
    wiring = layer.wiring()
    assert isinstance(wiring, Wiring)
    means = special.expit(raw["source.raw_means"]) * [4, 6]
    softplus = np.log1p(np.exp(raw["source.raw_variances"] + 2))
    variances = softplus[:, None] * [5, 7] * 0.3 + 0.2
    np.testing.assert_allclose(wiring.means.detach(), means)
    np.testing.assert_allclose(wiring.variances.detach(), variances)
    np.testing.assert_array_equal(wiring.values.detach(), raw["source.values"])


def test_gradients_reach_the_raw_numbers_from_a_sample():
    layer = sampled_layer((7,), (5,), tuples=6)
    layer.sample().values.square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in layer.parameters())


NAN = float("nan")
GOOD = (ONES(3, 6, 2), ONES(3, 6), ONES(3, 6))


def with_bad_number(part: int, number: float) -> tuple[Tensor, ...]:
    parts = [tensor.clone() for tensor in GOOD]
    parts[part].view(-1)[-1] = number
    return tuple(parts)


BAD_OUTPUTS = [
    (None, TypeError, "source must return a tensor (*b, k, r + 2), or raw means"),
    (GOOD[:2], TypeError, "source must return a tensor (*b, k, r + 2), or raw means"),
    ((1.0, *GOOD[1:]), TypeError, "raw means must be a tensor; got float"),
    ((GOOD[0], 1.0, GOOD[2]), TypeError, "raw variances must be a tensor; got float"),
    ((*GOOD[:2], 1.0), TypeError, "values must be a tensor; got float"),
    ((GOOD[0].long(), *GOOD[1:]), TypeError, "raw means must have a floating-point dtype; got torch.int64"),
    ((GOOD[0], GOOD[1].long(), GOOD[2]), TypeError, "raw variances must have a floating-point dtype; got torch.int64"),
    ((*GOOD[:2], GOOD[2].long()), TypeError, "values must have a floating-point dtype; got torch.int64"),
    (ONES(3, 6, 4).long(), TypeError, "must have a floating-point dtype; got torch.int64"),
    (ONES(3, 6, 3), ValueError, "the source's output must have shape (*b, k, r + 2) ending in (any, 4); got (3, 6, 3)"),
    ((ONES(3, 6, 3), *GOOD[1:]), ValueError, "raw means must have shape (*b, k, r) ending in (any, 2); got (3, 6, 3)"),
    ((GOOD[0], ONES(3, 5), GOOD[2]), ValueError, "raw variances must have shape (3, 6); got (3, 5)"),
    ((*GOOD[:2], ONES(3, 6, 1)), ValueError, "values must have shape (3, 6); got (3, 6, 1)"),
    (ONES(3, 0, 4), ValueError, "source must return at least one tuple; got raw means of shape (3, 0, 2)"),
    (ONES(2, 6, 4), ValueError, "source must return one wiring, or one for each instance of the batch (3,); got a prefix of (2,)"),
    (ONES(1, 6, 4), ValueError, "source must return one wiring, or one for each instance of the batch (3,); got a prefix of (1,)"),
    (ONES(3, 6, 4, device="meta"), ValueError, "must be on one device; got x on cpu, raw_means on meta"),
    (with_bad_number(0, NAN), ValueError, "raw means must be finite; got 1 of 36 that are NaN or infinite"),
    (with_bad_number(1, float("inf")), ValueError, "raw variances must be finite; got 1 of 18 that are NaN or infinite"),
    (with_bad_number(2, -float("inf")), ValueError, "values must be finite; got 1 of 18 that are NaN or infinite"),
]  # fmt: skip


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("output", "error", "message"), BAD_OUTPUTS, ids=[b[2] for b in BAD_OUTPUTS]
)
def test_bad_outputs_are_refused(output, error, message):
    layer = HyperLayer(lambda x: output, (5,), (4,))
    with pytest.raises(error, match=re.escape(message)):
        layer(ONES(3, 5))


def test_large_numbers_are_not_taken_for_infinite():
    """Their sum is; each of them is finite."""
    parts = [tensor * 3e38 for tensor in GOOD[:2]]
    layer = HyperLayer(lambda x: (*parts, GOOD[2]), (5,), (4,))
    assert layer(ONES(3, 5)).isfinite().all()


@pytest.mark.parametrize("factor", [None, 0.25])
@pytest.mark.parametrize("shape", [(1,), (4,), (3, 1), (3, 4)], ids=str)
def test_variances_that_are_views_are_as_good_as_copies(shape, factor):
    """Wiring, output and gradients; what is computed once for many is still seen by each."""
    means = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)
    raw = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    x, results = torch.randn(3, 5, dtype=torch.float64), []
    for view in (raw.expand(3, 4), raw.expand(3, 4).clone()):
        layer = HyperLayer(lambda x, view=view: (means, view, None), (5,), (6,))
        if factor is not None:
            layer.variance_factor = torch.tensor(factor, dtype=torch.float64)
        y = layer(x, generator=seeded(1))
        gradients = torch.autograd.grad(y.square().sum(), [means, raw], retain_graph=True)
        results.append([layer.wiring(x).variances, y, *gradients])
    # softplus(raw + 2) · size · 0.1, of which a factor leaves a part, and the floor 0.1
    widths = np.log1p(np.exp(raw.detach().expand(3, 4).numpy() + 2))[..., None]
    bound = widths * np.array([6, 5]) * 0.1 * (factor or 1) + 0.1
    np.testing.assert_allclose(results[0][0].detach().numpy(), bound)
    for of_view, of_copy in zip(*results, strict=True):
        torch.testing.assert_close(of_view, of_copy)
    assert results[0][-1].any()
