"""Handwritten digits, checked on the way in, and cluttered canvases made of them."""

from sparsewire_lab.data.canvases import (
    CANVAS_60,
    CANVAS_100,
    CANVAS_400,
    CANVASES,
    Canvas,
    Scene,
    clutter,
    fixed_set,
    sample_canvases,
)
from sparsewire_lab.data.digits import load_digits
from sparsewire_lab.data.idx import Digits
from sparsewire_lab.data.mnist import load_mnist

__all__ = [
    "CANVASES",
    "CANVAS_60",
    "CANVAS_100",
    "CANVAS_400",
    "Canvas",
    "Digits",
    "Scene",
    "clutter",
    "fixed_set",
    "load_digits",
    "load_mnist",
    "sample_canvases",
]
