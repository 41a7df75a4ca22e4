"""Frames: grids of points against their definitions, and where they start."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
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

numbers = st.floats(-3, 3, width=32)


def points(
    values: list[float], frame: Frame, bound: Bound = "points", rows: int = 3, cols: int = 4
) -> Tensor:
    return frame_points(torch.tensor(values, dtype=torch.float64), frame, bound, rows, cols)


@given(st.tuples(numbers, numbers, numbers, numbers))
def test_a_box_is_a_grid_between_two_corners(values):
    top, left, bottom, right = values
    grid = points(list(values), "box")
    down = torch.linspace(top, bottom, 3, dtype=torch.float64)
    across = torch.linspace(left, right, 4, dtype=torch.float64)
    torch.testing.assert_close(grid, torch.stack(torch.meshgrid(down, across, indexing="ij"), -1))


def test_squashed_corners_lay_an_even_grid():
    grid = points([-2.0, -1.0, 0.5, 3.0], "box", "corners", rows=5, cols=6)
    assert torch.allclose(grid.diff(dim=0).diff(dim=0), torch.zeros(3, 6, 2, dtype=torch.float64))
    ends = torch.tensor([[-2.0, -1.0], [0.5, 3.0]], dtype=torch.float64).sigmoid()
    torch.testing.assert_close(torch.stack([grid[0, 0], grid[-1, -1]]), ends)


@pytest.mark.parametrize("bound", BOUNDS)
def test_an_upright_quadrangle_is_a_box(bound):
    top, left, bottom, right = -1.0, -0.5, 0.25, 2.0
    corners = [top, left, top, right, bottom, left, bottom, right]
    box = points([top, left, bottom, right], "box", bound)
    torch.testing.assert_close(points(corners, "quadrangle", bound), box)


def test_a_quadrangle_has_its_corners_and_straight_sides():
    corners = torch.randn(4, 2, dtype=torch.float64)
    grid = frame_points(corners.flatten(), "quadrangle", "points", 3, 3)
    torch.testing.assert_close(grid[[0, 0, 2, 2], [0, 2, 0, 2]], corners)
    torch.testing.assert_close(grid[0, 1], corners[:2].mean(0))
    torch.testing.assert_close(grid[1, 1], corners.mean(0))


def test_an_affine_frame_is_a_parallelogram():
    centre, down, right = torch.randn(3, 2, dtype=torch.float64)
    grid = frame_points(torch.cat([centre, down, right]), "affine", "points", 3, 3)
    torch.testing.assert_close(grid[1, 1], centre)
    torch.testing.assert_close(grid[2, 1], centre + down)
    torch.testing.assert_close(grid[1, 2], centre + right)
    torch.testing.assert_close(grid[0, 0], centre - down - right)


def between(a: Tensor, b: Tensor, share: float) -> Tensor:
    return torch.lerp(a, b, torch.tensor(share, dtype=a.dtype))


def squashed(values: Tensor, frame: Frame) -> Tensor:
    if frame == "affine":
        return torch.cat([values[:2].sigmoid(), values[2:].tanh() / 2])
    return values.sigmoid()


def corners_by_hand(values: Tensor, frame: Frame) -> Tensor:
    """Top left and right, bottom left and right, (2, 2, 2)."""
    if frame == "box":
        top, left, bottom, right = values
        rows = [[top, left], [top, right], [bottom, left], [bottom, right]]
        return torch.stack([torch.stack(row) for row in rows]).view(2, 2, 2)
    if frame == "quadrangle":
        return values.view(2, 2, 2)
    centre, down, right = values.view(3, 2)
    sides = [[centre - down - right, centre - down + right]]
    sides += [[centre + down - right, centre + down + right]]
    return torch.stack([torch.stack(side) for side in sides])


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize(("rows", "cols"), [(2, 2), (4, 3), (1, 5), (5, 1)])
def test_every_point_lies_between_the_corners(frame, bound, rows, cols):
    """Along the upper and the lower side first, then from one to the other: point by point."""
    values = torch.randn(3, COUNTS[frame], dtype=torch.float64)
    grid = frame_points(values, frame, bound, rows, cols)
    assert grid.shape == (3, rows, cols, 2)
    for one, its in zip(values, grid, strict=True):
        corners = corners_by_hand(squashed(one, frame) if bound == "corners" else one, frame)
        for i in range(rows):
            for j in range(cols):
                down = i / (rows - 1) if rows > 1 else 0.5
                right = j / (cols - 1) if cols > 1 else 0.5
                upper, lower = (between(side[0], side[1], right) for side in corners)
                torch.testing.assert_close(its[i, j], between(upper, lower, down))


def test_corners_are_the_ends_of_the_grid():
    grid = torch.randn(2, 3, 4, 5, 2)
    corners = corners_of(grid)
    assert corners.shape == (2, 3, 4, 2)
    ends = [grid[:, :, 0, 0], grid[:, :, 0, 4], grid[:, :, 3, 0], grid[:, :, 3, 4]]
    for number, end in enumerate(ends):
        assert torch.equal(corners[:, :, number], end)


@pytest.mark.parametrize("frame", FRAMES)
def test_the_corners_of_a_frame_are_its_own(frame):
    values = torch.randn(COUNTS[frame], dtype=torch.float64)
    got = corners_of(frame_points(values, frame, "points", 3, 4))
    torch.testing.assert_close(got, corners_by_hand(values, frame).view(4, 2))


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


@pytest.mark.parametrize(
    ("frame", "want"),
    [
        ("box", [0.2, 0.3, 0.6, 0.7]),
        ("affine", [0.4, 0.5, 0.2, 0.0, 0.0, 0.2]),
        ("quadrangle", [0.2, 0.3, 0.2, 0.7, 0.6, 0.3, 0.6, 0.7]),
    ],
)
def test_numbers_that_nothing_squashes_are_positions(frame, want):
    torch.testing.assert_close(start_numbers(frame, "none", 0.4, (-0.1, 0.0)), torch.tensor(want))
    values = 2 * torch.randn(COUNTS[frame], dtype=torch.float64)
    got = corners_of(frame_points(values, frame, "none", 4, 3))
    torch.testing.assert_close(got, corners_by_hand(values, frame).view(4, 2))


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
@pytest.mark.parametrize("bound", ["corners", "none"])
def test_a_single_point_is_in_the_middle(frame, bound):
    grid = frame_points(start_numbers(frame, bound, 0.5), frame, bound, 1, 1)
    torch.testing.assert_close(grid, torch.full((1, 1, 2), 0.5))


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("bound", BOUNDS)
def test_gradients_reach_every_number(frame, bound):
    values = torch.randn(2, COUNTS[frame], dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda t: frame_points(t, frame, bound, 3, 2), values)
    (gradient,) = torch.autograd.grad(
        frame_points(values, frame, bound, 3, 2).square().sum(), values
    )
    assert (gradient != 0).all()


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
