"""What every engine of soft sorting computes: one call, and the distribution in it.

With sorted or unsorted keys x, weights w, temperature T and the distribution function F,

    S(b) = Σ_i w_i F((b − x_i) / T),   b(u) solves S(b) = u,   G(b) = Σ_i w_i p_i F((b − x_i) / T).

F is an average of Laplace distributions, see `TAILS`. Levels u ≤ 0 have b = −∞, and those at or
above W = Σ w have b = +∞; nothing depends on an element of weight 0.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Tails = Literal["light", "heavy"]
Operation = Literal["rank", "mix", "threshold"]

TAILS: dict[Tails, tuple[tuple[float, float], ...]] = {
    "light": ((1.0, 1.0),),
    "heavy": ((512 / 585, 1.0), (64 / 585, 8.0), (8 / 585, 64.0), (1 / 585, 512.0)),
}
"""Coefficients, which sum to one, and factors of the temperature of the Laplace distributions."""


class Call(NamedTuple):
    """A soft sort of rows in ascending order; all arguments are tensors on one device.

    - `"rank"` returns S(x_i) − w_i / 2 of every key, (b, n), in the order and dtype of the keys.
    - `"mix"` returns G(b(v)) − G(b(u)) for each two successive levels u, v, (b, l − 1, f), in the
      dtype of the payload: of levels 0 … n, the payload in soft order.
    - `"threshold"` returns b(u) of each level, (b, l), in float64 and always finite: of levels
      without a solution, any number so far away that F is 0 or 1.
    """

    operation: Operation
    keys: Tensor
    """(b, n) in float32 or float64, finite, in any order; an engine sorts them itself."""
    payload: Tensor | None
    """(b, n, f) in float32 or float64, finite, of `"mix"` alone."""
    weights: Tensor | None
    """(b, n) in the dtype of the keys, at least 0; None for ones."""
    temperature: Tensor
    """(b, 1) in the dtype of the keys, positive and finite."""
    levels: Tensor | None
    """(b, l) in float64, in any order; None for 0 … n."""
    tails: Tails


def distribution(t: Tensor, tails: Tails) -> Tensor:
    """Return F(t)."""
    return sum((c * _laplace(t / factor) for c, factor in TAILS[tails]), t.new_zeros(()))


def _laplace(t: Tensor) -> Tensor:
    below, above = torch.exp(t.clamp(max=0)) / 2, 1 - torch.exp(-t.clamp(min=0)) / 2
    return torch.where(t < 0, below, above)  # with the derivative 1/2 at 0, as |t| would not have
