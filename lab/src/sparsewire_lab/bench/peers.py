"""What else computes `spread`: a page of plain PyTorch, and KeOps."""

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from torch import Tensor

# Beside this every real logit is large, and it leaves float32 room to be added to.
_HIDDEN = -1e9

Spread = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def plain(
    means: Tensor, variances: Tensor, values: Tensor, indices: Tensor, excluded: Tensor
) -> Tensor:
    """Spread as one would write it first: the whole table, and a softmax over it."""
    steps = indices.to(means.dtype)[None, :, :] - means[:, None, :]
    logits = -0.5 * (steps**2 / variances[:, None, :]).sum(-1)
    table = logits.masked_fill(excluded, float("-inf")).softmax(-1)
    return values @ table


def keops(
    means: Tensor, variances: Tensor, values: Tensor, indices: Tensor, excluded: Tensor
) -> Tensor:
    """Spread with KeOps: a symbolic table, reduced twice without being stored."""
    symbol: Any = importlib.import_module("pykeops.torch").LazyTensor
    mean, precision = symbol(means[:, None, :]), symbol(variances.reciprocal()[:, None, :])
    point = symbol(indices.to(means.dtype)[None, :, :])
    hidden = symbol((excluded.to(means.dtype) * _HIDDEN)[None, :, None])
    logits = ((mean - point) ** 2 * precision).sum(-1) * -0.5 + hidden
    total = symbol(logits.logsumexp(dim=1)[:, None, :])
    shared = ((logits - total).exp() * symbol(values[:, None, None])).sum(dim=0)
    return shared.squeeze(-1).masked_fill(excluded, 0)


def has_keops() -> bool:
    """Whether KeOps is installed."""
    return importlib.util.find_spec("pykeops") is not None


PEERS: dict[str, Spread] = {"plain": plain, "keops": keops}
