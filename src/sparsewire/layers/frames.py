"""Frames: from a few numbers to a grid of points in an image, where a glimpse looks.

A frame is told by raw numbers on the real line, as a network gives them. *Squashed corners* turn
the corners into positions first and lay an even grid between them; *squashed points* lay the grid
between the raw corners and turn each point into a position, as the paper words it: that grid is
finer towards the edges of the image.
"""

import functools
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
    if squash == "corners":
        numbers = _squash(numbers, frame)
    matrix = _matrix(frame, rows, cols, numbers.dtype, numbers.device)
    # Not a matrix product: that may be rounded to fewer digits than positions need.
    points = (numbers.unsqueeze(-1) * matrix).sum(-2)
    return points.unflatten(-1, (rows, cols, 2))


def corners_of(points: Float[Tensor, "*b rows cols 2"]) -> Float[Tensor, "*b 4 2"]:
    """Return the corners of a grid: top left and right, bottom left and right."""
    ends = [points[..., row, col, :] for row in (0, -1) for col in (0, -1)]
    return torch.stack(ends, dim=-2)


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


def _squash(numbers: Tensor, frame: Frame) -> Tensor:
    """Bring corners, or a centre and halves of sides, into the image."""
    if frame != "affine":
        return numbers.sigmoid()
    return torch.cat([numbers[..., :2].sigmoid(), numbers[..., 2:].tanh() / 2], dim=-1)


@functools.lru_cache(maxsize=64)
def _matrix(
    frame: Frame, rows: int, cols: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "n p"]:
    """What each number of a frame adds to the points: (numbers, rows · cols · 2).

    Kept, for it is the same in every call: a captured step reads it where it lies.
    """
    down, right = (
        torch.linspace(0, 1, n, dtype=torch.float64) if n > 1 else torch.full((1,), 0.5).double()
        for n in (rows, cols)
    )
    u, v = (t.flatten() for t in torch.meshgrid(down, right, indexing="ij"))
    if frame == "box":
        parts = [(1 - u, 0), (1 - v, 1), (u, 0), (v, 1)]
    elif frame == "affine":
        one = torch.ones_like(u)
        parts = [(t, axis) for t in (one, 2 * u - 1, 2 * v - 1) for axis in (0, 1)]
    else:
        corners = ((1 - u) * (1 - v), (1 - u) * v, u * (1 - v), u * v)
        parts = [(t, axis) for t in corners for axis in (0, 1)]
    matrix = torch.zeros(len(parts), rows * cols, 2, dtype=torch.float64)
    for number, (weight, axis) in enumerate(parts):
        matrix[number, :, axis] = weight
    with torch.inference_mode(False):
        return matrix.flatten(1).to(device, dtype)
