"""The pointer: against a plain loop, moved with what it points at, and as a source of glimpses."""

import math
from typing import Any

import pytest
import torch
from tests.helpers import seeded
from torch import Tensor
from torch.autograd import gradcheck
from torch.func import functional_call
from torch.nn.functional import layer_norm

import sparsewire as sw
from sparsewire_lab.attention.finder import Finder


def trained(
    channels: int = 1, glimpses: int = 1, *, cover: float | None = 0.8, boxes: bool = True
) -> Finder:
    """A finder that has left its zeros: random scores, and if asked random boxes."""
    find = Finder(channels, glimpses, cover=cover)
    with torch.no_grad():
        find.scores.weight.normal_(0, 0.3)
        if boxes:
            for parameter in (*find.norm.parameters(), *find.boxes.parameters()):
                parameter.normal_(0, 0.5)
    return find


# Before training.


@pytest.mark.parametrize("sides", [(8, 8), (16, 40), (96, 64), (9, 15), (28, 100)], ids=str)
@pytest.mark.parametrize(("cover", "numbers"), [(0.8, 4), (0.3, 4), (None, 2)])
def test_it_returns_zeros_before_training(sides, cover, numbers):
    got = Finder(3, 2, cover=cover)(torch.rand(4, 3, *sides))
    assert got.shape == (4, 2 * numbers)
    torch.testing.assert_close(got, torch.zeros_like(got), atol=1e-6, rtol=0)


def test_convolutions_are_drawn_after_he_et_al():
    """Of noise they keep the second moment, and biases are zero."""
    layers: Any = Finder(4).features
    for pair in layers:
        assert not pair.first.bias.any()
        assert not pair.second.bias.any()
        fan = pair.first.in_channels * 9
        assert pair.first.weight.var().item() == pytest.approx(2 / fan, rel=0.2)


# What it points at.


def boxes_by_a_loop(find: Finder, image: Tensor) -> Tensor:
    """Of one image, cell by cell: (glimpses, 4) boxes, or (glimpses, 2) places."""
    features = find.features(image.unsqueeze(0))[0]
    channels, rows, cols = features.shape
    height, width = image.shape[-2:]
    total, place, mean = 0.0, torch.zeros(2), torch.zeros(channels)
    for i in range(rows):
        for j in range(cols):
            share = (find.scores.weight.flatten() @ features[:, i, j]).exp()
            down, right = (i - (rows - 1) / 2) * 8 / height, (j - (cols - 1) / 2) * 8 / width
            total = total + share
            place = place + share * torch.tensor([down, right])
            mean = mean + share * features[:, i, j]
    normal = layer_norm(mean / total, mean.shape, find.norm.weight, find.norm.bias)
    numbers = find.boxes.weight @ normal / math.sqrt(channels) + find.boxes.bias
    answers = []
    for one in numbers.view(find.glimpses, -1):
        if find.cover is None:
            answers.append(place / total + one)
            continue
        sides = find.cover * one[2:].exp()
        centre = place / total + one[:2] * sides
        half = (sides - find.cover) / 2
        answers.append(torch.cat([centre - half, centre + half]))
    return torch.stack(answers)


@pytest.mark.parametrize("sides", [(24, 24), (19, 44)], ids=str)
@pytest.mark.parametrize(("glimpses", "cover"), [(1, 0.6), (3, 0.6), (2, None)])
def test_boxes_and_places_are_those_of_a_plain_loop(sides, glimpses, cover):
    find = trained(2, glimpses, cover=cover).double()
    x = torch.rand(3, 2, *sides, dtype=torch.float64)
    want = torch.stack([boxes_by_a_loop(find, image) for image in x])
    torch.testing.assert_close(find(x), want.flatten(1))


def bright_spots(side: int, row: int, col: int) -> Tensor:
    """A black image with something of 10 × 10 pixels in it."""
    image = torch.zeros(1, 1, side, side, dtype=torch.float64)
    image[..., row : row + 10, col : col + 10] = torch.rand(
        10, 10, dtype=torch.float64, generator=seeded(3)
    )
    return image


@pytest.mark.parametrize("sharp", [1, 100])
@pytest.mark.parametrize(("down", "right"), [(0, 1), (-2, 0), (1, 2), (1, -1)])
def test_it_follows_what_it_points_at_by_the_share_that_stands_out(down, right, sharp):
    """By as many cells as that moved, if whatever is black counts next to nothing."""
    find = trained(cover=None, boxes=False).double()
    with torch.no_grad():
        find.scores.weight.abs_().mul_(sharp)
    image, moved = bright_spots(96, 45, 42), bright_spots(96, 45 + 8 * down, 42 + 8 * right)
    share = find.scores(find.features(image)).flatten().softmax(0)
    black = share[0]
    assert (share == black).sum() > 50
    stands_out = (share - black).sum()
    want = stands_out * torch.tensor([[down, right]], dtype=torch.float64) * 8 / 96
    torch.testing.assert_close(find(moved) - find(image), want, atol=1e-9, rtol=1e-6)
    if sharp > 1:
        assert stands_out > 1 - 1e-6
        spot = torch.tensor([49.5, 46.5]) / 96 - 0.5
        assert (find(image) - spot).abs().max() < 12 / 96


# Gradients and digits.


def test_gradients_are_right():
    find = trained().double()
    x = torch.rand(1, 1, 8, 16, dtype=torch.float64, requires_grad=True)
    names = ["scores.weight", "norm.bias", "boxes.weight", "boxes.bias"]
    parameters = dict(find.named_parameters())

    def call(x: Tensor, *given: Tensor) -> Tensor:
        return functional_call(find, dict(zip(names, given, strict=True)), (x,))

    assert gradcheck(call, (x, *(parameters[name] for name in names)))


def test_positions_have_all_their_digits_under_autocast():
    find = trained(glimpses=2)
    x = torch.rand(4, 1, 64, 64)
    want = find(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert find.features(x).dtype == torch.bfloat16
        got = find(x)
    assert got.dtype == torch.float32
    assert not torch.isclose(got, got.bfloat16().float(), rtol=1e-4, atol=0).all()
    torch.testing.assert_close(got, want, atol=0.02, rtol=0)
    got.square().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == p.dtype for p in find.parameters())


# As a source.


def test_glimpses_learn_to_find_a_spot_anywhere():
    """Light in the glimpse pays; a spot where none was in training is found as well."""

    def spots(rows: Tensor, cols: Tensor) -> Tensor:
        grid = torch.arange(48.0)
        down = (grid - rows.view(-1, 1)).square().unsqueeze(2)
        right = (grid - cols.view(-1, 1)).square().unsqueeze(1)
        return (-(down + right) / 20).exp().unsqueeze(1)

    find = Finder(1, cover=0.5)
    look = sw.Glimpse((1, 48, 48), 4, bound="none", cover=0.5, source=find)
    look.layer.source.values.requires_grad_(False)
    optimizer = torch.optim.Adam(find.parameters(), lr=0.001)
    for _ in range(100):
        x = spots(10 + 12 * torch.rand(8), 10 + 28 * torch.rand(8))  # in the upper half
        optimizer.zero_grad()
        (-look(x).mean()).backward()
        optimizer.step()
    places = torch.tensor([[12.0, 14.0], [36.0, 12.0], [35.0, 36.0]])
    middles = look.eval().corners(spots(*places.T))[:, 0].mean(1)
    torch.testing.assert_close(middles, places, atol=6.0, rtol=0)


# What it refuses.


@pytest.mark.parametrize("sides", [(7, 100), (100, 7), (1, 1)])
def test_images_too_small_for_a_cell_are_refused(sides):
    message = rf"x must have at least 8 rows and columns; got \(2, 1, {sides[0]}, {sides[1]}\)"
    with pytest.raises(ValueError, match=message):
        Finder(1)(torch.rand(2, 1, *sides))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"channels": 0}, ValueError, "channels must be at least 1; got 0"),
        ({"channels": 1.5}, TypeError, "channels must be an integer; got 1.5"),
        ({"glimpses": 0}, ValueError, "glimpses must be at least 1; got 0"),
        ({"cover": 0.0}, ValueError, "cover must be between 0.001 and 0.999; got 0.0"),
        ({"cover": 1.0}, ValueError, "cover must be between 0.001 and 0.999; got 1.0"),
        ({"cover": "half"}, TypeError, "cover must be a number; got 'half'"),
    ],
)
def test_bad_arguments_are_named(given, kind, message):
    with pytest.raises(kind, match=message):
        Finder(**{"channels": 1, **given})
