"""One result of each soft sorting function, for what is true of all of them."""

from typing import Any

import pytest
import torch
from tests.helpers import seeded
from torch import Tensor

from sparsewire.sorting import (
    soft_median,
    soft_permutation,
    soft_quantile,
    soft_rank,
    soft_sort,
    soft_topk,
    soft_topk_mask,
    sort_by,
)


def payload_of(x: Tensor) -> Tensor:
    """Two numbers for each element that do not depend on it."""
    return torch.arange(2 * x.shape[-1]).view(-1, 2).double().sin().to(x).expand(*x.shape, 2)


FUNCTIONS: dict[str, Any] = {
    "sort": soft_sort,
    "rank": soft_rank,
    "permutation": soft_permutation,
    "sort_by": lambda x, **options: sort_by(x, payload_of(x), **options),
    "topk": lambda x, **options: soft_topk(x, x.shape[-1] // 2, **options).values,
    "topk_mask": lambda x, **options: soft_topk_mask(x, 0.4 * x.shape[-1], **options),
    "quantile": lambda x, **options: soft_quantile(x, [0.3, 0.9], **options),
    "median": soft_median,
}
functions = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=seeded(seed))


def gradient(function: Any, x: Tensor, **options: Any) -> Tensor:
    """The gradient of a random weighting of a result."""
    leaf = x.clone().requires_grad_()
    result = function(leaf, **options)
    weights = numbers(*result.shape, seed=1).to(result)
    return torch.autograd.grad(result, leaf, weights)[0]
