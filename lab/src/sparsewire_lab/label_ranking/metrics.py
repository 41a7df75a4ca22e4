"""Rank correlations of predictions, and tests of whether methods differ over data sets."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats
from torch import Tensor

from sparsewire.annotations import Float

_LEVEL = 0.05


class Friedman(NamedTuple):
    """Whether all methods are equal, and which difference of mean ranks is significant."""

    p: float
    critical: float
    """Nemenyi's critical difference of two mean ranks."""


def kendall(scores: Float[Tensor, "*g i n"], target: Float[Tensor, "i n"]) -> Float[Tensor, "*g i"]:
    """Return Kendall's coefficient of each instance, whose target has no ties.

    Examples:
        >>> kendall(torch.tensor([[1.0, 5.0, 9.0]]), torch.tensor([[0.0, 2.0, 1.0]]))
        tensor([0.3333])
    """
    n = scores.shape[-1]
    found, wanted = (x.unsqueeze(-1) - x.unsqueeze(-2) for x in (scores, target))
    return (found.sign() * wanted.sign()).sum((-1, -2)) / (n * (n - 1))


def spearman(
    scores: Float[Tensor, "*g i n"], target: Float[Tensor, "i n"]
) -> Float[Tensor, "*g i"]:
    """Return Spearman's coefficient of each instance; target holds ranks from 0 without ties.

    Examples:
        >>> spearman(torch.tensor([[1.0, 5.0, 9.0]]), torch.tensor([[0.0, 2.0, 1.0]]))
        tensor([0.5000])
    """
    n = scores.shape[-1]
    ranks = scores.argsort(-1).argsort(-1)
    return 1 - (ranks - target).square().sum(-1) * (6 / (n * (n * n - 1)))


def mean_ranks(table: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean rank of each column, 1 for the largest number of a row; ties share ranks.

    Examples:
        >>> mean_ranks([[0.9, 0.5, 0.7], [0.8, 0.8, 0.1]])
        [1.25, 2.25, 2.5]
    """
    return [float(rank) for rank in np.mean(stats.rankdata(-np.array(table), axis=1), axis=0)]


def friedman(table: Sequence[Sequence[float]]) -> Friedman:
    """Test whether the columns of a table, methods, differ over its rows, data sets."""
    rows, columns = np.shape(table)
    p = float(stats.friedmanchisquare(*np.array(table).T).pvalue)
    spread = float(stats.studentized_range.ppf(1 - _LEVEL, columns, math.inf)) / math.sqrt(2)
    return Friedman(p, spread * math.sqrt(columns * (columns + 1) / (6 * rows)))


def wilcoxon_holm(table: Sequence[Sequence[float]], column: int) -> dict[int, float]:
    """Return p-values of a column against each other one, corrected by Holm for their number.

    Each is that of Wilcoxon's signed-rank test over the rows; 1 where all rows are equal.
    """
    numbers = np.array(table)
    raw: dict[int, float] = {}
    for other in range(numbers.shape[1]):
        if other != column:
            apart = numbers[:, column] - numbers[:, other]
            raw[other] = float(stats.wilcoxon(apart)[1]) if apart.any() else 1.0  # pyright: ignore
    corrected: dict[int, float] = {}
    largest = 0.0
    for place, (other, p) in enumerate(sorted(raw.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, p * (len(raw) - place)))
        corrected[other] = largest
    return corrected
