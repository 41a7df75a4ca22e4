"""Small pictures of a run in progress for TensorBoard: plain arrays, drawn in milliseconds."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Picture = NDArray[Any]  # (height, width, 3) uint8

_SIDE = 256  # pixels of a square picture
_WHITE, _GREY, _LIGHT, _MIDDLE = (255,) * 3, (221,) * 3, (198, 219, 239), (158, 188, 218)
# Right and wrong, in two colours that colour-blind readers can distinguish.
_BLUE, _RED = (0, 90, 181), (213, 94, 0)
_MOST_CIRCLES = 256
_MOST_ROWS = 32
_BAR, _GAP = 6, 4  # pixels


def draw_tuples(
    means: Tensor,
    variances: Tensor,
    values: Tensor,
    size: int,
    ones: tuple[Tensor, Tensor],
    sampled: Tensor | None = None,
) -> Picture:
    """Draw tuples of a square matrix over the indices where they should be.

    Grey cells are the ones of the planted matrix, light blue ones were sampled; a dot is a mean,
    blue if its value is positive and red if not, in a ring of one standard deviation.

    Args:
        means: Continuous index tuples, (k, 2).
        variances: Their variances, (k, 2).
        values: Their values, (k,).
        size: Side of the matrix.
        ones: Rows and columns of the ones of the planted matrix.
        sampled: Integer index tuples, (m, 2).
    """
    cell = max(1, _SIDE // size)
    side = cell * size if size <= _SIDE else _SIDE
    zoom, picture = side / size, _blank(side, side)
    centres, deviations = (t.detach().cpu().double().numpy() for t in (means, variances.sqrt()))
    if sampled is not None:
        _dots(picture, sampled.cpu().numpy() * zoom, cell, _LIGHT)
    places = np.stack([t.cpu().numpy() for t in ones], axis=-1)
    _dots(picture, places * zoom, cell, _GREY)
    at = (centres + 0.5) * zoom
    if len(at) <= _MOST_CIRCLES:
        turn = np.linspace(0, 2 * np.pi, 65)  # the four ends among them
        ring = np.stack([np.sin(turn), np.cos(turn)], axis=-1)
        _dots(picture, at[:, None] + ring * deviations[:, None] * zoom, 1, _MIDDLE)
    dot, positive = max(1, round(cell / 2.5)), values.detach().cpu().numpy() > 0
    for colour, some in ((_RED, ~positive), (_BLUE, positive)):
        _dots(picture, at[some] - (dot - 1) / 2, dot, colour)
    return picture


def draw_frames(images: Tensor, corners: Tensor, glimpses: Tensor) -> Picture:
    """Draw canvases side by side, each with the frames of its glimpses, and below what was read.

    Args:
        images: Canvases in uint8, (b, 1, n, n).
        corners: Top left and right, bottom left and right of each frame, (b, g, 4, 2).
        glimpses: What was read, from 0 to 1, (b, g, k, k).
    """
    columns = []
    read = (glimpses.clamp(0, 1) * 255).byte().cpu().numpy()
    frames = corners.cpu().double().numpy()
    for canvas, boxes, patches in zip(images[:, 0].cpu().numpy(), frames, read, strict=True):
        picture = _coloured(canvas)
        for top_left, top_right, bottom_left, bottom_right in boxes:
            around = np.stack([top_left, top_right, bottom_right, bottom_left, top_left])
            _dots(picture, _line(around) + 0.5, 1, _RED)
        across = math.ceil(math.sqrt(len(patches)))
        zoom = max(1, len(picture) // (across * (patches.shape[-1] + _GAP) - _GAP))
        parts = [_coloured(glimpse).repeat(zoom, 0).repeat(zoom, 1) for glimpse in patches]
        rows = [side_by_side(parts[i : i + across]) for i in range(0, len(parts), across)]
        columns.append(stacked([picture, *rows]))
    return side_by_side(columns)


def draw_order(images: Tensor, order: Tensor, values: Tensor) -> Picture:
    """Draw sets of numbers in the order of their keys, smallest on top, side by side.

    The bar before a number is blue if the number is in its place, and red if not.

    Args:
        images: The digits of the numbers in uint8, (b, n, places, 28, 28).
        order: The numbers that come first, second and so on, (b, n).
        values: The numbers, (b, n).
    """
    right = (values.gather(1, order) == values.sort(dim=-1).values).cpu().numpy()
    digits = images.cpu().numpy()
    columns = []
    for i, places in enumerate(order[:, :_MOST_ROWS].tolist()):
        rows = []
        for place, number in enumerate(places):
            row = _coloured(np.concatenate(list(digits[i, number]), axis=1))
            bar = _blank(len(row), _BAR, _BLUE if right[i, place] else _RED)
            rows.append(np.concatenate([bar, row], axis=1))
        columns.append(np.concatenate(rows))
    return side_by_side(columns)


def draw_points(across: Tensor, up: Tensor) -> Picture:
    """Draw points, such as keys over their numbers; the axes span the points.

    Args:
        across: Their positions from left to right, (n,).
        up: Their positions from bottom to top, (n,).
    """
    picture, dot = _blank(_SIDE, _SIDE), 3
    x, y = (t.detach().cpu().double().numpy() for t in (across, up))
    at = np.stack([1 - _to_unit(y), _to_unit(x)], axis=-1) * (_SIDE - dot)
    _dots(picture, at, dot, _BLUE)
    return picture


def side_by_side(pictures: Sequence[Picture]) -> Picture:
    """Return pictures side by side, white where there is none."""
    height = max(len(picture) for picture in pictures)
    parts: list[Picture] = []
    for picture in pictures:
        parts += [_blank(height, _GAP), _blank(height, picture.shape[1])]
        parts[-1][: len(picture)] = picture
    return np.concatenate(parts[1:], axis=1)


def stacked(pictures: Sequence[Picture]) -> Picture:
    """Return pictures one below the other, white where there is none."""
    return side_by_side([picture.swapaxes(0, 1) for picture in pictures]).swapaxes(0, 1)


def _dots(picture: Picture, at: Picture, side: int, colour: tuple[int, ...]) -> None:
    """Fill squares whose top left corners are at these places; what lies outside is left out."""
    steps = np.arange(side)
    offsets = np.stack(np.meshgrid(steps, steps, indexing="ij"), axis=-1).reshape(-1, 2)
    corners = np.floor(at.reshape(-1, 1, 2)).clip(-1 - side, max(picture.shape)).astype(np.int64)
    pixels = (corners + offsets).reshape(-1, 2)
    inside = ((pixels >= 0) & (pixels < picture.shape[:2])).all(-1)
    rows, columns = pixels[inside].T
    picture[rows, columns] = colour


def _line(points: Picture) -> Picture:
    """Return points close together along lines from each of these to the next."""
    count = int(min(np.abs(np.diff(points, axis=0)).max(initial=1), 4 * _SIDE)) + 2
    share = np.linspace(0, 1, count)[:, None, None]
    return (points[:-1] * (1 - share) + points[1:] * share).reshape(-1, 2)


def _coloured(grey: Picture) -> Picture:
    return np.repeat(grey[..., None], 3, axis=-1)


def _to_unit(x: Picture) -> Picture:
    low, high = (x.min(), x.max()) if len(x) else (0.0, 0.0)
    return (x - low) / (high - low or 1.0)


def _blank(height: int, width: int, colour: tuple[int, ...] = _WHITE) -> Picture:
    return np.full((height, width, 3), colour, dtype=np.uint8)
