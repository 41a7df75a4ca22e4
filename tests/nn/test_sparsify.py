"""Whole models: sparse convolutions, layers that are replaced, and models that are frozen."""

from typing import Any

import pytest
import torch
from tests.helpers import pairwise
from torch import nn
from torch.nn import functional as F

import sparsewire as sw
from sparsewire import FrozenLayer, SparseConv2d, SparseLinear


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, groups=2),
        nn.Flatten(),
        nn.Sequential(nn.Linear(216, 20, bias=False), nn.ReLU()),
        nn.Linear(20, 5),
    )


@pytest.mark.parametrize(
    "row",
    pairwise(
        kernel_size=[1, 3, (3, 5)], stride=[1, (2, 3)], padding=[0, (1, 2), "valid", "same"],
        dilation=[1, (2, 1)], bias=[False, True], batch=[0, 2],
    ),
)  # fmt: skip
def test_a_convolution_equals_the_dense_one_of_its_wires(row):
    sizes = {name: row[name] for name in ("stride", "padding", "dilation")}
    if sizes["padding"] == "same":
        sizes["stride"] = 1
    layer = SparseConv2d(
        3, 4, row["kernel_size"], **sizes, density=0.3, bias=row["bias"], start="even"
    )
    x = torch.randn(row["batch"], 3, 9, 11)
    linear: Any = layer.linear
    weight = linear.freeze().dense().unflatten(1, (3, *layer.kernel_size))
    torch.testing.assert_close(layer(x), F.conv2d(x, weight, linear.bias, **sizes))
    frozen = sw.freeze(layer)
    assert isinstance(layer.linear, FrozenLayer)
    torch.testing.assert_close(frozen(x), F.conv2d(x, weight, linear.bias, **sizes))


def test_layers_are_replaced_but_the_last_one_and_all_is_told():
    lines: list[str] = []
    model = sw.sparsify(network(), 0.1, report=lines.append, seed=0)
    assert lines == [
        "0: Conv2d(2, 6) has 12 wires for 108 weights",
        "2: Conv2d(3, 6) stays",
        "4.0: Linear(216, 20) has 440 wires for 4,320 weights",
        "5: Linear(20, 5) stays",
    ]
    kinds = [type(m) for m in model.modules() if isinstance(m, SparseConv2d | SparseLinear)]
    assert kinds == [SparseConv2d, SparseLinear, SparseLinear]  # the second inside of the first
    x = torch.randn(3, 2, 8, 8)
    model(x).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    model.eval()
    y = model(x)
    torch.testing.assert_close(sw.freeze(model)(x), y)
    assert not any(isinstance(m, SparseLinear) for m in model.modules())


def test_a_model_may_be_a_layer_and_share_layers():
    assert isinstance(sw.sparsify(nn.Linear(8, 4), 0.5, keep=(), report=None), SparseLinear)
    assert isinstance(sw.freeze(SparseLinear(8, 4, fan_in=2)), FrozenLayer)
    shared = nn.Linear(4, 4)
    model: Any = sw.sparsify(nn.Sequential(shared, shared, nn.Linear(4, 4)), 0.5, report=None)
    assert model[0] is model[1]
    frozen: Any = sw.freeze(model, trainable=True)
    assert frozen[0] is frozen[1]
    assert isinstance(frozen[0].values, nn.Parameter)


def test_new_layers_are_like_the_old_ones():
    model: Any = nn.Sequential(nn.Linear(8, 4, bias=False), nn.Linear(4, 4)).double().eval()
    model = sw.sparsify(model, 0.5, report=None)
    new = model[0]
    assert new.bias is None
    assert new.source.values.dtype == torch.float64
    assert not new.training


def test_layers_that_read_the_input_are_not_frozen():
    glimpse = sw.Glimpse((1, 8, 8), 4)
    frozen: Any = sw.freeze(nn.Sequential(glimpse))
    assert frozen[0] is glimpse


@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_replaced_is_refused():
    cases: list[tuple[dict[str, Any], str]] = [
        ({"density": 0.1, "keep": ["7"]}, r"keep must name linear and convolutional .*; got 7"),
        ({"density": 3.0}, "density must be between 0 and 1; got 3"),
    ]
    for options, message in cases:
        with pytest.raises(ValueError, match=message):
            sw.sparsify(network(), **options)
    with pytest.raises(ValueError, match=r"shape \(b, channels, h, w\); got \(3, 9, 9\)"):
        SparseConv2d(3, 4, 3, density=0.1)(torch.ones(3, 9, 9))
