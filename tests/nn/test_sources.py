"""Free parameters, and constraints against the operations they are named after."""

import re
from typing import Any

import pytest
import torch
from scipy import stats
from tests.helpers import assert_same, seeded
from tests.nn.dense import MODES, matrix_of, random_input, tuples_of, weights_of
from torch.nn import functional as F

from sparsewire import (
    Banded,
    BlockDiagonal,
    Convolution,
    FreeTuples,
    HyperLayer,
    LowerTriangular,
    Sample,
)

in_all_modes = pytest.mark.parametrize("mode", MODES)


# Free parameters.


def test_raw_numbers_start_from_the_normal_distribution():
    source = FreeTuples(5000, 2, seed=0)
    for name, tensor in source.named_parameters():
        result = stats.kstest(tensor.detach().flatten().numpy(), "norm")
        assert result.pvalue > 0.01, name
    means = HyperLayer(source, (101,), (51,)).wiring().means
    torch.testing.assert_close(means.mean(0), torch.tensor([25.0, 50.0]), rtol=0.02, atol=0)


@pytest.mark.parametrize("edge", ["clamp", "wrap"])
def test_other_edges_start_inside_the_unit_interval(edge):
    raw = FreeTuples(5000, 2, edge=edge, seed=0).raw_means
    assert 0 < raw.min() < raw.max() < 1
    sigmoid = FreeTuples(5000, 2, seed=0).raw_means
    torch.testing.assert_close(raw, sigmoid.sigmoid())


def test_drawing_anew():
    source = FreeTuples(6, 2, seed=3)
    first = {name: tensor.clone() for name, tensor in source.state_dict().items()}
    source.reset_parameters(seeded(4))
    assert not torch.equal(source.raw_means, first["raw_means"])
    source.reset_parameters(seeded(3))
    assert_same(source.state_dict(), first, rtol=0, atol=0)


def test_the_options_of_every_constraint():
    options: dict[str, Any] = {"values": 2.0, "learn_values": False, "edge": "wrap", "seed": 0}
    options["schedule"] = None
    sources = LowerTriangular(6, **options), Banded(1, 2, 6, **options)
    for source in (*sources, BlockDiagonal(2, 3, **options), Convolution((3,), 6, **options)):
        assert source.edge == "wrap"
        assert source.values.tolist() == [2.0] * 6
        assert not source.values.requires_grad


CONSTRAINTS: dict[str, tuple[FreeTuples, Any, Any]] = {
    "lower": (LowerTriangular(6, seed=0), (8,), (8,)),
    "banded": (Banded(1, 2, 6, seed=0), (8,), (8,)),
    "blocks": (BlockDiagonal(2, 3, seed=0), (8,), (8,)),
    "convolution": (Convolution((31,), 6, seed=0), (1, 40), (1, 40)),
}


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_constraints_train_what_they_evaluate_from_an_even_start(name):
    source, in_shape, out_shape = CONSTRAINTS[name]
    layer, x = HyperLayer(source, in_shape, out_shape), torch.randn(5, *in_shape)
    torch.testing.assert_close(layer(x), layer.eval()(x))
    assert source.sizes == layer.space()
    held = layer.nearest_places(layer.wiring().means)
    assert len({tuple(place) for place in held[: source.together].tolist()}) == source.together


def test_only_the_first_layer_of_a_source_lets_it_start():
    source = Banded(1, 2, 6, seed=0)
    HyperLayer(source, (8,), (8,))
    before = {name: tensor.clone() for name, tensor in source.state_dict().items()}
    HyperLayer(source, (9,), (9,))
    assert_same(source.state_dict(), before, rtol=0, atol=0)


# Convolutions.


CONVOLUTIONS: dict[str, dict[str, Any]] = {
    "plain": {"kernel": (3,), "size": (8,)},
    "even": {"kernel": (4,), "size": (7,)},
    "stride": {"kernel": (3,), "size": (8,), "stride": 2, "padding": 0},
    "wide": {"kernel": (9,), "size": (5,), "padding": 4},
    "far out": {"kernel": (2,), "size": (3,), "padding": 5, "stride": 3},
    "point": {"kernel": (1,), "size": (4,), "padding": 0},
    "image": {"kernel": (3, 5), "size": (6, 7)},
    "image, stride": {"kernel": (3, 2), "size": (7, 6), "stride": 2, "padding": (1, 0)},
}


@in_all_modes
@pytest.mark.parametrize("channels", [(1, 1), (3, 2)], ids=str)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_equals_that_of_torch(name, channels, mode):
    options = dict(CONVOLUTIONS[name])
    size, kernel = options.pop("size"), options["kernel"]
    source = Convolution(**options, tuples=6, seed=0)
    stride = options.get("stride", 1)
    padding = options.get("padding", tuple(k // 2 for k in kernel))
    convolve: Any = F.conv1d if len(kernel) == 1 else F.conv2d
    x = random_input(2, channels[1], *size)
    shape = convolve(x, torch.ones(*channels, *kernel).double(), None, stride, padding).shape[2:]

    in_shape, out_shape = (channels[1], *size), (channels[0], *shape)
    layer = HyperLayer(source, in_shape, out_shape, context=3).double()
    weights = weights_of(layer.sample(mode=mode, generator=seeded(1)), (*channels, *kernel))
    expected = convolve(x, weights, None, stride, padding)
    torch.testing.assert_close(layer(x, mode=mode, generator=seeded(1)), expected)
    assert weights.count_nonzero() > 0
    torch.testing.assert_close(weights.sum(), tuples_of(layer).values.sum())


def test_the_image_may_change_its_size_with_the_positions_fixed():
    layer = HyperLayer(Convolution((3,), tuples=4, stride=2, padding=0), (2, None), (3, 4))
    assert layer(torch.randn(5, 2, 9)).shape == layer(torch.randn(5, 2, 10)).shape == (5, 3, 4)
    with pytest.raises(ValueError, match=re.escape("out_shape must be (channels, 5)")):
        layer(torch.randn(5, 2, 11))


# Matrices.


@in_all_modes
@pytest.mark.parametrize("context", [None, 1, 2])
@pytest.mark.parametrize(("blocks", "height", "width"), [(1, 2, 3), (3, 2, 4), (2, 1, 1)])
def test_a_block_diagonal_matrix_holds_the_blocks_on_its_diagonal(
    blocks, height, width, context, mode
):
    source = BlockDiagonal(blocks, tuples=4, seed=0)
    shapes = (blocks * width,), (blocks * height,)
    layer = HyperLayer(source, *shapes, context=context).double()
    draw = layer.sample(mode=mode, generator=seeded(1))
    chunks = zip(*(tensor.chunk(blocks) for tensor in draw), strict=True)
    parts = [weights_of(Sample(*chunk), (height, width)) for chunk in chunks]
    got = matrix_of(layer, mode=mode, generator=seeded(1))
    torch.testing.assert_close(got, torch.block_diag(*parts))
    values = tuples_of(layer).values.view(blocks, 4).sum(1)
    torch.testing.assert_close(torch.stack([part.sum() for part in parts]), values)
