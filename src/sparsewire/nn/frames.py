"""Frames: a few numbers define the grid of points that a glimpse reads in an image.

A network returns a frame as raw numbers on the real line. A sigmoid bounds either the corners to
the image, with an even grid between them, or each point of a grid between the raw corners, as the
paper words it: that grid is finer towards the edges of the image.
"""

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from sparsewire.annotations import Float
from sparsewire.checks import cached, check_choice, check_range

Frame = Literal["box", "affine", "quadrangle"]
Bound = Literal["corners", "points", "none"]
FRAMES: tuple[Frame, ...] = get_args(Frame)
BOUNDS: tuple[Bound, ...] = get_args(Bound)

_GOLDEN = (math.sqrt(5) - 1) / 2

# Numbers of each: two corners; the centre and half of both sides; four corners.
COUNTS: dict[Frame, int] = {"box": 4, "affine": 6, "quadrangle": 8}


def frame_points(
    numbers: Float[Tensor, "*b n"], frame: Frame, bound: Bound, rows: int, cols: int
) -> Float[Tensor, "*b rows cols 2"]:
    """Return the points of a grid, row by row: down and right, as raw means.

    The numbers of a box are top, left, bottom, right; those of an affine frame, its centre, then
    the vectors from it to the middle of the lower and of the right side; those of a quadrangle, the
    corners top left, top right, bottom left and bottom right. All points are (down, right).

    A sigmoid bounds the corners, the points, or nothing to the image. With the bound at the points
    they are raw, for the edge `"sigmoid"`; otherwise they are positions, with the image at [0, 1],
    for the edge `"clamp"`.

    Examples:
        >>> box = torch.tensor([0.25, 0.25, 0.75, 0.5]).logit()
        >>> frame_points(box, "box", "corners", rows=2, cols=3)[..., 1]  # how far right
        tensor([[0.2500, 0.3750, 0.5000],
                [0.2500, 0.3750, 0.5000]])
    """
    if bound == "corners" and frame == "affine":
        numbers = torch.cat([numbers[..., :2].sigmoid(), numbers[..., 2:].tanh() / 2], dim=-1)
    elif bound == "corners":
        numbers = numbers.sigmoid()
    matrix = _matrix(frame, rows, cols, numbers.dtype, numbers.device)
    # Not a matrix product: that may be rounded to fewer digits than positions need.
    points = (numbers.unsqueeze(-1) * matrix).sum(-2)
    return points.unflatten(-1, (rows, cols, 2))


def corners_of(points: Float[Tensor, "*b rows cols 2"]) -> Float[Tensor, "*b 4 2"]:
    """Return the corners of a grid: top left and right, bottom left and right."""
    ends = [points[..., row, col, :] for row in (0, -1) for col in (0, -1)]
    return torch.stack(ends, dim=-2)


def start_numbers(
    frame: Frame, bound: Bound, cover: float, shift: tuple[float, float] = (0.0, 0.0)
) -> Float[Tensor, " n"]:
    """Return numbers for an upright frame that covers this share of the image's height and width.

    Its distance from the middle of the image is `shift`, down and right, in shares of the image;
    with the bound at the points, that is the distance of the middle of the frame.

    Examples:
        >>> points = frame_points(
        ...     start_numbers("affine", "corners", 0.8), "affine", "corners", 2, 2
        ... )
        >>> points[0, 0], points[1, 1]
        (tensor([0.1000, 0.1000]), tensor([0.9000, 0.9000]))
    """
    check_choice("frame", frame, FRAMES)
    check_choice("bound", bound, BOUNDS)
    check_range("cover", cover, 1e-3, 1 - 1e-3)
    for part in shift:
        check_range("shift", part, -(1 - cover) / 2 + 1e-6, (1 - cover) / 2 - 1e-6)
    side, middle = cover / 2, [0.5 + part for part in shift]
    if bound == "points":
        # The sigmoid comes later: near the middle it shrinks distances to a quarter.
        side, middle = _logit(0.5 + side), [4 * part for part in shift]
    low, high = [m - side for m in middle], [m + side for m in middle]
    if bound == "corners":
        side = math.atanh(cover)
        low, middle, high = ([_logit(share) for share in part] for part in (low, middle, high))
    numbers = {
        "box": [*low, *high],
        "affine": [*middle, side, 0.0, 0.0, side],
        "quadrangle": [*low, low[0], high[1], high[0], low[1], *high],
    }
    return torch.tensor(numbers[frame])


def start_of_all(
    frame: Frame, bound: Bound, cover: float, count: int, rows: int, cols: int
) -> Float[Tensor, "g n"]:
    """Return numbers for several frames of rows × cols points, shifted against each other.

    The shifts are fractions of the distance between two points, at low discrepancy: together the
    frames read what is between the points of one.
    """
    spacing = [cover / max(1, n - 1) for n in (rows, cols)]
    room = (1 - cover) / 2
    frames = []
    for number in range(count):
        # A lattice with the golden ratio: even for any number of points.
        offset = (number * _GOLDEN % 1 + 0.5 / count) % 1 - 0.5, (number + 0.5) / count - 0.5
        shift = [part * min(apart, room) for part, apart in zip(offset, spacing, strict=True)]
        frames.append(start_numbers(frame, bound, cover, (shift[0], shift[1])))
    return torch.stack(frames)


def _logit(share: float) -> float:
    return math.log(share / (1 - share))


@cached
def _matrix(
    frame: Frame, rows: int, cols: int, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "n p"]:
    """Return what each number of a frame adds to the points: (numbers, rows · cols · 2)."""
    down, right = (
        torch.linspace(0, 1, n, dtype=torch.float64) if n > 1 else torch.full((1,), 0.5).double()
        for n in (rows, cols)
    )
    u, v = (t.flatten() for t in torch.meshgrid(down, right, indexing="ij"))
    # Numbers come in pairs, the first for down and the second for right, with one weight or two.
    weights = {
        "box": ((1 - u, 1 - v), (u, v)),
        "affine": ((torch.ones_like(u),), (2 * u - 1,), (2 * v - 1,)),
        "quadrangle": (((1 - u) * (1 - v),), ((1 - u) * v,), (u * (1 - v),), (u * v,)),
    }
    pairs = torch.stack([torch.stack([pair[0], pair[-1]], dim=-1) for pair in weights[frame]])
    return pairs.diag_embed().transpose(1, 2).flatten(0, 1).flatten(1).to(device, dtype)
