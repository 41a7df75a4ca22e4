"""Sparse transformations whose wiring is learned by backpropagation."""

from sparsewire import ops, sorting
from sparsewire._version import __version__
from sparsewire.cuda_graph import CapturedStep, capture
from sparsewire.nn.frozen import FrozenLayer
from sparsewire.nn.glimpse import Glimpse
from sparsewire.nn.hyper import HyperLayer
from sparsewire.nn.layout import Layout, Placed, Shapes, Template, fan_in
from sparsewire.nn.parameter_groups import parameter_groups
from sparsewire.nn.schedule import Schedule
from sparsewire.nn.sources import (
    Banded,
    BlockDiagonal,
    Convolution,
    FreeTuples,
    LowerTriangular,
)
from sparsewire.nn.sparse import SparseLayer, SparseLinear
from sparsewire.nn.sparsify import SparseConv2d, freeze, sparsify
from sparsewire.nn.wiring import Sample, Wiring
from sparsewire.ops import engine
from sparsewire.rewire import Rewire
from sparsewire.sorting import (
    NDCGLoss,
    OrderLoss,
    QuickSort,
    SpearmanLoss,
    TopKCrossEntropy,
    TrimmedLoss,
    ndcg_loss,
    order_loss,
    soft_median,
    soft_permutation,
    soft_quantile,
    soft_rank,
    soft_sort,
    soft_topk,
    soft_topk_mask,
    sort_by,
    spearman_loss,
    topk_cross_entropy,
    trimmed_loss,
)

__all__ = [
    "Banded",
    "BlockDiagonal",
    "CapturedStep",
    "Convolution",
    "FreeTuples",
    "FrozenLayer",
    "Glimpse",
    "HyperLayer",
    "Layout",
    "LowerTriangular",
    "NDCGLoss",
    "OrderLoss",
    "Placed",
    "QuickSort",
    "Rewire",
    "Sample",
    "Schedule",
    "Shapes",
    "SparseConv2d",
    "SparseLayer",
    "SparseLinear",
    "SpearmanLoss",
    "Template",
    "TopKCrossEntropy",
    "TrimmedLoss",
    "Wiring",
    "__version__",
    "capture",
    "engine",
    "fan_in",
    "freeze",
    "ndcg_loss",
    "ops",
    "order_loss",
    "parameter_groups",
    "soft_median",
    "soft_permutation",
    "soft_quantile",
    "soft_rank",
    "soft_sort",
    "soft_topk",
    "soft_topk_mask",
    "sort_by",
    "sorting",
    "sparsify",
    "spearman_loss",
    "topk_cross_entropy",
    "trimmed_loss",
]
