"""Rewiring: wasted tuples move to places with large sampled gradients. Not in the paper."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.optim import Optimizer

from sparsewire.annotations import Bool, Float, Int
from sparsewire.checks import check_count, check_range, constant
from sparsewire.nn.hyper import HyperLayer
from sparsewire.nn.sources import FreeTuples
from sparsewire.nn.wiring import Sample, Wiring
from sparsewire.ops import flat_index, mark_repeats
from sparsewire.ops.bound import raw_variance

# Variance above the floor with which a tuple starts at its new place.
_FRESH_VARIANCE = 0.01

# What a checkpoint holds, besides the number of steps.
_STATE = "places", "gradients", "ages", "moves"

# Tuples of different places that are nearer than this share both places; settled ones are 1 apart.
_TOO_NEAR = 0.7


class Rewire:
    """Moves wasted tuples of a free layer to places where the loss asks for a connection.

    Backpropagation gives the gradient of the loss with respect to the value v' of *every* sampled
    place, including those without a connection. The best places are saved, and every `every` steps

    - a tuple is *wasted* if it rounds to a place that a stronger one holds, or is so near to a
      stronger one that both share their places, or if it contributes next to nothing to its place:
      |v| / Π_d max(1, √(2π σ²_d)), its value times the share that its density leaves at its mean,
      below `negligible` of the root mean square over all tuples;
    - each wasted tuple takes the saved place with the largest |∂loss/∂v'| that no tuple holds. It
      starts there with a small variance, a fresh optimiser state and, if values are learned, with
      the value 0; its old value is added to that of the tuple with which it shared its place.

    Nothing dense is stored: at most four places are saved for each tuple.

    Args:
        layer: A layer with free parameters (`SparseLayer`, or `HyperLayer` of a `FreeTuples`) of
            any rank, whose tuples may go anywhere: no template and no block diagonal.
        optimizer: The optimiser of its parameters, whose state is reset for tuples that move.
        every: Number of steps from one rewiring to the next.
        negligible: Share of the typical contribution below which a tuple counts as wasted.
        patience: Number of rewirings for which a tuple that moved may stay without contributing.

    Call `step()` after each step of the optimiser, outside a captured step (`sparsewire.capture`).
    In several processes (`torch.distributed`) all must call it together; they pool their places,
    and all make the same moves.

    Examples:
        >>> import sparsewire as sw
        >>> layer = sw.SparseLayer((32,), (32,), tuples=32, values=1.0, seed=0)
        >>> optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
        >>> rewire = sw.Rewire(layer, optimizer, every=50)
        >>> for x in torch.randn(600, 64, 32):
        ...     optimizer.zero_grad()
        ...     (layer(x) - x.flip(1)).square().mean().backward()  # reverse the vector
        ...     optimizer.step()
        ...     rewire.step()
        >>> frozen = layer.freeze()
        >>> int((frozen.rows + frozen.cols == 31).sum())
        32
    """

    def __init__(
        self,
        layer: HyperLayer,
        optimizer: Optimizer,
        every: int = 100,
        *,
        negligible: float = 0.05,
        patience: int = 1,
    ) -> None:
        self.source = _check_layer(layer)
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"optimizer must be a torch.optim.Optimizer; got {type(optimizer).__name__}"
            )
        self.layer, self.optimizer = layer, optimizer
        self.every = check_count("every", every, least=1)
        self.negligible = check_range("negligible", negligible, 0.0, 1.0)
        self.patience = check_count("patience", patience)
        self._space = layer.space()
        known = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if any(id(p) not in known for p in self.source.parameters()):
            raise ValueError("optimizer must hold the parameters of the layer; some are missing")
        tuples, device = len(self.source.raw_means), self.source.raw_means.device
        # Whether each tuple has a learned value of its own.
        own = len(self.source.values) == tuples and layer.value_of is None
        self._owns_values = own and isinstance(self.source.values, nn.Parameter)
        saved = 4 * tuples
        self.steps = 0
        self.places = torch.zeros(saved, dtype=torch.int64, device=device)
        self.gradients = torch.full((saved,), -1.0, device=device)  # −1: no place saved
        self.ages = torch.zeros(tuples, dtype=torch.int64, device=device)  # rewirings since moved
        self.moves = torch.zeros((), dtype=torch.int64, device=device)
        layer.on_sample = self._on_sample

    def __repr__(self) -> str:
        return f"Rewire(every={self.every}, negligible={self.negligible}, steps={self.steps})"

    def remove(self) -> None:
        """Detach from the layer."""
        if self.layer.on_sample == self._on_sample:
            self.layer.on_sample = None

    def step(self) -> None:
        """Count a step; after every `every`-th, move the wasted tuples."""
        self.steps += 1
        if self.steps % self.every == 0:
            self.rewire()

    @torch.no_grad()
    def rewire(self) -> None:
        """Move the wasted tuples now."""
        layer, wiring = self.layer, self.layer.wiring()
        held = layer.nearest_places(wiring.means)
        strength = contributions(wiring)
        keeper = find_keepers(wiring.means, held, strength, self._space)
        repeated = keeper != torch.arange(len(keeper), device=keeper.device)
        self.ages += 1
        typical = strength.square().mean().sqrt()
        weak = (strength < self.negligible * typical) & (self.ages > self.patience)
        wasted = repeated | weak
        free, count = self._free_places(flat_index(held, self._space))
        turn = wasted.cumsum(0) - 1
        moved = wasted & (turn < count)
        goal = free[turn.clamp(0, len(free) - 1)]
        if self._owns_values:
            values = self.source.values
            values.index_add_(0, keeper, torch.where(moved & repeated, values, 0.0))
        self._settle(moved, goal)
        self.ages.masked_fill_(moved, 0)
        self.moves += moved.sum()
        self.gradients.fill_(-1.0)

    def state_dict(self) -> dict[str, Any]:
        """Return the saved places and counts, for a checkpoint."""
        return {"steps": self.steps, **{name: getattr(self, name).clone() for name in _STATE}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what `state_dict` returned; the layer must have as many tuples as then."""
        if (saved := len(state["ages"])) != (tuples := len(self.ages)):
            raise ValueError(f"state must be of a layer with {tuples} tuples; got {saved}")
        self.steps = int(state["steps"])
        for name in _STATE:
            getattr(self, name).copy_(state[name])

    def _on_sample(self, sample: Sample) -> None:
        if torch.compiler.is_compiling():
            raise RuntimeError(
                "Rewire reads gradients inside the layer, which cannot be compiled: compile "
                "the rest of the model, or capture the step with sparsewire.cuda_graph"
            )
        # The hook may hold the indices but not the sample: its values hold the hook.
        indices = sample.indices
        sample.values.register_hook(lambda gradient: self._note(Sample(indices, gradient)))

    @torch.no_grad()
    def _note(self, gradients: Sample) -> None:
        """Merge the best places of this pass into the saved ones, whose tensors stay in place."""
        # Without the nearest tuples: those places are held, and would come in every pass.
        indices, gradient = self.layer.random_part(gradients)
        size = gradient.abs().float()
        sizes = torch.cat([self.gradients, torch.where(size.isfinite(), size, -1.0)])
        places = torch.cat([self.places, flat_index(indices, self._space)])
        best, which = sizes.topk(len(self.gradients))
        self.places.copy_(places[which])
        # A place that was seen before, with a larger gradient, makes room for another.
        self.gradients.copy_(torch.where(self._repeated(self.places), -1.0, best))

    def _free_places(self, holds: Int[Tensor, " k"]) -> tuple[Int[Tensor, " p"], Int[Tensor, ""]]:
        """Return the saved places, the best free ones first, and the number of free ones."""
        places, sizes = _pooled(self.places), _pooled(self.gradients)
        sizes, order = sizes.sort(descending=True, stable=True)
        places = places[order]
        taken = self._repeated(places) | _is_in(places, holds) | (sizes <= 0)
        return places[taken.byte().argsort(stable=True)], (~taken).sum()

    def _repeated(self, places: Int[Tensor, " p"]) -> Bool[Tensor, " p"]:
        """Mark places that are earlier in the list already."""
        return mark_repeats(places.unsqueeze(-1), (math.prod(self._space),))

    def _settle(self, moved: Bool[Tensor, " k"], goal: Int[Tensor, " k"]) -> None:
        """Put the moved tuples at their goals, in the state of new tuples."""
        source = self.source
        # All axes share one raw variance; the longest axis decides.
        width = raw_variance(_FRESH_VARIANCE, max(self._space), self.layer.variance_scale)
        source.move(moved, self.layer.raw_means_at(_unflatten(goal, self._space)), width)
        parameters: list[Tensor] = [source.raw_means, source.raw_variances]
        if self._owns_values:
            source.values.masked_fill_(moved, 0)
            parameters.append(source.values)
        for parameter in parameters:
            rows = moved.view(-1, *[1] * (parameter.dim() - 1))
            for state in self.optimizer.state.get(parameter, {}).values():
                if torch.is_tensor(state) and state.shape == parameter.shape:
                    state.masked_fill_(rows, 0)


def contributions(wiring: Wiring) -> Float[Tensor, " k"]:
    """Return |v| times the share of a density that stays at its mean, on the integers.

    Σ_j exp(−j² / 2σ²) over the integers is √(2π σ²) for wide densities, and 1 for narrow ones.

    Examples:
        >>> one = torch.tensor([[1.0], [1.0]])
        >>> contributions(Wiring(one, torch.tensor([[0.1], [100.0]]), torch.tensor([-1.0, 1.0])))
        tensor([1.0000, 0.0399])
    """
    mass = (2 * math.pi * wiring.variances).sqrt().clamp(min=1).prod(-1)
    return wiring.values.abs() / mass


def find_keepers(
    means: Float[Tensor, "k r"],
    held: Int[Tensor, "k r"],
    strength: Float[Tensor, " k"],
    space: Sequence[int],
) -> Int[Tensor, " k"]:
    """Return, for each tuple, a stronger one that holds its place or is too near; or itself.

    A place is `held` by the strongest of the tuples whose means round to it. Tuples of neighbouring
    places are too near below a distance of 0.7: they mix, often with values of opposite sign, and
    would add up to one. A tuple that is another's keeper has none itself.

    Examples:
        >>> means = torch.tensor([[3.0], [3.1], [7.0], [3.6]])
        >>> find_keepers(means, means.round().long(), torch.tensor([0.5, 1.0, 1.0, 0.2]), (9,))
        tensor([1, 1, 2, 1])
    """
    places = flat_index(held, space)
    strongest = strength.argsort(descending=True, stable=True)
    ordered, by_place = places[strongest].sort(stable=True)
    order = strongest[by_place]  # by place, and the strongest first in each
    myself = torch.arange(len(places), device=places.device)
    rank = torch.empty_like(order).scatter(0, strongest, myself)
    keeper, nearest = myself.clone(), torch.full_like(strength, math.inf)
    last = constant([n - 1 for n in space], torch.int64, held.device)
    for offset in itertools.product((0, -1, 1), repeat=len(space)):
        neighbour = held + constant(offset, torch.int64, held.device)
        at = flat_index(neighbour.clamp_(min=0).minimum(last), space)
        first = torch.searchsorted(ordered, at).clamp(max=len(ordered) - 1)
        other = order[first]
        distance = (means - means[other]).square().sum(-1).sqrt()
        distance = torch.where(at == places, 0.0, distance)  # of the same place
        better = (ordered[first] == at) & (rank[other] < rank) & (distance < nearest)
        better &= distance < _TOO_NEAR
        keeper = torch.where(better, other, keeper)
        nearest = torch.where(better, distance, nearest)
    return torch.where(keeper[keeper] == keeper, keeper, myself)


def _check_layer(layer: HyperLayer) -> FreeTuples:
    if not isinstance(layer, HyperLayer) or not isinstance(layer.source, FreeTuples):
        kind = type(layer.source if isinstance(layer, HyperLayer) else layer).__name__
        raise TypeError(f"layer must be a layer with free tuples, like SparseLayer; got {kind}")
    if not layer.layout.roaming:
        raise ValueError(
            "layer must let its tuples go anywhere (no template, no block diagonal); "
            f"got {type(layer.layout).__name__}"
        )
    if None in layer.in_shape:
        raise ValueError(f"layer must have fixed sizes; got in_shape {layer.in_shape}")
    if not layer.local_samples + layer.global_samples:
        raise ValueError("layer must have local or global samples, to discover places; got none")
    if layer.on_sample is not None:
        raise ValueError("layer must not be rewired yet; remove() the other one first")
    return layer.source


def _pooled(tensor: Tensor) -> Tensor:
    """Return the tensors of all processes in one, in the order of their ranks."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return tensor
    parts = [torch.empty_like(tensor) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, tensor)
    return torch.cat(parts)


def _is_in(places: Int[Tensor, " p"], holds: Int[Tensor, " k"]) -> Bool[Tensor, " p"]:
    """Mark places that are held: `torch.isin`, which would make the host wait."""
    ordered = holds.sort().values
    at = torch.searchsorted(ordered, places).clamp(max=len(ordered) - 1)
    return ordered[at] == places


def _unflatten(flat: Int[Tensor, " k"], space: tuple[int, ...]) -> Int[Tensor, "k r"]:
    """Return index tuples from their numbers: the inverse of `flat_index`."""
    columns = []
    for size in reversed(space):
        columns.append(flat % size)
        flat = flat.div(size, rounding_mode="floor")
    return torch.stack(columns[::-1], dim=-1)
