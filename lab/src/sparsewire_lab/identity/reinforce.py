"""The paper's baseline for learned wiring: REINFORCE."""

import math

import torch
from torch import Tensor, nn

from sparsewire.annotations import Float
from sparsewire.checks import check_count
from sparsewire.nn.sparse import SparseLayer
from sparsewire.ops import contract, rounded


class ReinforceLayer(nn.Module):
    """The paper's baseline for `SparseLayer`: the same parameters, trained by REINFORCE.

    A pass samples one continuous index tuple from N(mean, variance) for each tuple, rounds it, and
    multiplies by the matrix that has the tuples' values there. The sample has no gradient; its
    log-probability has one, which is weighted by the loss.

    Args:
        in_shape: Sizes of the input axes.
        out_shape: Sizes of the output axes.
        tuples: Number of continuous tuples.
        wirings: Samples for a batch, each for an equal part of it; at most one for each instance.
        values: Initial value of all tuples; sampled from N(0, 1) if not given.
        learn_values: Whether values are learned; their gradient is exact.
        seed: Seed of the initialisation.

    Examples:
        >>> layer = ReinforceLayer((8,), (8,), tuples=8, wirings=4)
        >>> y, log_probability = layer(torch.randn(32, 8))
        >>> y.shape, log_probability.shape
        (torch.Size([4, 8, 8]), torch.Size([4]))
    """

    def __init__(
        self,
        in_shape: tuple[int, ...],
        out_shape: tuple[int, ...],
        tuples: int,
        *,
        wirings: int = 1,
        values: float | None = None,
        learn_values: bool = True,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.wirings = check_count("wirings", wirings, least=1)
        self.sparse = SparseLayer(
            in_shape,
            out_shape,
            tuples,
            values=values,
            learn_values=learn_values,
            schedule=None,
            seed=seed,
            local_samples=0,  # its own samples replace these
            global_samples=0,
        )

    def forward(
        self, x: Float[Tensor, "b *x"], noise: Float[Tensor, "w k r"] | None = None
    ) -> tuple[Float[Tensor, "w g *y"], Float[Tensor, " w"]]:
        """Return the outputs, (w, b / w, *out_shape), and the log-probabilities of the wirings.

        Args:
            x: The instances, in equal groups that share a wiring each.
            noise: From N(0, 1), a sample for each wiring; `noise_for` a batch if not given.
        """
        if noise is None:
            noise = self.noise_for(len(x), x.device)
        groups = len(noise)
        if len(x) % groups:
            raise ValueError(f"x must hold a multiple of {groups} instances; got {len(x)}")
        means, variances, values = self.sparse.wiring()
        with torch.no_grad():
            sampled = means + variances.sqrt() * noise
            outs = self.sparse.out_shape
            indices = rounded(sampled, (*outs, *x.shape[1:]))
        log_density = -0.5 * (
            (sampled - means).square() / variances + variances.log() + math.log(2 * math.pi)
        )
        grouped = x.reshape(groups, len(x) // groups, *x.shape[1:])
        y = contract(indices, values.expand(groups, -1), grouped, outs)
        return y, log_density.sum((-2, -1))

    def noise_for(self, batch: int, device: torch.device) -> Float[Tensor, "w k r"]:
        """Sample from N(0, 1) for the wirings of a batch."""
        raw = self.sparse.source.raw_means
        count = max(1, min(self.wirings, batch))
        return torch.randn(count, *raw.shape, device=device, dtype=raw.dtype)
