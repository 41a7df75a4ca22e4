"""Losses as modules, whose arguments are given once."""

import math
from collections.abc import Sequence

from torch import Tensor, nn

from sparsewire.sorting._lists import Reduction
from sparsewire.sorting.losses.functions import (
    ndcg_loss,
    spearman_loss,
    topk_cross_entropy,
    trimmed_loss,
)
from sparsewire.sorting.order_loss import Ties, order_loss
from sparsewire.sorting.soft_sort import Tails


class _Loss(nn.Module):
    """Holds the arguments of a loss, and prints them."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.options = options

    def extra_repr(self) -> str:
        """Return the arguments."""
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())


class OrderLoss(_Loss):
    """`order_loss` as a module.

    Examples:
        >>> criterion = OrderLoss(temperature=0.5)
        >>> criterion(torch.tensor([[1.0, 2.0]]), torch.tensor([[10, 20]]))
        tensor(0.1269)
    """

    def __init__(
        self,
        temperature: float = 1.0,
        bend: float = math.inf,
        reach: int | None = None,
        ties: Ties = True,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(
            temperature=temperature, bend=bend, reach=reach, ties=ties, reduction=reduction
        )

    def forward(
        self,
        keys: Tensor,
        target: Tensor,
        mask: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of keys whose order is that of the target."""
        return order_loss(keys, target, mask=mask, weights=weights, **self.options)  # pyright: ignore[reportArgumentType]


class SpearmanLoss(_Loss):
    """`spearman_loss` as a module.

    Examples:
        >>> criterion = SpearmanLoss(temperature=0.5)
        >>> criterion
        SpearmanLoss(temperature=0.5, tails='heavy', reduction='mean')
        >>> criterion(torch.tensor([[0.0, 9.0]]), torch.tensor([[1, 0]]))
        tensor(1.9533)
    """

    def __init__(
        self, temperature: float = 1.0, tails: Tails = "heavy", reduction: Reduction = "mean"
    ) -> None:
        super().__init__(temperature=temperature, tails=tails, reduction=reduction)

    def forward(
        self,
        scores: Tensor,
        target: Tensor,
        mask: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of scores whose order is that of the target."""
        return spearman_loss(scores, target, mask=mask, weights=weights, **self.options)  # pyright: ignore[reportArgumentType]


class NDCGLoss(_Loss):
    """`ndcg_loss` as a module.

    Examples:
        >>> criterion = NDCGLoss(k=1, temperature=0.0)
        >>> criterion(torch.tensor([[0.0, 9.0]]), torch.tensor([[0, 3]]))
        tensor(0.)
    """

    def __init__(
        self,
        k: int | None = None,
        temperature: float = 1.0,
        tails: Tails = "heavy",
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(k=k, temperature=temperature, tails=tails, reduction=reduction)

    def forward(
        self,
        scores: Tensor,
        target: Tensor,
        mask: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of scores for elements of this relevance."""
        return ndcg_loss(scores, target, mask=mask, weights=weights, **self.options)  # pyright: ignore[reportArgumentType]


class TopKCrossEntropy(_Loss):
    """`topk_cross_entropy` as a module.

    Examples:
        >>> criterion = TopKCrossEntropy(k=2)
        >>> criterion(torch.tensor([[3.0, 2.0, -4.0]]), torch.tensor([1]))
        tensor(0.0215)
    """

    def __init__(
        self,
        k: int | Sequence[float] | Tensor = 1,
        temperature: float = 1.0,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(k=k, temperature=temperature, reduction=reduction)

    def forward(
        self,
        scores: Tensor,
        target: Tensor,
        mask: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of scores of classes, given the labels."""
        return topk_cross_entropy(scores, target, mask=mask, weights=weights, **self.options)  # pyright: ignore[reportArgumentType]


class TrimmedLoss(_Loss):
    """`trimmed_loss` as a module.

    Examples:
        >>> criterion = TrimmedLoss(keep=0.75, temperature=0.0)
        >>> criterion(torch.tensor([0.1, 0.2, 0.0, 50.0]))
        tensor(0.1000)
    """

    def __init__(
        self,
        keep: float = 0.9,
        temperature: float | None = None,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(keep=keep, temperature=temperature, reduction=reduction)

    def forward(
        self, losses: Tensor, mask: Tensor | None = None, weights: Tensor | None = None
    ) -> Tensor:
        """Return the trimmed mean of the losses of samples."""
        return trimmed_loss(losses, mask=mask, weights=weights, **self.options)  # pyright: ignore[reportArgumentType]
