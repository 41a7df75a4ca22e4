"""`SparseLinear`, and training by straight-through rounding, against dense layers."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from tests.helpers import assert_same, pairwise, seeded
from torch import Tensor, nn
from torch.nn import functional as F

from sparsewire import Rewire, Schedule, SparseLayer, SparseLinear, fan_in

ROWS = pairwise(
    wires=[{"fan_in": 3}, {"density": 0.25}],
    in_shape=[None, (3, 4), (2, 3, 2)],
    free=[False, True],
    bias=[False, True],
    batch=[(), (5,), (2, 0), (2, 3)],
    context=[1, 3],
)


def linear(**options: Any) -> SparseLinear:
    return SparseLinear(12, 7, **{"fan_in": 3, "seed": 0, **options})


def trained(layer: nn.Module, steps: int = 20, rate: float = 0.05) -> None:
    optimizer = torch.optim.Adam(layer.parameters(), lr=rate)
    x, y = torch.randn(64, 12), torch.randn(64, 7)
    for _ in range(steps):
        optimizer.zero_grad()
        F.mse_loss(layer(x), y).backward()
        optimizer.step()


def gradients(layer: SparseLayer, x: Tensor, mode: Any) -> dict[str, Tensor]:
    """Gradients of a linear function of the output, so that they depend on no weight."""
    x = x.clone().requires_grad_()
    y = layer(x, mode=mode, generator=seeded(3))
    leaves = {**dict(layer.named_parameters()), "x": x}
    found = torch.autograd.grad(
        (y * torch.randn(y.shape, generator=seeded(4))).sum(), list(leaves.values()),
        allow_unused=True, materialize_grads=True,
    )  # fmt: skip
    return dict(zip(leaves, found, strict=True))


@pytest.mark.parametrize("row", ROWS)
def test_it_equals_the_dense_layer_of_its_wires(row):
    layer = linear(**{"fan_in": None, **row["wires"]}, **{n: row[n] for n in ("in_shape", "free")},
                   bias=row["bias"], context=row["context"])  # fmt: skip
    trained(layer)
    x = torch.randn(*row["batch"], 12)
    y = layer(x)
    frozen = layer.freeze()
    assert layer.fan_in == 3
    assert frozen.in_shape == (12,)
    assert len(frozen.values) <= 21
    torch.testing.assert_close(y, F.linear(x, frozen.dense(), layer.bias))
    torch.testing.assert_close(frozen(x), y)
    if not row["free"]:
        assert (frozen.dense() != 0).sum(1).max() <= 3


@pytest.mark.parametrize("options", [{}, {"free": True}, {"kernel": "student"}, {"wirings": 2}])
def test_what_is_trained_is_what_is_evaluated(options):
    layer, x = linear(**options), torch.randn(9, 12)
    trained(layer)
    before = layer(x)
    assert torch.equal(layer.eval()(x), before)
    assert torch.equal(layer(x, mode="straight-through"), before)


@pytest.mark.parametrize("options", [{}, {"context": 3}, {"in_shape": (3, 4), "free": True}])
def test_values_learn_from_the_rounded_wiring_and_places_from_a_sampled_one(options):
    layer, x = linear(**options).double(), torch.randn(9, 12, dtype=torch.float64)
    trained_places = ("source.raw_means", "source.raw_variances")
    got = gradients(layer, x, "straight-through")
    rounded, sampled = gradients(layer, x, "rounded"), gradients(layer, x, "sampled")
    assert_same(got, {n: (sampled if n in trained_places else rounded)[n] for n in got})
    assert all(got[name].any() for name in trained_places)


def test_the_start_is_that_of_a_linear_layer():
    layer = SparseLinear(400, 300, fan_in=16, seed=0)
    for tensor in (layer.source.values, layer.bias):
        assert tensor is not None
        assert tensor.abs().max() <= 1 / 4
        torch.testing.assert_close(
            tensor.std(), torch.tensor(1 / 4 / math.sqrt(3)), rtol=0.1, atol=0
        )
    frozen = layer.freeze()
    assert len(frozen.values) == 300 * 16  # no place twice
    reads = torch.bincount(frozen.cols, minlength=400)
    assert reads.min() == reads.max() == 12  # all inputs equally often


def starting(x: Tensor, **options: Any) -> tuple[Tensor, SparseLinear]:
    """The inputs that each output reads after a first pass, in order, and the layer."""
    layer = SparseLinear(12, 40, fan_in=3, in_shape=(3, 4), seed=0, **options)
    layer(x)
    held = layer.nearest_places(layer.wiring().means)
    return (held[:, 0] * 4 + held[:, 1]).view(40, 3), layer


def test_wires_start_at_inputs_that_vary_in_the_first_batch():
    x, vary = torch.ones(9, 12), [1, 2, 6, 7, 11]
    x[:, vary] = torch.randn(9, 5, generator=seeded(0)) * torch.tensor([1.0, 1, 1, 1, 4])
    places, layer = starting(x)
    assert set(places.flatten().tolist()) == set(vary)
    assert (places.diff(dim=1) > 0).all(), "an output reads an input twice"
    counts = places.flatten().bincount(minlength=12)
    # Input 11 has half of all deviations, but each output reads it once.
    assert counts[11] == 40
    assert counts[vary[:4]].float().std() < 10

    evenly, _ = starting(x, start="even")
    assert evenly.flatten().bincount(minlength=12).tolist() == [10] * 12
    layer(torch.randn(9, 12))  # later batches choose nothing
    again = layer.nearest_places(layer.wiring().means)
    assert torch.equal((again[:, 0] * 4 + again[:, 1]).view(40, 3), places)


def test_the_start_waits_for_a_batch_and_a_loaded_state_needs_none():
    layer, other, x = linear(), linear(seed=1), torch.randn(5, 12)
    layer.eval()(x)
    layer.train()(x[:0])
    assert layer.source.waits
    layer(x)
    assert not layer.source.waits
    other.load_state_dict(layer.state_dict())
    other(torch.randn(5, 12) * torch.arange(12))
    assert_same(other.state_dict(), layer.state_dict(), rtol=0, atol=0)
    layer.source.reset_parameters()
    assert layer.source.waits


def test_a_seed_repeats_the_start():
    assert_same(linear().state_dict(), linear().state_dict(), rtol=0, atol=0)
    assert not torch.equal(linear(seed=1).source.pace.places, linear().source.pace.places)


def test_it_is_made_on_a_device_and_in_a_dtype():
    assert linear(device="meta")(torch.empty(2, 12, device="meta")).shape == (2, 7)
    layer, x = linear(dtype=torch.bfloat16), torch.randn(4, 12)
    torch.testing.assert_close(layer(x.bfloat16()).float(), linear()(x), rtol=0.02, atol=0.02)


def test_it_can_be_transformed():
    layer, x = linear(), torch.randn(4, 12)
    layer(x)  # the first pass in training chooses the start
    parameters: dict[str, Any] = dict(layer.named_parameters())

    def loss(parameters: Mapping[str, Tensor]) -> Tensor:
        return torch.func.functional_call(layer, dict(parameters), (x,)).square().sum()

    found: Any = torch.func.grad(loss)(parameters)
    loss(parameters).backward()
    for name in ("bias", "source.values"):
        torch.testing.assert_close(found[name], parameters[name].grad)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"fan_in": None}, TypeError, "density or fan_in must be given, one of them; got neither"),
        ({"density": 0.1}, TypeError, "density or fan_in must be given, one of them; got both"),
        ({"fan_in": 13}, ValueError, "fan_in must be at most in_features, 12; got 13"),
        ({"fan_in": 0}, ValueError, "fan_in must be at least 1; got 0"),
        ({"fan_in": None, "density": 1.5}, ValueError, "density must be between 0 and 1; got 1.5"),
        ({"in_shape": (3, 5)}, ValueError, r"in_shape must have 12 elements.*; got \(3, 5\)"),
        ({"variance": -1.0}, ValueError, "variance must be between 0 and"),
        ({"edge": "wrap"}, ValueError, "edge must be None with a schedule; got 'wrap'"),
    ],
)
def test_bad_arguments_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        linear(**options)


def test_an_input_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"in_features 12; got \(2, 13\)"):
        linear()(torch.ones(2, 13))


def test_without_a_schedule_it_is_the_layer_of_the_paper():
    layer = linear(schedule=None)
    assert layer.train_mode == "sampled"
    assert not hasattr(layer.source, "schedule")
    assert SparseLayer((5,), (4,), 3, schedule=Schedule(end=9), train_mode="sampled").training


def test_rewiring_moves_wires_that_share_a_place():
    layer = SparseLayer((9,), (8,), tuples=6, seed=0)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    rewire = Rewire(layer, optimizer, every=4)
    layer.source.pace.places.copy_(torch.tensor([0.5, 0.5]))
    for _ in range(60):
        x = torch.randn(32, 9)
        (layer(x) - x[:, :8]).square().sum().backward()
        optimizer.step()
        rewire.step()
    assert len(layer.nearest_places(layer.wiring().means).unique(dim=0)) == 6


@pytest.mark.parametrize("rate", [1e-3, 1e-2])
@pytest.mark.parametrize("in_shape", [None, (8, 8)])
def test_a_model_learns_digits_with_the_defaults(in_shape, rate):
    data: Any = load_digits()
    x, y = torch.tensor(data.data).float() / 16, torch.tensor(data.target)
    torch.manual_seed(0)
    model = nn.Sequential(
        SparseLinear(64, 128, density=0.05, in_shape=in_shape), nn.ReLU(), nn.Linear(128, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(300):
        some = torch.randint(1400, (128,))
        loss = F.cross_entropy(model(x[some]), y[some])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    right = model.eval()(x[1400:]).argmax(1) == y[1400:]
    assert right.float().mean() > (0.75 if rate < 1e-2 else 0.88)


def test_all_places_of_a_full_template_are_taken_once():
    layer = SparseLayer((5,), (3,), template=fan_in((3,), (5,), 5), seed=0)
    assert len(layer.freeze().values) == 15
