"""Handwritten digits, checked on the way in, and cluttered canvases made of them."""

from sparsewire.data.cluttered import (
    CANVAS_60,
    CANVAS_100,
    CANVAS_400,
    CANVASES,
    Canvas,
    Scene,
    clutter,
    draw_batch,
    fixed_set,
)
from sparsewire.data.digits import load_digits
from sparsewire.data.idx import Digits
from sparsewire.data.mnist import load_mnist

__all__ = [
    "CANVASES",
    "CANVAS_60",
    "CANVAS_100",
    "CANVAS_400",
    "Canvas",
    "Digits",
    "Scene",
    "clutter",
    "draw_batch",
    "fixed_set",
    "load_digits",
    "load_mnist",
]
