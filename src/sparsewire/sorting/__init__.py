"""Sorting with a gradient: soft sorts, the likelihood of an order, quicksort, half-permutations."""

from sparsewire.sorting.halves import (
    DISTRIBUTIONS,
    Distribution,
    enumerated_half,
    exact_half,
    half,
    half_rows,
    log_odds,
    log_symmetric,
    sampled_half,
)
from sparsewire.sorting.losses import (
    NDCGLoss,
    SpearmanLoss,
    TopKCrossEntropy,
    TrimmedLoss,
    ndcg_loss,
    spearman_loss,
    topk_cross_entropy,
    trimmed_loss,
)
from sparsewire.sorting.order_loss import order_loss
from sparsewire.sorting.quicksort import QuickSort, Steps
from sparsewire.sorting.soft_sort import (
    SoftTopK,
    soft_median,
    soft_permutation,
    soft_quantile,
    soft_rank,
    soft_sort,
    soft_topk,
    soft_topk_mask,
    sort_by,
)

__all__ = [
    "DISTRIBUTIONS",
    "Distribution",
    "NDCGLoss",
    "QuickSort",
    "SoftTopK",
    "SpearmanLoss",
    "Steps",
    "TopKCrossEntropy",
    "TrimmedLoss",
    "enumerated_half",
    "exact_half",
    "half",
    "half_rows",
    "log_odds",
    "log_symmetric",
    "ndcg_loss",
    "order_loss",
    "sampled_half",
    "soft_median",
    "soft_permutation",
    "soft_quantile",
    "soft_rank",
    "soft_sort",
    "soft_topk",
    "soft_topk_mask",
    "sort_by",
    "spearman_loss",
    "topk_cross_entropy",
    "trimmed_loss",
]
