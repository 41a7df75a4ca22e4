"""Quicksort as a differentiable layer, as in the paper."""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from sparsewire.annotations import Float
from sparsewire.checks import check_choice, check_count, check_floating, check_range
from sparsewire.precision import without_autocast
from sparsewire.sorting._rows import flat_payload
from sparsewire.sorting.halves import (
    CERTAIN_DISTANCE,
    DISTRIBUTIONS,
    Distribution,
    half,
    log_odds,
    sampled_half,
)

Method = Literal["exact", "sampled"]


class Steps(NamedTuple):
    """The intermediate results of a sort."""

    values: list[Tensor]
    """The payload before the first and after each half-permutation."""
    targets: list[Tensor]
    """The target of each of these values; the last is the sorted target itself."""
    halves: list[Tensor]
    """The half-permutations, (*b, n, n): rows are positions, columns elements."""


class QuickSort(nn.Module):
    """Sorts a payload by keys, with a gradient for the keys; it has no parameters.

    log₂ n half-permutations cut ever smaller buckets into halves. Each is either the exact
    expectation (`"exact"`) or a mean of samples (`"sampled"`, the paper's), mixes payload and keys
    alike, and the mixed keys determine the next one. This layer is for learning keys from
    intermediate steps; for sorting as such use `sparsewire.soft_sort` and its family, which mix far
    less.

    In evaluation mode nothing is mixed: the payload is sorted by the keys.

    Args:
        method: How half-permutations are computed.
        samples: Number of random vectors of a sampled one; None for as many as there are elements,
            as in the paper.
        temperature: Distance of a key from the median of its bucket that makes its side certain by
            a factor of e; the inverse of the paper's C, which is 10.
        distribution: As in `sparsewire.sorting.log_odds`; the paper's is `"logistic"`.

    Examples:
        >>> sort = QuickSort()
        >>> keys = torch.tensor([[3.0, 1.0, 4.0, 2.0]])
        >>> sort(keys, keys.unsqueeze(-1)).squeeze(-1)
        tensor([[1.0001, 1.9999, 3.0001, 3.9999]])
    """

    def __init__(
        self,
        method: Method = "exact",
        *,
        samples: int | None = None,
        temperature: float = 0.1,
        distribution: Distribution = "logistic",
    ) -> None:
        super().__init__()
        self.method: Method = check_choice("method", method, ("exact", "sampled"))
        self.samples = None if samples is None else check_count("samples", samples)
        self.temperature = check_range("temperature", temperature, 1e-30, 1e30)
        self.distribution: Distribution = check_choice("distribution", distribution, DISTRIBUTIONS)

    def forward(
        self,
        keys: Float[Tensor, "*b n"],
        payload: Float[Tensor, "*x"],
        *,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*x"]:
        """Return the payload, sorted by the keys.

        Args:
            keys: One number for each element of the payload.
            payload: Elements of any shape.
            generator: Source of random numbers, for sampled half-permutations.
        """
        if not self.training:
            flat = flat_payload(keys, payload)
            order = keys.argsort(dim=-1, stable=True).unsqueeze(-1)
            return flat.gather(-2, order.expand_as(flat)).reshape(payload.shape)
        return self.steps(keys, payload, generator=generator).values[-1]

    def steps(
        self,
        keys: Float[Tensor, "*b n"],
        payload: Float[Tensor, "*x"],
        target: Float[Tensor, "*x"] | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> Steps:
        """Return the intermediate results, also in evaluation mode.

        The paper's intermediate loss compares the values of each step with their target: the sorted
        target, propagated back through the transposes of the half-permutations.

        Args:
            keys: As in `forward`.
            payload: As in `forward`.
            target: The sorted payload; if None, there are no targets.
            generator: As in `forward`.
        """
        flat_payload(keys, payload)
        if target is not None and target.shape != payload.shape:
            raise ValueError(
                f"target must have the shape of payload, {tuple(payload.shape)}; "
                f"got {tuple(target.shape)}"
            )
        shape = (*keys.shape, math.prod(payload.shape[keys.dim() :]))
        dtype = torch.promote_types(payload.dtype, torch.float32)
        with without_autocast(keys):
            halves = self.halves(keys, generator=generator)
            values = [payload.reshape(shape).to(dtype)]
            for matrix in halves:
                values.append(matrix.to(dtype) @ values[-1])
            targets = [] if target is None else [target.reshape(shape).to(dtype)]
            for matrix in reversed(halves if targets else []):
                targets.insert(0, matrix.to(dtype).mT @ targets[0])
        values, targets = (
            [t.reshape(payload.shape).to(payload.dtype) for t in some] for some in (values, targets)
        )
        return Steps(values, targets, halves)

    def halves(
        self, keys: Float[Tensor, "*b n"], *, generator: torch.Generator | None = None
    ) -> list[Tensor]:
        """Return the half-permutations, (*b, n, n) each, in the order of their application."""
        check_floating("keys", keys)
        n = keys.shape[-1]
        full = 2 ** math.ceil(math.log2(n)) if n > 1 else n
        now = keys.to(torch.promote_types(keys.dtype, torch.float32))
        # Replace infinite keys by finite ones that are certain to be at the ends, and pad to a
        # power of two with still larger ones.
        finite = torch.where(now.isfinite(), now, 0.0).detach()
        limit = torch.finfo(now.dtype).max / 16
        largest = finite.abs().amax(-1, keepdim=True) if n else finite
        far = 10 * CERTAIN_DISTANCE * self.temperature + 4 * largest
        far = far.clamp(max=limit / full if full else limit)
        now = torch.where(now.isfinite(), now, torch.where(now < 0, -far, far))
        if full > n:
            padding = far * (2 + torch.arange(full - n, device=keys.device))
            now = torch.cat([now, padding], dim=-1)
        matrices, size = [], full
        while size > 1:
            buckets = now.unflatten(-1, (-1, size))
            middle = buckets.sort(dim=-1).values[..., size // 2 - 1 : size // 2 + 1]
            distance = (buckets - middle.mean(-1, keepdim=True)) / self.temperature
            odds = log_odds(distance, self.distribution)
            matrix = self._half(odds, n, generator)
            matrices.append(matrix[..., :n, :n])
            now = (matrix @ now.unsqueeze(-1)).squeeze(-1)
            size //= 2
        return matrices

    def _half(self, odds: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
        """The half-permutation of all buckets together, from odds (*b, buckets, size)."""
        size = odds.shape[-1]
        if self.method == "sampled":
            samples = n if self.samples is None else self.samples
            return sampled_half(odds.flatten(-2), size, samples, generator)
        blocks = half(odds, size // 2)
        # A block-diagonal matrix: `block_diag` takes no batch.
        diagonal = torch.eye(odds.shape[-2], dtype=odds.dtype, device=odds.device)
        return (diagonal[:, None, :, None] * blocks.unsqueeze(-2)).flatten(-2).flatten(-3, -2)

    def extra_repr(self) -> str:
        """Show the options."""
        options = f"method={self.method}, temperature={self.temperature}"
        return f"{options}, distribution={self.distribution}"
