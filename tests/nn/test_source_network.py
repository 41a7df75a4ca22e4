"""The default source of glimpses: its sizes, and what it accepts."""

from typing import Any

import pytest
import torch
from torch import nn

from sparsewire.nn.source_network import SourceNetwork, conv_features, grid_for


def test_the_paper_s_network_has_its_sizes():
    net = SourceNetwork(channels=1, outputs=4)
    convolutions = [m for m in net.features.modules() if isinstance(m, nn.Conv2d)]
    assert [m.out_channels for m in convolutions] == [32, 32, 64, 64, 128, 128]
    linear = [m for m in net.head if isinstance(m, nn.Linear)]
    assert [(m.in_features, m.out_features) for m in linear] == [(18432, 512), (512, 512), (512, 4)]
    x = torch.rand(1, 1, 100, 100)
    assert net.features(x).shape == (1, 128, 12, 12)
    assert torch.equal(net(x), net.head(net.features(x).flatten(1)))


def test_pooling_before_the_activation_changes_nothing():
    pairs: Any = conv_features(1).double()
    x = torch.rand(2, 1, 100, 100, dtype=torch.float64)
    y = x
    for pair in pairs:
        y = pair.second(pair.first(y).relu()).relu()
        y = nn.functional.max_pool2d(y, pair.pool)
    torch.testing.assert_close(pairs(x), y)
    weights = torch.randn_like(y)
    ours, theirs = (
        torch.autograd.grad((each * weights).sum(), list(pairs.parameters()))
        for each in (pairs(x), y)
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("sides", "grid"),
    [((8, 8), [1, 1]), ((16, 24), [2, 3]), ((28, 60), [3, 7]), ((31, 100), [3, 12])],
    ids=str,
)
def test_the_grid_is_the_feature_map_at_most_that_of_the_paper_s_images(sides, grid):
    assert grid_for(sides) == grid
    assert conv_features(2)(torch.rand(3, 2, *sides)).shape == (3, 128, *grid)
    assert grid_for([400, None]) == [12, 12]
    assert grid_for([7, 8]) == [1, 1]


def test_larger_feature_maps_are_pooled_to_the_grid():
    net = SourceNetwork(channels=1, outputs=3, grid=(2, 3)).double()
    x = torch.rand(2, 1, 32, 48, dtype=torch.float64)
    pooled = nn.functional.max_pool2d(net.features(x), 2)
    torch.testing.assert_close(net(x), net.head(pooled.flatten(1)))


def test_numbers_have_all_their_digits_under_autocast():
    net = SourceNetwork(channels=1, outputs=40, grid=(2, 2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = net(torch.rand(4, 1, 16, 16))
    assert y.dtype == torch.float32
    assert not torch.equal(y, y.bfloat16().float())


def test_an_empty_batch_gives_an_empty_result():
    for grid in ((2, 2), (1, 1)):
        assert SourceNetwork(1, 4, grid)(torch.rand(0, 1, 16, 16)).shape == (0, 4)


def test_bad_arguments_and_images_that_are_too_small_are_refused():
    for bad in ({"channels": 0}, {"outputs": 0}, {"grid": (3, 0)}, {"grid": (0, 3)}):
        words: dict[str, Any] = {"channels": 1, "outputs": 4, "grid": (3, 3), **bad}
        with pytest.raises(ValueError, match=f"{next(iter(bad))} must be at least 1; got 0"):
            SourceNetwork(**words)
    for sides in ((7, 20), (20, 7), (1, 1)):
        with pytest.raises(ValueError, match="x must have at least 8 rows and columns"):
            SourceNetwork(1, 4)(torch.rand(2, 1, *sides))
