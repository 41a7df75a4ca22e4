"""The specification: every pair of a level and a key, O(n²), in plain differentiable PyTorch."""

import torch
from torch import Tensor

from sparsewire.sorting.soft_sort._call import TAILS, Call, distribution

_HALVINGS = 200
_FAR = 2000  # temperatures from the keys to the ends of the search


def by_pairs(call: Call) -> Tensor:
    """Compute a call by its definition."""
    keys, heat = call.keys.double(), call.temperature.double()
    weights = torch.ones_like(keys) if call.weights is None else call.weights.double()
    if call.operation == "rank":
        return (
            (_below(keys, call, heat) @ weights.unsqueeze(-1))
            .squeeze(-1)
            .sub(weights / 2)
            .to(call.keys.dtype)
        )
    n = keys.shape[-1]
    levels = torch.arange(n + 1.0).to(keys) if call.levels is None else call.levels.double()
    levels = levels.expand(len(keys), -1)
    at = _thresholds(keys, weights, heat, levels, call)
    if call.operation == "threshold":
        return at
    total = weights.sum(-1, keepdim=True)
    below = _below(at, call, heat) * weights.unsqueeze(-2)
    below = below.where((levels > 0).unsqueeze(-1), 0)
    below = below.where((levels < total).unsqueeze(-1), weights.unsqueeze(-2))
    assert call.payload is not None
    return (below.diff(dim=-2) @ call.payload.double()).to(call.payload.dtype)


def _below(at: Tensor, call: Call, heat: Tensor) -> Tensor:
    """F((b − x) / T) of every level and key."""
    far = (at.unsqueeze(-1) - call.keys.double().unsqueeze(-2)) / heat.unsqueeze(-1)
    return distribution(far, call.tails)


def _thresholds(keys: Tensor, weights: Tensor, heat: Tensor, levels: Tensor, call: Call) -> Tensor:
    """Solve S(b) = u by halving, then by Newton's method, which also gives the derivatives."""
    with torch.no_grad():
        ends = _FAR * TAILS[call.tails][-1][1] * heat
        low = (keys.amin(-1, keepdim=True) - ends).expand_as(levels)
        high = (keys.amax(-1, keepdim=True) + ends).expand_as(levels)
        for _ in range(_HALVINGS):
            middle = low / 2 + high / 2
            too_low = (_below(middle, call, heat) @ weights.unsqueeze(-1)).squeeze(-1) < levels
            low, high = torch.where(too_low, middle, low), torch.where(too_low, high, middle)
        at = low / 2 + high / 2
    for _ in range(2):  # two steps for the second derivatives
        density = _density(at, call, heat) @ weights.unsqueeze(-1)
        excess = (_below(at, call, heat) @ weights.unsqueeze(-1)).squeeze(-1) - levels
        steep = density.squeeze(-1) > 1e-100
        at = at - torch.where(steep, excess, 0) / torch.where(steep, density.squeeze(-1), 1)
    return at


def _density(at: Tensor, call: Call, heat: Tensor) -> Tensor:
    far = (at.unsqueeze(-1) - call.keys.double().unsqueeze(-2)).abs() / heat.unsqueeze(-1)
    parts = (c / (2 * f) * torch.exp(-far / f) for c, f in TAILS[call.tails])
    return sum(parts, far.new_zeros(())) / heat.unsqueeze(-1)
