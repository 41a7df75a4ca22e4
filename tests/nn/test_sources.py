# ruff: noqa: E501  # tables, one bad call a line
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


@pytest.mark.parametrize("learned", [True, False])
def test_values_given_values_counted(learned):
    source = FreeTuples(6, 2, values=0.5, learn_values=learned, value_count=4)
    assert source.values.tolist() == [0.5] * 4
    assert source.values.requires_grad is learned
    assert ("values" in dict(source.named_parameters())) is learned


def test_the_options_of_every_constraint():
    options: dict[str, Any] = {"values": 2.0, "learn_values": False, "edge": "wrap", "seed": 0}
    sources = LowerTriangular(6, **options), Banded(1, 2, 6, **options)
    for source in (*sources, BlockDiagonal(2, 3, **options), Convolution((3,), 6, **options)):
        assert source.edge == "wrap"
        assert source.values.tolist() == [2.0] * 6
        assert not source.values.requires_grad


# Any, since they are wrong on purpose.
NUMBER: Any = 3
REAL: Any = 1.5
TEXT: Any = "text"

BAD_SOURCES = [
    (lambda: FreeTuples(0, 2), ValueError, "tuples must be at least 1; got 0"),
    (lambda: FreeTuples(2, 0), ValueError, "rank must be at least 1; got 0"),
    (lambda: FreeTuples(2, 2, value_count=0), ValueError, "value_count must be at least 1; got 0"),
    (lambda: LowerTriangular(3, edge="no"), ValueError, "edge must be one of 'sigmoid', 'clamp', 'wrap'; got 'no'"),
    (lambda: Banded(-1, 0, 3), ValueError, "below must be at least 0; got -1"),
    (lambda: Banded(0, -1, 3), ValueError, "above must be at least 0; got -1"),
    (lambda: BlockDiagonal(0, 3), ValueError, "blocks must be at least 1; got 0"),
    (lambda: BlockDiagonal(2, 0), ValueError, "tuples must be at least 1; got 0"),
    (lambda: Convolution((0,), 3), ValueError, "kernel[0] must be at least 1; got 0"),
    (lambda: Convolution(NUMBER, 3), TypeError, "kernel must be a sequence of integers; got 3"),
    (lambda: Convolution((), 3), ValueError, "kernel must"),
    (lambda: Convolution((3,), 3, stride=0), ValueError, "stride must be at least 1; got 0"),
    (lambda: Convolution((3,), 3, padding=-1), ValueError, "padding must be at least 0; got -1"),
    (lambda: Convolution((3,), 3, padding=(1, 1)), ValueError, "padding must have 1 entries, one for each axis of the kernel; got (1, 1)"),
    (lambda: Convolution((3,), 3, padding=REAL), TypeError, "padding must be an integer; got 1.5"),
    (lambda: Convolution((3,), 3, padding=TEXT), TypeError, "padding must be an integer; got 'text'"),
    (lambda: FreeTuples(2, 2, seed=TEXT), TypeError, "seed must be an integer; got 'text'"),
]  # fmt: skip


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("make", "error", "message"), BAD_SOURCES, ids=[b[2] for b in BAD_SOURCES])
def test_bad_sources_are_refused(make, error, message):
    with pytest.raises(error, match=re.escape(message)):
        make()


MISFITS = [
    (LowerTriangular(3), (4, 4), (4,), "since LowerTriangular is a matrix; got (4,) and (4, 4)"),
    (Banded(1, 1, 3), (4,), (2, 2), "since Banded is a matrix; got (2, 2) and (4,)"),
    (Banded(1, 1, 3), (4,), (6,), "out_shape must be at most (5,), so that the band crosses every row; got (6,)"),
    (BlockDiagonal(2, 3), (5,), (4,), "in_shape must be divisible by 2, the blocks; got (5,)"),
    (BlockDiagonal(2, 3), (4,), (5,), "out_shape must be divisible by 2, the blocks; got (5,)"),
    (Convolution((3,), 3), (2, 8), (3, 7), "out_shape must be (channels, 8)"),
    (Convolution((3,), 3, padding=0), (2, 2), (3, 1), "out_shape must be (channels, 0)"),
    (Convolution((3,), 3), (8,), (3, 8), "in_shape must have 2 sizes, channels and one for each axis of the kernel; got (8,)"),
    (Convolution((3,), 3), (2, 8), (3, 8, 1), "out_shape must have 2 sizes, channels and one for each axis of the kernel; got (3, 8, 1)"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "in_shape", "out_shape", "message"), MISFITS, ids=[m[3] for m in MISFITS]
)
def test_shapes_that_do_not_fit_are_refused(source, in_shape, out_shape, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        HyperLayer(source, in_shape, out_shape)


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


@pytest.mark.parametrize("context", [3, 8])
def test_a_context_may_not_reach_over_blocks(context):
    with pytest.raises(ValueError, match="context must"):
        HyperLayer(BlockDiagonal(2, tuples=4), (4,), (4,), context=context)(torch.randn(4))
