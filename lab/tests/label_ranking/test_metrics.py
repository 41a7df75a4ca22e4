"""Coefficients against scipy's, and tests of significance against hand-worked tables."""

import math
from typing import Any

import pytest
import torch
from scipy import stats

from sparsewire_lab.label_ranking.methods import METHODS, laplace_ranks, rank_distance
from sparsewire_lab.label_ranking.metrics import (
    friedman,
    kendall,
    mean_ranks,
    spearman,
    wilcoxon_holm,
)


def coefficient(function: Any, *pair: Any) -> float:
    return float(function(*pair)[0])


@pytest.mark.parametrize("n", [2, 3, 7])
def test_coefficients_are_those_of_scipy(n):
    source = torch.Generator().manual_seed(n)
    scores = torch.randn(2, 5, n, generator=source)
    target = torch.rand(5, n, generator=source).argsort(-1).float()
    taus, rhos = kendall(scores, target), spearman(scores, target)
    for group in range(2):
        for i in range(5):
            pair = (scores[group, i].numpy(), target[i].numpy())
            assert math.isclose(taus[group, i], coefficient(stats.kendalltau, *pair), abs_tol=1e-6)
            assert math.isclose(rhos[group, i], coefficient(stats.spearmanr, *pair), abs_tol=1e-6)


def test_nemenyi_is_that_of_the_published_table():
    """Demšar (2006) has q = 2.343 for 3 methods and 2.728 for 5, at a level of 0.05."""
    table = [[0.1 * (i + j) for j in range(5)] for i in range(10)]
    found = friedman(table)
    assert math.isclose(found.critical, 2.728 * math.sqrt(5 * 6 / 60), rel_tol=1e-3)
    assert found.p < 1e-6
    three = friedman([row[:3] for row in table])
    assert math.isclose(three.critical, 2.343 * math.sqrt(3 * 4 / 60), rel_tol=1e-3)
    assert mean_ranks(table) == [5, 4, 3, 2, 1]


def test_holm_multiplies_the_smallest_by_their_number():
    source = torch.Generator().manual_seed(0)
    first = torch.rand(12, generator=source).double()
    noise = torch.randn(12, generator=source).double()
    table = torch.stack([first, first - 0.1, first + 0.01 * noise, first], dim=-1).tolist()
    found = wilcoxon_holm(table, 0)
    assert found[1] == pytest.approx(3 * 2 / 2**12)  # all 12 have one sign
    assert found[3] == 1
    raw: Any = stats.wilcoxon([row[0] - row[2] for row in table])
    assert found[2] == pytest.approx(min(1, 2 * raw.pvalue))


@pytest.mark.parametrize("name", METHODS)
def test_every_loss_prefers_the_right_order_and_says_so(name):
    target = torch.tensor([[2.0, 0.0, 3.0, 1.0]])
    right, wrong = (METHODS[name].loss(sign * (target - 1.5), target) for sign in (1.0, -1.0))
    assert right < wrong
    scores = torch.tensor([[0.01, 0.02, 0.03, 0.04]], requires_grad=True)
    (slopes,) = torch.autograd.grad(METHODS[name].loss(scores, target).sum(), scores)
    assert slopes[0, 1] > 0 > slopes[0, 2]


def test_lapsum_is_the_soft_rank_with_light_tails():
    source = torch.Generator().manual_seed(0)
    scores, target = torch.randn(9, 6, generator=source), torch.rand(9, 6).argsort(-1).float()
    ours = METHODS["spearman"].loss(scores, target)
    torch.testing.assert_close(rank_distance(laplace_ranks(scores), target), ours)
