"""Sparse transformations whose wiring is learned by backpropagation."""

from sparsewire import ops
from sparsewire._version import __version__
from sparsewire.layers import (
    Banded,
    BlockDiagonal,
    Convolution,
    Draw,
    FreeTuples,
    FrozenLayer,
    HyperLayer,
    Layout,
    LowerTriangular,
    Placed,
    Shapes,
    SparseLayer,
    Template,
    Wiring,
    fan_in,
)

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
    "__version__",
    "fan_in",
    "ops",
]
