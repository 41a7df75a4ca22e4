"""Quicksort as a layer, step by step, as the paper has it."""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from sparsewire.annotations import Float
from sparsewire.checks import check_choice, check_count, check_floating, check_range
from sparsewire.precision import without_autocast
from sparsewire.sorting.halves import DISTRIBUTIONS, FAR, Distribution, half, log_odds, sampled_half

Method = Literal["exact", "sampled"]


class Steps(NamedTuple):
    """What happens while things are sorted."""

    values: list[Tensor]
    """The things: as they came, and after each half-permutation."""
    targets: list[Tensor]
    """The sorted target, sent back: where it would have been before each, and itself at last."""
    halves: list[Tensor]
    """The half-permutations, (*b, n, n): rows are places, columns elements."""


class QuickSort(nn.Module):
    """Sorts things by keys, with a gradient to the keys; it has no parameters.

    log₂ n half-permutations, one after the other, cut ever smaller buckets into halves. Things and
    keys are mixed by each as it is expected (`"exact"`) or sampled (`"sampled"`, the paper's), and
    the mixed keys decide about the next. For sorting as such use `sparsewire.soft_sort` and its
    family, which mix far less; this layer is for learning keys from intermediate steps.

    In evaluation nothing is mixed: things come in the order of their keys.

    Args:
        method: How half-permutations are computed.
        samples: Of how many random vectors a sampled one is made; as many as there are elements, if
            not given, as in the paper.
        temperature: Distance of a key from the median of its bucket that makes its side certain by
            a factor of e; the paper's C is its inverse, 10.
        distribution: As in `sparsewire.sorting.halves.log_odds`; the paper's is `"logistic"`.

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
            keys: A number for each thing.
            payload: The things, of any shape.
            generator: Where random numbers come from, for sampled half-permutations.
        """
        self._check(keys, payload)
        if not self.training:
            flat = payload.flatten(keys.dim()) if payload.dim() > keys.dim() else payload[..., None]
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
        """Return every step, also in evaluation.

        The paper's intermediate loss compares the values of each step with its target: the sorted
        things, sent back through the transposes of the half-permutations.

        Args:
            keys: A number for each thing.
            payload: The things, of any shape.
            target: The things in their right order; without it there are no targets.
            generator: Where random numbers come from, for sampled half-permutations.
        """
        self._check(keys, payload)
        if target is not None and target.shape != payload.shape:
            raise ValueError(
                f"target must have the shape of payload, {tuple(payload.shape)}; "
                f"got {tuple(target.shape)}"
            )
        with without_autocast(keys):
            return self._steps(keys, payload, target, generator)

    def _steps(
        self,
        keys: Tensor,
        payload: Tensor,
        target: Tensor | None,
        generator: torch.Generator | None,
    ) -> Steps:
        n, batch = keys.shape[-1], keys.shape[:-1]
        halves = self.halves(keys, generator=generator)
        features = math.prod(payload.shape[keys.dim() :])
        flat = payload.reshape(*batch, n, features)
        flat = flat.to(torch.promote_types(payload.dtype, torch.float32))
        values = [flat]
        for matrix in halves:
            values.append(matrix.to(flat.dtype) @ values[-1])
        targets = []
        if target is not None:
            targets = [target.reshape(*batch, n, features).to(flat.dtype)]
            for matrix in reversed(halves):
                targets.append(matrix.to(flat.dtype).transpose(-1, -2) @ targets[-1])
        values, targets = (
            [t.reshape(payload.shape).to(payload.dtype) for t in some]
            for some in (values, targets[::-1])
        )
        return Steps(values, targets, halves)

    def halves(
        self, keys: Float[Tensor, "*b n"], *, generator: torch.Generator | None = None
    ) -> list[Tensor]:
        """Return the half-permutations, (*b, n, n) each, in the order they are applied."""
        check_floating("keys", keys)
        n = keys.shape[-1]
        full = 2 ** math.ceil(math.log2(n)) if n > 1 else n
        now = keys.to(torch.promote_types(keys.dtype, torch.float32))
        # Infinite keys are far from the others, and from what is filled up, which is in order.
        finite = torch.where(now.isfinite(), now, 0.0).detach()
        limit = torch.finfo(now.dtype).max / 16
        largest = finite.abs().amax(-1, keepdim=True) if n else finite
        far = (10 * FAR * self.temperature + 4 * largest).clamp(max=limit / full if full else limit)
        now = torch.where(now.isfinite(), now, torch.where(now < 0, -far, far))
        if full > n:
            more = far * (2 + torch.arange(full - n, device=keys.device))
            now = torch.cat([now, more], dim=-1)
        found, size = [], full
        while size > 1:
            buckets = now.unflatten(-1, (-1, size))
            middle = buckets.sort(dim=-1).values[..., size // 2 - 1 : size // 2 + 1]
            distance = (buckets - middle.mean(-1, keepdim=True)) / self.temperature
            odds = log_odds(distance, self.distribution)
            matrix = self._half(odds, n, generator)
            found.append(matrix[..., :n, :n])
            now = (matrix @ now.unsqueeze(-1)).squeeze(-1)
            size //= 2
        return found

    def _half(self, odds: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
        """The half-permutation of all buckets, of odds (*b, buckets, size)."""
        size = odds.shape[-1]
        if self.method == "sampled":
            samples = n if self.samples is None else self.samples
            return sampled_half(odds.flatten(-2), size, samples, generator)
        blocks = half(odds, size // 2)
        # Blocks on a diagonal: each row of blocks is one of them between empty columns.
        count = odds.shape[-2]
        own = torch.eye(count, dtype=odds.dtype, device=odds.device)
        spread = own[:, None, :, None] * blocks.unsqueeze(-2)
        return spread.flatten(-2).flatten(-3, -2)

    def _check(self, keys: Tensor, payload: Tensor) -> None:
        check_floating("keys", keys)
        check_floating("payload", payload)
        if not keys.dim() or payload.shape[: keys.dim()] != keys.shape:
            raise ValueError(
                f"payload must begin with the shape of keys, {tuple(keys.shape)}; "
                f"got {tuple(payload.shape)}"
            )

    def extra_repr(self) -> str:
        """Show what matters most."""
        return f"method={self.method}, temperature={self.temperature}, distribution={self.distribution}"
