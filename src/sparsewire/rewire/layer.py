"""Rewiring of one layer."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sparsewire.annotations import Bool, Int
from sparsewire.checks import check_count, check_range
from sparsewire.nn.hyper import HyperLayer
from sparsewire.nn.sources import FreeTuples
from sparsewire.nn.wiring import Sample, contributions
from sparsewire.ops import flat_index, mark_repeats
from sparsewire.ops.bound import raw_variance
from sparsewire.rewire.places import is_in, match, number_places, pooled, unflatten
from sparsewire.rewire.wasted import find_keepers

# Variance above the floor with which a tuple starts at its new place.
_FRESH_VARIANCE = 0.01

# Places that are saved for each tuple.
_SAVED = 4

# What a checkpoint holds.
_STATE = "places", "gradients", "ages", "moves", "signals"


class LayerRewiring:
    """What `Rewire` does for one layer; takes its arguments.

    Attributes:
        places: Flat numbers of saved places in the learned space, row by row: a row of tuples of
            the same group has a row of places.
        gradients: Sizes of their gradients; −1 where no place is saved.
        ages: Rewirings since each tuple moved.
        signals: The largest gradient at the place of each tuple since the last rewiring, where a
            template fixes all output columns.
        moves: Number of moves so far.
    """

    def __init__(
        self,
        layer: HyperLayer,
        optimizer: Optimizer,
        *,
        negligible: float = 0.05,
        patience: int = 1,
        distinct: bool = False,
    ) -> None:
        if (reason := why_not(layer)) is not None:
            raise reason
        if layer.on_sample is not None:
            raise ValueError("layer must not be rewired yet; remove() the other one first")
        self.layer, self.optimizer, self.source = layer, optimizer, layer.source
        self.negligible = check_range("negligible", negligible, 0.0, 1.0)
        self.patience = check_count("patience", patience)
        known = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if any(id(p) not in known for p in self.source.parameters()):
            raise ValueError("optimizer must hold the parameters of the layer; some are missing")
        tuples, device = len(self.source.raw_means), self.source.raw_means.device
        self._space, self._size = layer.space(), math.prod(layer.space())
        # Then all places of a group have one output, and no gradient there means no input.
        self._inputs_only = layer.layout.learns_inputs_only(len(layer.out_shape))
        if distinct and not self._inputs_only:
            raise ValueError(
                "distinct must be False for a layer with a learned output column; "
                f"got {distinct} for {type(layer).__name__}"
            )
        groups = layer.layout.groups(tuples)
        self._groups = torch.zeros(tuples, dtype=torch.int64) if groups is None else groups
        if len(self._groups) != tuples:
            raise ValueError(
                f"layer must have a row of its template for each of its {tuples} tuples; "
                f"got {len(self._groups)}"
            )
        counts = self._groups.bincount()
        if (cells := len(counts) * self._size) >= 2**63:
            raise ValueError(f"layer must have fewer than 2**63 places in all groups; got {cells}")
        # Tuples in rows of equal length, each of one group: a group has one row, or several.
        self._width = math.gcd(*counts.tolist())
        self._count, self._order = len(counts), self._groups.argsort(stable=True).to(device)
        self._groups = self._groups.to(device)
        self._saved_groups = self._groups[self._order].repeat_interleave(_SAVED)
        self._distinct = distinct
        # Whether each tuple has a learned value of its own.
        own = len(self.source.values) == tuples and layer.value_of is None
        self._owns_values = own and isinstance(self.source.values, nn.Parameter)
        saved = _SAVED * tuples
        self.places = torch.zeros(saved, dtype=torch.int64, device=device)
        self.gradients = torch.full((saved,), -1.0, device=device)
        self.ages = torch.zeros(tuples, dtype=torch.int64, device=device)
        self.signals = torch.zeros(tuples, device=device)
        self.moves = torch.zeros((), dtype=torch.int64, device=device)

    def attach(self) -> None:
        """Read the gradients of the layer from now on."""
        self.layer.on_sample = self._on_sample

    def remove(self) -> None:
        """Detach from the layer."""
        if self.layer.on_sample == self._on_sample:
            self.layer.on_sample = None

    @torch.no_grad()
    def rewire(self) -> None:
        """Move the wasted tuples now."""
        layer, wiring = self.layer, self.layer.wiring()
        held = layer.nearest_places(wiring.means)
        strength = contributions(wiring)
        apart = None if self._distinct else self._groups
        keeper = find_keepers(wiring.means, held, strength, self._space, apart)
        repeated = keeper != torch.arange(len(keeper), device=keeper.device)
        self.ages += 1
        typical = strength.square().mean().sqrt()
        weak = strength < self.negligible * typical
        if self._inputs_only:
            signals = pooled(self.signals).view(-1, len(self.signals)).amax(0)
            weak |= (signals == 0) & (signals > 0).any()
        weak &= self.ages > self.patience
        moved, goal = self._choose(repeated | weak, number_places(held, self._space, apart))
        if self._owns_values:
            values = self.source.values
            # With distinct places the keeper may write elsewhere.
            given = moved & repeated & (self._groups[keeper] == self._groups)
            values.index_add_(0, keeper, torch.where(given, values, 0.0))
        self._settle(moved, goal)
        self.ages.masked_fill_(moved, 0)
        self.moves += moved.sum()
        self.gradients.fill_(-1.0)
        self.signals.zero_()

    def state_dict(self) -> dict[str, Any]:
        """Return copies of all that changes."""
        return {name: getattr(self, name).clone() for name in _STATE}

    def check_state(self, state: dict[str, Any]) -> None:
        """Refuse the state of a layer with another number of tuples."""
        if (saved := len(state["ages"])) != (tuples := len(self.ages)):
            raise ValueError(f"state must be of a layer with {tuples} tuples; got {saved}")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what `state_dict` returned."""
        self.signals.zero_()  # older states have none
        for name in _STATE:
            if name in state:
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
        if self._inputs_only:
            self._note_signals(gradients)
        # Without the nearest tuples: those places are held, and would come in every pass.
        indices, gradient = self.layer.random_part(gradients)
        size = gradient.abs().float()
        sizes = self._in_rows(torch.where(size.isfinite(), size, -1.0))
        saved = self.gradients.view(-1, _SAVED * self._width)
        sizes = torch.cat([saved, sizes], -1)
        places = self._in_rows(flat_index(indices, self._space))
        places = torch.cat([self.places.view_as(saved), places], -1)
        best, which = sizes.topk(saved.shape[-1])
        places = places.gather(-1, which)
        self.places.copy_(places.flatten())
        # A place that was seen before, with a larger gradient, makes room for another.
        repeated = mark_repeats(places.unsqueeze(-1), (self._size,))
        self.gradients.copy_(torch.where(repeated, -1.0, best).flatten())

    def _note_signals(self, gradients: Sample) -> None:
        indices, gradient = self.layer.nearest_part(gradients)
        held = self.layer.nearest_places(self.layer.wiring().means)
        each = indices.view(-1, len(held), *indices.shape[1:])  # of one wiring or several
        mine = (each == held.unsqueeze(1)).all(-1)
        sizes = torch.where(mine, gradient.abs().float().view_as(mine), 0.0)
        torch.maximum(self.signals, sizes.amax((0, 2)), out=self.signals)

    def _in_rows(self, samples: Tensor) -> Tensor:
        """Return the samples of all tuples, from one wiring or several, as rows of one group."""
        each = self.layer.local_samples + self.layer.global_samples
        samples = samples.view(-1, len(self.ages), each)
        if self._count == 1:
            return samples.reshape(1, -1)
        rows = samples[:, self._order].unflatten(1, (-1, self._width))
        return rows.transpose(0, 1).flatten(1)

    def _choose(
        self, wasted: Bool[Tensor, " k"], holds: Int[Tensor, " k"]
    ) -> tuple[Bool[Tensor, " k"], Int[Tensor, " k"]]:
        """Return which wasted tuples move, and where to: the best free places of their groups."""
        places, sizes = pooled(self.places), pooled(self.gradients)
        groups = self._saved_groups.repeat(len(places) // len(self.places))
        sizes, order = sizes.sort(descending=True, stable=True)
        places, groups = places[order], groups[order]
        # If places are distinct, one that several groups ask for goes to the largest gradient.
        keys = places if self._distinct else groups * self._size + places
        repeated = mark_repeats(keys.unsqueeze(-1), (self._count * self._size,))
        taken = repeated | is_in(keys, holds) | (sizes <= 0)
        moved, which = match(wasted, self._groups, ~taken, groups, self._count)
        return moved, places[which]

    def _settle(self, moved: Bool[Tensor, " k"], goal: Int[Tensor, " k"]) -> None:
        """Put the moved tuples at their goals, in the state of new tuples."""
        source = self.source
        # All axes share one raw variance; the longest axis decides.
        width = raw_variance(_FRESH_VARIANCE, max(self._space), self.layer.variance_scale)
        source.move(moved, self.layer.raw_means_at(unflatten(goal, self._space)), width)
        parameters: list[Tensor] = [source.raw_means, source.raw_variances]
        if self._owns_values:
            source.values.masked_fill_(moved, 0)
            parameters.append(source.values)
        for parameter in parameters:
            rows = moved.view(-1, *[1] * (parameter.dim() - 1))
            for state in self.optimizer.state.get(parameter, {}).values():
                if torch.is_tensor(state) and state.shape == parameter.shape:
                    state.masked_fill_(rows, 0)


def why_not(layer: object) -> Exception | None:
    """Return why a layer cannot be rewired; None if it can."""
    if not isinstance(layer, HyperLayer) or not isinstance(layer.source, FreeTuples):
        kind = type(layer.source if isinstance(layer, HyperLayer) else layer).__name__
        return TypeError(f"layer must be a layer with free tuples, like SparseLayer; got {kind}")
    if None in layer.in_shape:
        return ValueError(f"layer must have fixed sizes; got in_shape {layer.in_shape}")
    if not layer.local_samples + layer.global_samples:
        return ValueError("layer must have local or global samples, to discover places; got none")
    return None
