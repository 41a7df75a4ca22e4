# ruff: noqa: E501  # tables, one bad call a line
"""The output of a source: its forms, its bounds, and what is refused."""

import functools
import re
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special
from tests.helpers import seeded
from torch import Tensor, nn

from sparsewire import HyperLayer, SparseLayer, Wiring
from sparsewire.nn.wiring import reads_input

ONES: Any = torch.ones


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
    layer = SparseLayer((7,), (5,), tuples=6, seed=0, **scales).double()
    raw = {name: t.detach().numpy() for name, t in layer.named_parameters()}
    wiring = layer.wiring()
    assert isinstance(wiring, Wiring)
    means = special.expit(raw["source.raw_means"]) * [4, 6]
    softplus = np.log1p(np.exp(raw["source.raw_variances"] + 2))
    variances = softplus[:, None] * [5, 7] * 0.3 + 0.2
    np.testing.assert_allclose(wiring.means.detach(), means)
    np.testing.assert_allclose(wiring.variances.detach(), variances)
    np.testing.assert_array_equal(wiring.values.detach(), raw["source.values"])


@pytest.mark.parametrize(
    ("prefix", "columns"), [((), 2), ((3,), 2), ((2, 3), 3)], ids=["one", "batch", "prefix"]
)
def test_shapes_of_what_is_shown(prefix, columns):
    out_shape = (4,) * (columns - 1)
    layer = HyperLayer(lambda x: ONES(*prefix, 6, columns + 2), (5,), out_shape, context=2)
    x = ONES(*prefix, 5)
    shapes = [tuple(t.shape) for t in (*layer.wiring(x), *layer.sample(x, mode="rounded"))]
    full = (*prefix, 6, columns)
    contexts = (*prefix, 3, 2)
    assert shapes == [full, full, full[:-1], (*contexts, columns), contexts]


def test_looking_costs_no_randomness():
    layer = SparseLayer((7,), (5,), tuples=6)
    before = torch.get_rng_state()
    for look in (layer.wiring, layer.freeze, lambda: layer.sample(mode="expected")):
        look()
    assert torch.equal(torch.get_rng_state(), before)


def test_gradients_reach_the_raw_numbers_from_what_is_shown():
    layer = SparseLayer((7,), (5,), tuples=6)
    total = sum(tensor.sum() for tensor in (*layer.wiring(), layer.sample().values))
    assert isinstance(total, Tensor)
    total.backward()
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


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("source", [None, ONES(3)])
def test_what_cannot_be_called_is_no_source(source):
    with pytest.raises(TypeError, match=r"source must be a module; got (NoneType|Tensor)"):
        HyperLayer(source, (5,), (4,))


def test_an_adaptive_layer_has_no_wiring_without_an_input():
    layer = HyperLayer(lambda x: ONES(6, 4), (5,), (4,))
    message = r"x must be given, since the source .* reads it; got None"
    for look in (layer.wiring, layer.sample):
        with pytest.raises(ValueError, match=message):
            look()


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
