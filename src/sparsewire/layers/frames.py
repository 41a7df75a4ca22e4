"""Frames: from a few numbers to a grid of points in an image, where a glimpse looks.

A frame is told by raw numbers on the real line, as a network gives them. *Squashed corners* turn
the corners into positions first and lay an even grid between them; *squashed points* lay the grid
between the raw corners and turn each point into a position, as the paper words it: that grid is
finer towards the edges of the image.
"""

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from sparsewire._typing import Float
from sparsewire.ops._checks import check_choice, check_range

Frame = Literal["box", "affine", "quadrangle"]
Squash = Literal["corners", "points"]
FRAMES: tuple[Frame, ...] = get_args(Frame)
SQUASHES: tuple[Squash, ...] = get_args(Squash)

# Numbers of each: two corners; the centre and half of both sides; four corners.
COUNTS: dict[Frame, int] = {"box": 4, "affine": 6, "quadrangle": 8}


def frame_points(
    numbers: Float[Tensor, "*b n"], frame: Frame, squash: Squash, rows: int, cols: int
) -> Float[Tensor, "*b rows cols 2"]:
    """Return the points of a grid, row by row: down and right, as raw means.

    With squashed corners these are positions, of which [0, 1] is the image, for the edge
    `"clamp"`; with squashed points they are raw, for the edge `"sigmoid"`.

    Args:
        numbers: For a box, top, left, bottom, right; for an affine frame, the centre, then the
            vectors from it to the middle of the lower and of the right side; for a
            quadrangle, the corners top left, top right, bottom left and bottom right. All
            points are (down, right).
        frame: Which of them.
        squash: What becomes a position: the corners, or the points.
        rows: Points from top to bottom.
        cols: Points from left to right.

    Examples:
        >>> box = torch.tensor([0.25, 0.25, 0.75, 0.5]).logit()
        >>> frame_points(box, "box", "corners", rows=2, cols=3)[..., 1]  # how far right
        tensor([[0.2500, 0.3750, 0.5000],
                [0.2500, 0.3750, 0.5000]])
    """
    squashed = squash == "corners"
    if frame == "affine":
        centre, down, right = numbers.unflatten(-1, (3, 2)).unbind(-2)
        if squashed:
            centre, down, right = centre.sigmoid(), down.tanh() / 2, right.tanh() / 2
        u, v = (2 * t - 1 for t in _steps(rows, cols, numbers))
        return _at(centre) + u * _at(down) + v * _at(right)
    ends = numbers.sigmoid() if squashed else numbers
    if frame == "box":
        top, left, bottom, right = ends.unbind(-1)
        ends = torch.stack([top, left, top, right, bottom, left, bottom, right], dim=-1)
    corners = ends.unflatten(-1, (2, 2, 2))
    u, v = _steps(rows, cols, numbers)
    upper = _at(corners[..., 0, 0, :]) * (1 - v) + _at(corners[..., 0, 1, :]) * v
    lower = _at(corners[..., 1, 0, :]) * (1 - v) + _at(corners[..., 1, 1, :]) * v
    return upper * (1 - u) + lower * u


def start_numbers(frame: Frame, squash: Squash, cover: float) -> Float[Tensor, " n"]:
    """Return numbers for an upright frame in the middle of the image.

    Args:
        frame: Which kind.
        squash: What will be squashed.
        cover: Share of the height and of the width that it covers, between 0 and 1.

    Examples:
        >>> points = frame_points(
        ...     start_numbers("affine", "corners", 0.8), "affine", "corners", 2, 2
        ... )
        >>> points[0, 0], points[1, 1]
        (tensor([0.1000, 0.1000]), tensor([0.9000, 0.9000]))
    """
    check_choice("frame", frame, FRAMES)
    check_choice("squash", squash, SQUASHES)
    check_range("cover", cover, 1e-3, 1 - 1e-3)
    far = math.log((1 + cover) / (1 - cover))  # sigmoid(±far) are the two sides
    if frame == "affine":
        half = math.atanh(cover) if squash == "corners" else far
        return torch.tensor([0.0, 0.0, half, 0.0, 0.0, half])
    if frame == "box":
        return torch.tensor([-far, -far, far, far])
    return torch.tensor([-far, -far, -far, far, far, -far, far, far])


def _steps(rows: int, cols: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """How far down and right the points are, from 0 to 1; a single one is in the middle."""
    down, right = (
        torch.linspace(0, 1, n, dtype=like.dtype, device=like.device)
        if n > 1
        else torch.full((1,), 0.5, dtype=like.dtype, device=like.device)
        for n in (rows, cols)
    )
    return down.view(rows, 1, 1), right.view(1, cols, 1)


def _at(vector: Tensor) -> Tensor:
    """A vector for every point of the grid."""
    return vector.unsqueeze(-2).unsqueeze(-2)
