"""The losses that are compared: of scores, and of the ranks that the labels should have."""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from sparsewire.annotations import Float
from sparsewire.sorting import order_loss, spearman_loss
from sparsewire_lab.sorting.peers import neural_sort, projected_ranks, soft_sort_matrix

Name = Literal[
    "spearman",
    "spearman-heavy",
    "likelihood",
    "torchsort",
    "softsort",
    "neuralsort",
    "lapsum",
    "regression",
]
Loss = Callable[[Float[Tensor, "*b n"], Float[Tensor, "*b n"]], Float[Tensor, "*b"]]


class Method(NamedTuple):
    """A loss of scores that were divided by the temperature."""

    title: str
    loss: Loss
    has_temperature: bool = True


def rank_distance(
    ranks: Float[Tensor, "*b n"], target: Float[Tensor, "*b n"]
) -> Float[Tensor, "*b"]:
    """Return one minus Spearman's coefficient, from ranks without ties; see `spearman_loss`."""
    n = ranks.shape[-1]
    return (ranks - target).square().sum(-1) * (6 / (n * (n * n - 1)))


def expected_places(matrix: Float[Tensor, "*b n n"]) -> Float[Tensor, "*b n"]:
    """Return the mean place of each element in a relaxed permutation.

    The columns of SoftSort's and NeuralSort's matrices do not sum to one: they are divided by
    their sums, without which both are worse.
    """
    place = torch.arange(matrix.shape[-1], dtype=matrix.dtype)
    return (place @ matrix) / matrix.sum(-2).clamp(min=1e-6)


def laplace_ranks(scores: Float[Tensor, "*b n"]) -> Float[Tensor, "*b n"]:
    """Return LapSum's soft ranks, from all pairs (Struski et al., 2025), from 0.

    The rank of an element is the sum of Laplace's distribution function over its distances from
    the others.
    """
    apart = scores.unsqueeze(-1) - scores.unsqueeze(-2)
    # The derivative at 0 is 1/2 on both sides.
    lower, upper = apart.clamp(max=0).exp() / 2, 1 - (-apart.clamp(min=0)).exp() / 2
    return torch.where(apart < 0, lower, upper).sum(-1) - 0.5


def _spearman(scores: Tensor, target: Tensor) -> Tensor:
    return spearman_loss(scores, target, tails="light", reduction="none")


def _spearman_heavy(scores: Tensor, target: Tensor) -> Tensor:
    return spearman_loss(scores, target, tails="heavy", reduction="none")


def _likelihood(scores: Tensor, target: Tensor) -> Tensor:
    return order_loss(scores, target, ties=False, reduction="none")


def _regression(scores: Tensor, target: Tensor) -> Tensor:
    return (scores - (target - (target.shape[-1] - 1) / 2)).square().mean(-1)


METHODS: Mapping[Name, Method] = {
    "spearman": Method("ours, light tails", _spearman),
    "spearman-heavy": Method("ours, heavy tails", _spearman_heavy),
    "likelihood": Method("ours, likelihood", _likelihood),
    "torchsort": Method("torchsort", lambda s, t: rank_distance(projected_ranks(s), t)),
    "softsort": Method(
        "SoftSort", lambda s, t: rank_distance(expected_places(soft_sort_matrix(s)), t)
    ),
    "neuralsort": Method(
        "NeuralSort", lambda s, t: rank_distance(expected_places(neural_sort(s)), t)
    ),
    "lapsum": Method("LapSum", lambda s, t: rank_distance(laplace_ranks(s), t)),
    "regression": Method("regression", _regression, has_temperature=False),
}
