"""Animations: frames drawn one by one into a GIF of few colours."""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from sparsewire_lab.figures.save import fresh

_HOLD_MS, _COLOURS, _DPI = 2000, 128, 100
# Pillow merges colours that differ by less, such as white and a light grey.
_LEVELS = [round(value / 255 * 31) * 255 // 31 for value in range(256)]


def check_film(path: Path, frames_per_second: int) -> None:
    """Refuse a path or rate that cannot be shown, before any work."""
    if not 1 <= frames_per_second <= 50:
        raise ValueError(f"frames_per_second must be from 1 to 50; got {frames_per_second}")
    if path.suffix.lower() != ".gif":
        raise ValueError(f"path must end in .gif; got {path}")


def film(
    figure: Figure,
    draw: Callable[[int], None],
    count: int,
    path: Path,
    frames_per_second: int,
    most: int,
) -> Path:
    """Write a GIF that loops and rests on its last frame; return the path.

    Args:
        figure: The figure.
        draw: Changes the figure to show a frame, by its number.
        count: Number of frames.
        path: The GIF.
        frames_per_second: From 1 to 50, the most that browsers show.
        most: Of more frames than this, evenly spaced ones are taken.
    """
    chosen = np.linspace(0, count - 1, min(count, most)).round().astype(int).tolist()
    figure.set_dpi(_DPI)
    canvas = FigureCanvasAgg(figure)
    pictures = []
    for number in chosen:
        draw(number)
        canvas.draw()
        # All frames have the layout of the first, so that axes and titles do not move.
        figure.set_layout_engine("none")
        picture = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())
        pictures.append(picture.point(_LEVELS * 3))
    palette = _palette(pictures)
    first, *rest = [
        picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in pictures
    ]
    times = [1000 // frames_per_second] * len(rest) + [_HOLD_MS]
    with fresh(path) as temporary:
        first.save(temporary, save_all=True, append_images=rest, duration=times, loop=0)
    return path


def _palette(pictures: Sequence[Image.Image]) -> Image.Image:
    """Return the most frequent colours unchanged: mixtures would turn white into grey."""
    counts: Counter[Any] = Counter()
    for picture in pictures[:: max(len(pictures) // 4, 1)]:
        colours = picture.getcolors(picture.width * picture.height) or []
        counts.update({colour: count for count, colour in colours})
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for colour, _ in counts.most_common(_COLOURS) for part in colour])
    return palette
