"""Sparse transformations whose wiring is learned by backpropagation."""

from sparsewire import ops
from sparsewire._version import __version__
from sparsewire.capture import CapturedStep, capture
from sparsewire.layers.finder import Finder
from sparsewire.layers.frozen import FrozenLayer
from sparsewire.layers.glimpse import Glimpse
from sparsewire.layers.hyper import HyperLayer
from sparsewire.layers.layout import Layout, Placed, Shapes, Template, fan_in
from sparsewire.layers.sort import QuickSort
from sparsewire.layers.sources import (
    Banded,
    BlockDiagonal,
    Convolution,
    FreeTuples,
    LowerTriangular,
)
from sparsewire.layers.sparse import SparseLayer
from sparsewire.layers.wiring import Draw, Wiring
from sparsewire.ops import engine
from sparsewire.ops.likelihood import order_loss
from sparsewire.ops.quicksort import (
    soft_median,
    soft_permutation,
    soft_quantile,
    soft_rank,
    soft_sort,
    soft_topk,
    sort_by,
)
from sparsewire.rewire import Rewire

__all__ = [
    "Banded",
    "BlockDiagonal",
    "CapturedStep",
    "Convolution",
    "Draw",
    "Finder",
    "FreeTuples",
    "FrozenLayer",
    "Glimpse",
    "HyperLayer",
    "Layout",
    "LowerTriangular",
    "Placed",
    "QuickSort",
    "Rewire",
    "Shapes",
    "SparseLayer",
    "Template",
    "Wiring",
    "__version__",
    "capture",
    "engine",
    "fan_in",
    "ops",
    "order_loss",
    "soft_median",
    "soft_permutation",
    "soft_quantile",
    "soft_rank",
    "soft_sort",
    "soft_topk",
    "sort_by",
]
