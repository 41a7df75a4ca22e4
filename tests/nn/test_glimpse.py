"""Glimpses: what is cut out against slices of the image, and what learns."""

from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from sparsewire import Glimpse
from sparsewire.nn.frames import (
    BOUNDS,
    COUNTS,
    FRAMES,
    Bound,
    Frame,
    frame_points,
    start_numbers,
    start_of_all,
)
from sparsewire.nn.source_network import SourceNetwork, conv_features, grid_for


class Given(nn.Module):
    """Returns the same numbers for every image, to which the layer adds its own."""

    def __init__(self, numbers: Tensor) -> None:
        super().__init__()
        self.numbers = nn.Parameter(numbers)

    def forward(self, x: Tensor) -> Tensor:
        return self.numbers.expand(len(x), -1)


class Alone(nn.Module):
    """The same numbers for all images, without looking at them."""

    def __init__(self, numbers: Tensor) -> None:
        super().__init__()
        self.numbers = nn.Parameter(numbers)

    def forward(self) -> Tensor:
        return self.numbers.unsqueeze(0)


def fixed(numbers: Tensor, frame: Frame = "box", bound: Bound = "corners") -> Given:
    """A source after which frames have these numbers: less what a layer adds by itself."""
    numbers = numbers.view(-1, COUNTS[frame])
    start = start_of_all(frame, bound, 0.8, len(numbers), 4, 4)
    return Given((numbers - start).flatten())


def box(top: float, left: float, bottom: float, right: float, height: int, width: int) -> Tensor:
    """Numbers of a box with these first and last pixels."""
    places = torch.tensor([top, left, bottom, right])
    return (places / torch.tensor([height - 1, width - 1] * 2)).logit()


@pytest.mark.parametrize(
    ("size", "pixels"), [((5, 7), (4, 6, 8, 12)), ((5, 5), (2, 3, 18, 19))], ids=["dense", "coarse"]
)
def test_a_box_over_pixels_is_a_slice_of_the_image(size, pixels):
    x = torch.rand(3, 1, 20, 30)
    top, left, bottom, right = pixels
    down, across = (bottom - top) // (size[0] - 1), (right - left) // (size[1] - 1)
    look = Glimpse((1, 20, 30), size, source=fixed(box(top, left, bottom, right, 20, 30)))
    want = x[:, :, top : bottom + 1 : down, left : right + 1 : across]
    torch.testing.assert_close(look.eval()(x)[:, 0], want)
    corners = torch.cartesian_prod(torch.tensor(pixels[::2]), torch.tensor(pixels[1::2])).float()
    torch.testing.assert_close(look.corners(x), corners.expand(3, 1, 4, 2), atol=1e-4, rtol=0)


def test_glimpses_and_channels_stay_apart():
    x = torch.rand(2, 3, 16, 16)
    boxes = torch.stack([box(1, 2, 4, 5, 16, 16), box(8, 9, 11, 12, 16, 16)])
    look = Glimpse((3, 16, 16), 4, 2, source=fixed(boxes)).eval()
    with torch.no_grad():
        look.layer.source.values.copy_(torch.tensor([1.0, -2.0]))
    y = look(x)
    assert y.shape == (2, 2, 3, 4, 4)
    torch.testing.assert_close(y[:, 0], x[:, :, 1:5, 2:6])
    torch.testing.assert_close(y[:, 1], -2 * x[:, :, 8:12, 9:13])
    assert look.places_read == 2 * 3 * 4 * 4


def test_points_are_where_glimpses_read():
    """The pixels at the rounded points are what a rounded pass returns, in every channel."""
    x = torch.rand(3, 2, 21, 17)
    look = Glimpse((2, 21, 17), (4, 5), 3).eval()
    with torch.no_grad():
        for parameter in look.layer.source.source.parameters():
            parameter.mul_(3)  # so that images are looked at in different places
    points = look.points(x)
    assert points.shape == (3, 3, 4, 5, 2)
    assert not torch.allclose(points[0], points[1])
    rows, cols = points.round().long().unbind(-1)
    numbers = torch.arange(3).view(3, 1, 1, 1)
    pixels = torch.stack([x[numbers, channel, rows, cols] for channel in (0, 1)], dim=2)
    torch.testing.assert_close(look(x), pixels)


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("glimpses", [1, 5])
def test_frames_start_beside_each_other_over_most_of_the_image(frame, bound, glimpses):
    zeros = Given(torch.zeros(glimpses * COUNTS[frame]))
    look = Glimpse((1, 40, 30), (6, 9), glimpses, source=zeros, frame=frame, bound=bound, cover=0.7)
    numbers = start_of_all(frame, bound, 0.7, glimpses, 6, 9)
    points = frame_points(numbers, frame, bound, 6, 9)
    shares = points.sigmoid() if bound == "points" else points
    want = shares * torch.tensor([39.0, 29.0])
    torch.testing.assert_close(look.points(torch.rand(1, 1, 40, 30))[0], want)


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("bound", ["corners", "none"])
def test_gradients_reach_frames_variances_and_values(frame, bound):
    source = fixed(start_numbers(frame, bound, 0.6), frame, bound)
    look = Glimpse((1, 20, 20), 5, source=source, frame=frame, bound=bound)
    look(torch.rand(3, 1, 20, 20)).square().sum().backward()
    for name, parameter in look.named_parameters():
        assert parameter.grad is not None, name
        assert (parameter.grad != 0).all(), name


def test_a_box_follows_a_bright_spot():
    """What pays is light in the glimpse: the box shrinks around the one place that has some."""
    grid = torch.stack(torch.meshgrid(torch.arange(24.0), torch.arange(24.0), indexing="ij"))
    x = (-(grid - torch.tensor([7.0, 15.0]).view(2, 1, 1)).square().sum(0) / 20).exp()
    look = Glimpse((1, 24, 24), 4, source=fixed(start_numbers("box", "corners", 0.8)))
    look.layer.source.values.requires_grad_(False)
    optimizer = torch.optim.Adam(look.parameters(), lr=0.05)
    for _ in range(150):
        optimizer.zero_grad()
        (-look(x.expand(4, 1, 24, 24)).mean()).backward()
        optimizer.step()
    middle = look.corners(x.expand(1, 1, 24, 24))[0, 0].mean(0)
    torch.testing.assert_close(middle, torch.tensor([7.0, 15.0]), atol=1.5, rtol=0)
    assert look.eval()(x.expand(1, 1, 24, 24)).mean() > 0.5 > x.mean()


@pytest.mark.usefixtures("unchecked")
def test_sizes_may_change_between_calls():
    size: Any = numpy.int64(8)
    look = Glimpse((1, None, None), size, 2).eval()
    assert look.size == (8, 8)
    for height, width in ((24, 24), (40, 60), (100, 100)):
        x = torch.rand(2, 1, height, width)
        assert look(x).shape == (2, 2, 1, 8, 8)
        assert (look.corners(x) <= torch.tensor([height - 1, width - 1])).all()


def test_any_batch_prefix():
    look = Glimpse((2, 16, 16), 4, 3).eval()
    x = torch.rand(2, 5, 2, 16, 16)
    y = look(x)
    assert y.shape == (2, 5, 3, 2, 4, 4)
    torch.testing.assert_close(look.points(x)[1, 3], look.points(x[1, 3]))
    torch.testing.assert_close(y.flatten(0, 1), look(x.flatten(0, 1)))
    torch.testing.assert_close(y[1, 3], look(x[1, 3]))
    for empty in (x[:0, 0], x[:, :0]):
        look.train()(empty).sum().backward()
        assert look(empty).shape == look.eval()(empty).shape == (*empty.shape[:-3], 3, 2, 4, 4)
        assert look.corners(empty).shape == (*empty.shape[:-3], 3, 4, 2)


def test_glimpses_that_all_images_share_can_be_frozen():
    numbers = torch.randn(2 * COUNTS["box"])
    alone, given = (Glimpse((3, 16, 16), 4, 2, source=each(numbers)) for each in (Alone, Given))
    x = torch.rand(5, 3, 16, 16)
    assert torch.equal(alone.eval()(x), given.eval()(x))
    torch.testing.assert_close(alone.freeze()(x), given(x))
    alone.train()(x).sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in alone.parameters())
    with pytest.raises(TypeError, match="the source of this layer reads the input"):
        given.freeze()


def test_a_saved_glimpse_comes_back():
    one, other, x = *(Glimpse((1, 16, 16), 4).eval() for _ in range(2)), torch.rand(2, 1, 16, 16)
    assert not torch.equal(one.corners(x), other.corners(x))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(x), other(x))


# Callbacks on points.


def test_on_points_is_called_with_where_glimpses_look_and_changes_nothing():
    look = Glimpse((2, 21, 31), (4, 5), 3).eval()
    seen: list[Tensor] = []
    look.on_points = seen.append
    x = torch.rand(2, 4, 2, 21, 31)
    look(x)
    look.train()(x)
    assert [points.shape for points in seen] == [(2, 4, 3, 4, 5, 2)] * 2
    assert torch.equal(seen[0], seen[1])
    torch.testing.assert_close(seen[0] * torch.tensor([20.0, 30.0]), look.points(x))
    before, reads = len(seen), []
    for on_points in (seen.append, None):
        look.on_points = on_points
        torch.manual_seed(1)
        reads.append(look(x))
    assert torch.equal(*reads)
    assert len(seen) == before + 1
    assert look.on_points is None


@pytest.mark.parametrize("bound", BOUNDS)
def test_on_points_gets_shares_of_the_image_with_a_gradient(bound):
    """Those without a bound may be outside."""
    numbers = torch.tensor([-0.5, 0.25, 1.5, 0.75])
    source, seen = Given(numbers), []
    look = Glimpse((1, 9, 9), 2, source=source, bound=bound)
    look.on_points = seen.append
    look(torch.rand(3, 1, 9, 9))
    corners = start_numbers("box", bound, 0.8) + source.numbers
    top, left, bottom, right = corners if bound == "none" else corners.sigmoid()
    want = torch.stack([top, left, top, right, bottom, left, bottom, right]).view(2, 2, 2)
    torch.testing.assert_close(seen[0], want.expand(3, 1, 2, 2, 2))
    sums = (points.square().sum() for points in (seen[0], want.expand(3, 1, 2, 2, 2)))
    torch.testing.assert_close(*(torch.autograd.grad(each, source.numbers)[0] for each in sums))


# Positions as they are.


def test_boxes_beside_the_image_read_its_border():
    """Of 9 × 9 pixels, the box from −2 to 6 down and from 4 to 12 right, 5 × 5 points."""
    x = torch.rand(3, 2, 9, 9)
    numbers = torch.tensor([-2.0, 4.0, 6.0, 12.0]) / 8 - start_numbers("box", "none", 0.5)
    look = Glimpse((2, 9, 9), 5, source=Given(numbers), bound="none", cover=0.5).eval()
    rows, cols = torch.tensor([0, 0, 2, 4, 6]), torch.tensor([4, 6, 8, 8, 8])
    torch.testing.assert_close(look(x)[:, 0], x[:, :, rows[:, None], cols])
    grid = torch.stack(torch.meshgrid(rows.float(), cols.float(), indexing="ij"), dim=-1)
    torch.testing.assert_close(look.points(x), grid.expand(3, 1, 5, 5, 2), atol=1e-5, rtol=0)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"image": (28, 28)}, "image must be"),
        ({"image": (None, 28, 28)}, "image must be"),
        ({"size": (2, 3, 4)}, "size must be"),
        ({"size": 0}, "size must be at least 1"),
        ({"image": (1, 28, 7)}, r"image must have at least 8 rows and columns .* got \(1, 28, 7\)"),
        ({"glimpses": 0}, "glimpses must be at least 1"),
        ({"frame": "circle"}, "frame must be"),
        ({"bound": "nothing"}, "bound must be"),
        ({"cover": 1.0}, "cover must be"),
        ({"glimpses": 2, "source": Given(torch.zeros(4))}, r"source must return \(b, 8\)"),
    ],
)
def test_bad_arguments_are_named(words, message):
    with pytest.raises(ValueError, match=message):
        Glimpse(**{"image": (1, 28, 28), "size": 4, **words})(torch.rand(3, 1, 28, 28))


# The default source.


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


def test_the_source_of_an_empty_batch_gives_an_empty_result():
    for grid in ((2, 2), (1, 1)):
        assert SourceNetwork(1, 4, grid)(torch.rand(0, 1, 16, 16)).shape == (0, 4)


def test_bad_arguments_of_the_source_and_images_that_are_too_small_are_refused():
    for bad in ({"channels": 0}, {"outputs": 0}, {"grid": (3, 0)}, {"grid": (0, 3)}):
        words: dict[str, Any] = {"channels": 1, "outputs": 4, "grid": (3, 3), **bad}
        with pytest.raises(ValueError, match=f"{next(iter(bad))} must be at least 1; got 0"):
            SourceNetwork(**words)
    for sides in ((7, 20), (20, 7), (1, 1)):
        with pytest.raises(ValueError, match="x must have at least 8 rows and columns"):
            SourceNetwork(1, 4)(torch.rand(2, 1, *sides))
