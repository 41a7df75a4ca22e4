"""A sheet of cluttered canvases, as the attention experiment learns from them."""

from pathlib import Path

import torch
from matplotlib import rc_context
from matplotlib.patches import Rectangle

from sparsewire_lab.data.canvases import Canvas, sample_canvases
from sparsewire_lab.data.idx import SIDE, Digits
from sparsewire_lab.figures.save import STYLE, blank, save

_FRAME = "#E69F00"
_WIDTH = 8.0  # inches


@rc_context(STYLE)
def draw_sheet(digits: Digits, canvas: Canvas, path: Path, seed: int = 0) -> Path:
    """Draw canvases with a frame around the digit of each, and its label; return the path."""
    columns = 6 if canvas.size <= 60 else 4 if canvas.size <= 200 else 2
    rows = columns // 2
    generator = torch.Generator(digits.images.device).manual_seed(seed)
    scene, labels = sample_canvases(digits, rows * columns, canvas, generator)
    figure = blank(_WIDTH, rows * (_WIDTH / columns + 0.2) + 0.4)
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes, image, corner, label in zip(
        panels.flat, scene.images.cpu(), scene.corners.tolist(), labels.tolist(), strict=True
    ):
        axes.imshow(image[0].numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        # Around the digit, not on it: pixel centres are at whole numbers.
        row, column = corner[0] - 1, corner[1] - 1
        frame = Rectangle((column, row), SIDE + 1, SIDE + 1, fill=False, ec=_FRAME, lw=1)
        axes.add_patch(frame).set_clip_on(False)
        axes.set_title(str(label), pad=3)
        axes.set_axis_off()
    figure.suptitle(
        f"{canvas.size} × {canvas.size} pixels, {canvas.distractors} pieces of "
        f"{canvas.patch} × {canvas.patch}; the frame is drawn for the eye alone",
        fontsize=10,
    )
    return save(figure, path)
