"""Thin modules that own parameters and call `sparsewire.ops`."""

from sparsewire.layers.frozen import FrozenLayer
from sparsewire.layers.hyper import HyperLayer
from sparsewire.layers.layout import Layout, Placed, Shapes, Template, fan_in
from sparsewire.layers.sources import (
    Banded,
    BlockDiagonal,
    Convolution,
    FreeTuples,
    LowerTriangular,
)
from sparsewire.layers.sparse import SparseLayer
from sparsewire.layers.wiring import Draw, Wiring

__all__ = [
    "Banded",
    "BlockDiagonal",
    "Convolution",
    "Draw",
    "FreeTuples",
    "FrozenLayer",
    "HyperLayer",
    "Layout",
    "LowerTriangular",
    "Placed",
    "Shapes",
    "SparseLayer",
    "Template",
    "Wiring",
    "fan_in",
]
