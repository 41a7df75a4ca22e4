"""Frames: grids of points against their definitions, and where they start."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from sparsewire.nn.frames import (
    BOUNDS,
    COUNTS,
    FRAMES,
    Bound,
    Frame,
    corners_of,
    frame_points,
    start_numbers,
    start_of_all,
)


def corners_by_hand(values: Tensor, frame: Frame, bound: Bound) -> Tensor:
    """Top left and right, bottom left and right, (2, 2, 2)."""
    affine = frame == "affine"
    if bound == "corners":
        bounded = torch.cat([values[:2].sigmoid(), values[2:].tanh() / 2])
        values = bounded if affine else values.sigmoid()
    if affine:
        centre, down, right = values.view(3, 2)
        corners = torch.stack([centre + i * down + j * right for i in (-1, 1) for j in (-1, 1)])
    else:
        corners = torch.cartesian_prod(values[::2], values[1::2]) if frame == "box" else values
    return corners.view(2, 2, 2)


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize(("rows", "cols"), [(2, 2), (4, 3), (1, 5), (5, 1), (1, 1)])
def test_every_point_lies_between_the_corners(frame, bound, rows, cols):
    """Along the upper and the lower side first, then from one to the other: point by point."""
    values = torch.randn(3, COUNTS[frame], dtype=torch.float64)
    grid = frame_points(values, frame, bound, rows, cols)
    assert grid.shape == (3, rows, cols, 2)
    for one, its in zip(values, grid, strict=True):
        corners = corners_by_hand(one, frame, bound)
        for i in range(rows):
            for j in range(cols):
                down = i / (rows - 1) if rows > 1 else 0.5
                right = j / (cols - 1) if cols > 1 else 0.5
                upper, lower = ((1 - right) * side[0] + right * side[1] for side in corners)
                torch.testing.assert_close(its[i, j], (1 - down) * upper + down * lower)


@pytest.mark.parametrize("frame", FRAMES)
def test_points_are_as_exact_as_their_numbers(frame):
    """On 400 pixels: half a thousandth of one, in float32 and whatever products are rounded to."""
    values = torch.randn(50, COUNTS[frame], dtype=torch.float64)
    exact = frame_points(values.float().double(), frame, "corners", 32, 32)
    got = frame_points(values.float(), frame, "corners", 32, 32)
    assert got.dtype == torch.float32
    assert ((got - exact).abs() * 399).max() < 5e-4


def test_points_made_without_gradients_do_not_spoil_later_ones():
    """What is kept between calls must not be a tensor of inference."""
    values = torch.randn(4)
    with torch.inference_mode():
        frame_points(values.clone(), "box", "corners", 7, 11)
    values.requires_grad_()
    frame_points(values, "box", "corners", 7, 11).sum().backward()
    assert values.grad is not None


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("cover", [0.3, 0.8, 0.95])
def test_frames_start_in_the_middle_and_cover_what_is_asked(frame, bound, cover):
    grid = frame_points(start_numbers(frame, bound, cover), frame, bound, 2, 2)
    where = grid.sigmoid() if bound == "points" else grid
    low, high = (1 - cover) / 2, (1 + cover) / 2
    want = torch.tensor([[[low, low], [low, high]], [[high, low], [high, high]]])
    torch.testing.assert_close(where, want, atol=1e-6, rtol=0)


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("bound", ["corners", "none"])
def test_frames_start_beside_the_middle_if_asked(frame, bound):
    numbers = start_numbers(frame, bound, 0.5, (0.2, -0.15))
    corners = corners_of(frame_points(numbers, frame, bound, 2, 2))
    want = torch.tensor([[0.45, 0.1], [0.45, 0.6], [0.95, 0.1], [0.95, 0.6]])
    torch.testing.assert_close(corners, want)


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("bound", ["corners", "none"])
@pytest.mark.parametrize(("count", "rows", "cols"), [(1, 4, 6), (2, 8, 3), (7, 5, 5), (3, 1, 2)])
def test_frames_that_start_together_cover_the_same_share(frame, bound, count, rows, cols):
    """Each as large as asked, inside the image, and moved by parts of a step: a lattice."""
    cover = 0.6
    all_numbers = start_of_all(frame, bound, cover, count, rows, cols)
    assert all_numbers.shape == (count, COUNTS[frame])
    golden = (5**0.5 - 1) / 2
    for number, numbers in enumerate(all_numbers):
        first, *_, last = corners_of(frame_points(numbers, frame, bound, 2, 2))
        torch.testing.assert_close(last - first, torch.full((2,), cover))
        down = (number * golden % 1 + 0.5 / count) % 1 - 0.5
        right = (number + 0.5) / count - 0.5
        steps = [min(cover / max(1, n - 1), (1 - cover) / 2) for n in (rows, cols)]
        middle = torch.tensor([0.5 + down * steps[0], 0.5 + right * steps[1]])
        torch.testing.assert_close((first + last) / 2, middle)


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("bound", BOUNDS)
def test_gradients_reach_every_number(frame, bound):
    values = torch.randn(2, COUNTS[frame], dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda t: frame_points(t, frame, bound, 3, 2), values)
    frame_points(values, frame, bound, 3, 2).square().sum().backward()
    assert values.grad is not None
    assert (values.grad != 0).all()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("given", "name"),
    [(("round", "corners", 0.8), "frame"), (("box", "all", 0.8), "bound")]
    + [(("box", "corners", cover), "cover") for cover in (0.0, 1.0, -1.0)]
    + [(("box", "none", 0.8, shift), "shift") for shift in ((0.11, 0.0), (0.0, -0.11))],
)
def test_bad_starts_are_refused(given, name):
    with pytest.raises(ValueError, match=f"{name} must be"):
        start_numbers(*given)
