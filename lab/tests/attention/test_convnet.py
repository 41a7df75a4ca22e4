"""The paper's network: its sizes, and what its convolutions find, step by step."""

from typing import Any

import pytest
import torch
from torch import nn

from sparsewire_lab.attention.convnet import REDUCED, WIDTH, ConvNet, conv_features, grid_for


def test_the_paper_s_network_has_its_sizes():
    net = ConvNet(channels=1, outputs=4)
    convolutions = [m for m in net.features.modules() if isinstance(m, nn.Conv2d)]
    assert [m.out_channels for m in convolutions] == [32, 32, 64, 64, 128, 128]
    linear = [m for m in net.head if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linear] == [(18432, 512), (512, 512), (512, 4)]
    x = torch.rand(1, 1, 100, 100)
    assert net.features(x).shape == (1, 128, 12, 12)
    assert torch.equal(net(x), net.head(net.features(x).flatten(1)))


def test_pooling_before_the_activation_changes_nothing():
    net = ConvNet(channels=1, outputs=4).double()
    x = torch.rand(2, 1, 100, 100, dtype=torch.float64)
    pairs: Any = net.features
    found = x
    for pair in pairs:
        found = pair.second(pair.first(found).relu()).relu()
        found = nn.functional.max_pool2d(found, pair.pool)
    torch.testing.assert_close(net.features(x), found)
    weights = torch.randn_like(found)
    ours, theirs = (
        torch.autograd.grad((y * weights).sum(), list(net.features.parameters()))
        for y in (net.features(x), found)
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("sides", [(8, 8), (16, 24), (31, 100), (60, 15)], ids=str)
def test_convolutions_reduce_every_image_alike(sides):
    found = conv_features(2)(torch.rand(3, 2, *sides))
    assert found.shape == (3, WIDTH, *(n // REDUCED for n in sides))


def test_what_the_convolutions_find_moves_with_the_image():
    """By one cell for `REDUCED` pixels, where no border is in sight."""
    features = conv_features(1).double()
    x = torch.rand(1, 1, 16 * REDUCED, 16 * REDUCED, dtype=torch.float64)
    found, moved = features(x), features(x.roll((2 * REDUCED, -REDUCED), (2, 3)))
    middle = slice(6, 10)
    torch.testing.assert_close(moved[..., middle, middle], found[..., 4:8, 7:11])
    assert not torch.allclose(moved[..., middle, middle], found[..., middle, middle])


@pytest.mark.parametrize(
    ("sides", "grid"),
    [([100, 100], [12, 12]), ([28, 60], [3, 7]), ([400, None], [12, 12]), ([7, 8], [1, 1])],
    ids=str,
)
def test_the_grid_is_what_is_left_of_an_image_and_no_more_than_of_the_paper_s(sides, grid):
    assert grid_for(sides) == grid


def test_images_that_give_more_are_pooled_to_the_grid():
    net = ConvNet(channels=1, outputs=3, grid=(2, 3)).double()
    x = torch.rand(2, 1, 32, 48, dtype=torch.float64)
    pooled = nn.functional.max_pool2d(net.features(x), 2)
    torch.testing.assert_close(net(x), net.head(pooled.flatten(1)))


def test_numbers_have_all_their_digits_under_autocast():
    net = ConvNet(channels=1, outputs=40, grid=(2, 2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = net(torch.rand(4, 1, 16, 16))
    assert got.dtype == torch.float32
    assert not torch.equal(got, got.bfloat16().float())


@pytest.mark.parametrize(
    ("name", "value"), [("channels", 0), ("outputs", 0), ("grid", (3, 0)), ("grid", (0, 3))]
)
def test_bad_arguments_are_named(name, value):
    words: dict[str, Any] = {"channels": 1, "outputs": 4, "grid": (3, 3), name: value}
    with pytest.raises(ValueError, match=f"{name} must be at least 1; got 0"):
        ConvNet(**words)
