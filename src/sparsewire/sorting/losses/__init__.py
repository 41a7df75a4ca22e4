"""Ranking losses: functions of scores, and modules that hold their arguments."""

from sparsewire.sorting.losses.functions import (
    ndcg_loss,
    spearman_loss,
    topk_cross_entropy,
    trimmed_loss,
)
from sparsewire.sorting.losses.modules import (
    NDCGLoss,
    OrderLoss,
    SpearmanLoss,
    TopKCrossEntropy,
    TrimmedLoss,
)

__all__ = [
    "NDCGLoss",
    "OrderLoss",
    "SpearmanLoss",
    "TopKCrossEntropy",
    "TrimmedLoss",
    "ndcg_loss",
    "spearman_loss",
    "topk_cross_entropy",
    "trimmed_loss",
]
