"""The pointer: against a plain loop, moved with what it points at, and as a source of glimpses."""

import math
from typing import Any

import pytest
import torch
from tests.helpers import seeded
from torch import Tensor
from torch.autograd import gradcheck
from torch.func import functional_call

import sparsewire as sw
from sparsewire_lab.attention.finder import Finder


def trained(
    channels: int = 1, glimpses: int = 1, *, cover: float | None = 0.8, told: bool = True
) -> Finder:
    """A finder that has left its zeros: random scores, and if asked random boxes."""
    find = Finder(channels, glimpses, cover=cover)
    with torch.no_grad():
        find.scores.weight.normal_(0, 0.3)
        if told:
            for parameter in (*find.norm.parameters(), *find.boxes.parameters()):
                parameter.normal_(0, 0.5)
    return find


def told_always(numbers: list[float], glimpses: int = 1, *, cover: float | None = 0.8) -> Finder:
    """A finder that points at the middle and tells the same of every image."""
    find = Finder(1, glimpses, cover=cover)
    with torch.no_grad():
        find.boxes.bias.copy_(torch.tensor(numbers))
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
    find = Finder(4)
    x = torch.randn(8, 4, 64, 64)
    layers: Any = find.features
    for pair in layers:
        assert not pair.first.bias.any()
        assert not pair.second.bias.any()
        fan = pair.first.in_channels * 9
        assert pair.first.weight.var().item() == pytest.approx(2 / fan, rel=0.2)
    found = find.features(x)
    assert found.std(0).mean() > 0.1 * found.mean()


# What it points at.


def pointed_slowly(find: Finder, image: Tensor) -> list[list[float]]:
    """Of one image, cell by cell: centre and logarithm of the growth of each glimpse.

    The way from where it points to a centre is told in boxes.
    """
    found = find.features(image.unsqueeze(0))[0].tolist()
    channels, rows, cols = range(len(found)), range(len(found[0])), range(len(found[0][0]))
    weights = find.scores.weight.flatten().tolist()
    height, width = image.shape[-2:]
    total, down, right, mean = 0.0, 0.0, 0.0, [0.0 for _ in channels]
    for i in rows:
        for j in cols:
            share = math.exp(sum(weights[c] * found[c][i][j] for c in channels))
            total += share
            down += share * (i - (len(rows) - 1) / 2) * 8 / height
            right += share * (j - (len(cols) - 1) / 2) * 8 / width
            mean = [mean[c] + share * found[c][i][j] for c in channels]
    mean = [each / total for each in mean]
    middle = sum(mean) / len(mean)
    deviation = math.sqrt(sum((each - middle) ** 2 for each in mean) / len(mean) + find.norm.eps)
    scale, shift = find.norm.weight.tolist(), find.norm.bias.tolist()
    normal = [(mean[c] - middle) / deviation * scale[c] + shift[c] for c in channels]
    told = []
    for weight, bias in zip(find.boxes.weight.tolist(), find.boxes.bias.tolist(), strict=True):
        told.append(bias + sum(weight[c] * normal[c] for c in channels) / math.sqrt(len(normal)))
    each = len(told) // find.glimpses
    answers = []
    for g in range(find.glimpses):
        one = told[g * each : (g + 1) * each]
        sides = [1.0, 1.0] if find.cover is None else [find.cover * math.exp(n) for n in one[2:]]
        answers.append(
            [down / total + one[0] * sides[0], right / total + one[1] * sides[1], *one[2:]]
        )
    return answers


@pytest.mark.parametrize("sides", [(24, 24), (19, 44)], ids=str)
@pytest.mark.parametrize(("glimpses", "cover"), [(1, 0.6), (3, 0.6), (2, None)])
def test_boxes_and_places_are_those_of_a_plain_loop(sides, glimpses, cover):
    find = trained(2, glimpses, cover=cover).double()
    x = torch.rand(3, 2, *sides, dtype=torch.float64)
    want = []
    for image in x:
        for down, right, *sizes in pointed_slowly(find, image):
            halves = [0.3 * (math.exp(number) - 1) for number in sizes] or [0.0, 0.0]
            want += [down - halves[0], right - halves[1]]
            want += [down + halves[0], right + halves[1]] if sizes else []
    torch.testing.assert_close(find(x), torch.tensor(want, dtype=torch.float64).view(3, -1))


def bright_spots(side: int, row: int, col: int) -> Tensor:
    """A black image with something of 10 × 10 pixels in it."""
    image = torch.zeros(1, 1, side, side, dtype=torch.float64)
    image[..., row : row + 10, col : col + 10] = torch.rand(
        10, 10, dtype=torch.float64, generator=seeded(3)
    )
    return image


@pytest.mark.parametrize(("down", "right"), [(0, 1), (-2, 0), (3, -1), (2, 3)])
def test_it_follows_what_it_points_at(down, right):
    """By as many cells as that moved, since whatever is black counts next to nothing."""
    find = trained(1, 2, cover=None, told=False).double()
    with torch.no_grad():
        find.scores.weight.abs_().mul_(100)
    before = find(bright_spots(96, 45, 42))
    after = find(bright_spots(96, 45 + 8 * down, 42 + 8 * right))
    moved = torch.tensor([down, right] * 2, dtype=torch.float64) * 8 / 96
    torch.testing.assert_close(after - before, moved.unsqueeze(0), atol=1e-9, rtol=0)
    spot = torch.tensor([49.5, 46.5] * 2) / 96 - 0.5
    assert (before - spot).abs().max() < 12 / 96


def test_it_follows_by_the_share_that_stands_out():
    """Of the moved cells' shares, what is more than that of a black cell."""
    find = trained(1, 1, cover=None, told=False).double()
    with torch.no_grad():
        find.scores.weight.abs_()
    images = bright_spots(96, 45, 42), bright_spots(96, 53, 58)
    share = find.scores(find.features(images[0])).flatten().softmax(0)
    black = share[0]
    assert (share == black).sum() > 50
    standing = (share - black).sum() * torch.tensor([8, 16], dtype=torch.float64) / 96
    moved = find(images[1]) - find(images[0])
    torch.testing.assert_close(moved, standing.unsqueeze(0))
    assert moved.abs().min() > 1e-3


def test_a_score_that_all_cells_share_changes_nothing():
    find, x = trained(), torch.rand(2, 1, 32, 32)
    want = find(x)
    find.scores.register_forward_hook(lambda layer, given, scores: torch.add(scores, 7))  # pyright: ignore
    torch.testing.assert_close(find(x), want, atol=1e-5, rtol=1e-4)


# What it tells.


def test_a_box_grows_by_powers_and_keeps_its_centre():
    numbers = [0.0, 0.0, 0.7, -1.5]
    find = told_always(numbers, cover=0.4)
    look = sw.Glimpse((1, 32, 32), 3, bound="none", cover=0.4, source=find)
    first, *_, last = look.corners(torch.rand(1, 1, 32, 32))[0, 0] / 31
    torch.testing.assert_close((first + last) / 2, torch.full((2,), 0.5))
    torch.testing.assert_close(last - first, 0.4 * torch.tensor(numbers[2:]).exp())


def test_each_glimpse_has_a_box_of_its_own():
    """Without a cover, a place."""
    numbers = [0.1, -0.2, 0.5, 0.0, -0.3, 0.05, 0.0, -2.0]
    got = told_always(numbers, 2, cover=0.5)(torch.rand(3, 1, 40, 40)).view(3, 2, 2, 2)
    told = torch.tensor(numbers).view(2, 2, 2)
    centres, halves = got.mean(2), (got[:, :, 1] - got[:, :, 0]) / 2
    away = told[:, 0] * 0.5 * told[:, 1].exp()
    torch.testing.assert_close(centres, away.expand(3, 2, 2))
    torch.testing.assert_close(0.25 + halves, (0.25 * told[:, 1].exp()).expand(3, 2, 2))
    places = told_always(numbers[:4], 2, cover=None)(torch.rand(3, 1, 40, 40))
    torch.testing.assert_close(places, torch.tensor(numbers[:4]).expand(3, 4))


def test_a_box_that_becomes_small_comes_back_to_the_thing():
    away = [0.5, -0.5, 0.0, 0.0]
    far, near = (
        told_always([*away[:2], size, size], cover=0.8)(torch.rand(1, 1, 40, 40)).view(2, 2).mean(0)
        for size in (0.0, -2.0)
    )
    torch.testing.assert_close(far, torch.tensor([0.4, -0.4]))
    torch.testing.assert_close(near, far * math.exp(-2))


# Gradients and digits.


def test_gradients_are_right():
    find = trained().double()
    x = torch.rand(1, 1, 8, 16, dtype=torch.float64, requires_grad=True)
    names = ["scores.weight", "norm.bias", "boxes.weight", "boxes.bias"]
    parameters = dict(find.named_parameters())

    def call(x: Tensor, *given: Tensor) -> Tensor:
        return functional_call(find, dict(zip(names, given, strict=True)), (x,))

    assert gradcheck(call, (x, *(parameters[name] for name in names)))


@pytest.mark.parametrize("cover", [0.8, None])
def test_every_parameter_learns(cover):
    """Scores and boxes leave zero by themselves."""
    find, new = trained(cover=cover), Finder(1, cover=cover)
    find(torch.rand(4, 1, 32, 32)).square().sum().backward()
    new(torch.rand(4, 1, 32, 32))[:, 0].sum().backward()
    for parameter in (*find.parameters(), new.scores.weight, *new.boxes.parameters()):
        assert parameter.grad is not None
        assert (parameter.grad != 0).any()


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


def test_glimpses_of_a_finder_begin_over_most_of_the_image():
    look = sw.Glimpse((1, 41, 41), 17, bound="none", cover=0.8, source=Finder(1, cover=0.8))
    x = torch.rand(2, 1, 41, 41)
    points = look.eval().points(x)[0, 0]
    torch.testing.assert_close(points[-1, -1] - points[0, 0], torch.full((2,), 32.0))
    middle = (points[-1, -1] + points[0, 0]) / 2
    assert (middle - 20).abs().max() < 1
    rows, cols = points.round().long().unbind(-1)
    torch.testing.assert_close(look(x)[:, 0, 0], x[:, 0, rows, cols])


@pytest.mark.parametrize("mode", ["sampled", "expected"])
def test_gradients_of_glimpses_reach_the_finder(mode):
    find = trained(2, 3)
    look = sw.Glimpse((2, 32, 32), 4, 3, bound="none", source=find)
    out: Any = look(torch.rand(3, 2, 32, 32), mode=mode)
    assert out.shape == (3, 3, 2, 4, 4)
    out.square().sum().backward()
    for name, parameter in look.named_parameters():
        assert parameter.grad is not None, name
        assert (parameter.grad != 0).any(), name


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_saved_finder_comes_back_in_the_dtype_of_its_parameters(dtype):
    one, other = trained().to(dtype), Finder(1).to(dtype)
    x = torch.rand(2, 1, 24, 24, dtype=dtype)
    assert one(x).dtype == dtype
    assert not torch.equal(one(x), other(x))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(x), other(x))


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


def test_a_finder_of_places_is_no_source_of_boxes():
    look = sw.Glimpse((1, 16, 16), 4, bound="none", source=Finder(1, cover=None))
    with pytest.raises(ValueError, match=r"source must return \(b, 4\)"):
        look(torch.rand(3, 1, 16, 16))
