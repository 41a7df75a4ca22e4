"""Densities as functions of the squared distance, and the range in which they stay finite."""

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

Density = Literal["gaussian", "student"]
DENSITIES: tuple[Density, ...] = get_args(Density)

# Between the heaviest tails that float32 can hold and what is Gaussian to its last digit.
DEGREES = (1e-6, 1e6)

# What "however far" means: means and squared distances end at the first number, variances at the
# second, so that no step of the arithmetic overflows, gradients included.
FARTHEST = {torch.float32: 1e18, torch.float64: 1e150}
SHARPEST = {torch.float32: 1e-12, torch.float64: 1e-100}


class Kind(NamedTuple):
    """A density as a function of the squared distance δ, without factors that cancel."""

    name: str
    degrees: float
    rank: int

    def log_density(self, distance: Tensor) -> Tensor:
        """Return log p, up to a constant."""
        distance = distance.clamp(max=FARTHEST[distance.dtype])
        if self.name == "gaussian":
            return distance.mul_(-0.5)
        return torch.log1p(distance / self.degrees) * (-0.5 * (self.degrees + self.rank))

    def slope(self, distance: Tensor) -> Tensor | None:
        """Return −2 · d log p / dδ, or None where it is one everywhere."""
        if self.name == "gaussian":
            return None
        return (self.degrees + self.rank) / (self.degrees + distance)

    def back(self, grad: Tensor, distance: Tensor) -> Tensor:
        """Multiply a gradient of log p by −2 · d log p / dδ, which is zero beyond the farthest."""
        if (slope := self.slope(distance)) is not None:
            grad = grad * slope
        # The gradient of a clamp: several times faster than a mask, and zero for infinity as well.
        return torch.ops.aten.hardtanh_backward(grad, distance, -1.0, FARTHEST[distance.dtype])


def tame(means: Tensor, variances: Tensor) -> tuple[Tensor, Tensor]:
    """Bring means and variances into the range in which nothing overflows."""
    farthest = FARTHEST[means.dtype]
    return means.clamp(-farthest, farthest), variances.clamp(min=SHARPEST[means.dtype])


def hidden_logit(dtype: torch.dtype) -> float:
    """Return a finite logit so low that beside any other its exponential is exactly zero."""
    return torch.finfo(dtype).min
