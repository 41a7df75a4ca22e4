"""Rewiring of the layers of a model."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sparsewire.annotations import Int
from sparsewire.checks import check_count
from sparsewire.nn.hyper import HyperLayer
from sparsewire.rewire.layer import LayerRewiring, why_not


class Rewire:
    """Moves wasted tuples of free layers to places where the loss asks for a connection.

    Backpropagation gives the gradient of the loss with respect to the value v' of *every* sampled
    place, including those without a connection. The best places are saved, and every `every` steps

    - a tuple is *wasted* if it rounds to a place that a stronger one holds, or is so near to a
      stronger one that both share their places, or if it contributes next to nothing to its place:
      |v| / Π_d max(1, √(2π σ²_d)), its value times the share that its density leaves at its mean,
      below `negligible` of the root mean square over all tuples. Where a template fixes all output
      columns, so is a tuple on an input that is always 0: the gradient at its place was 0 since
      the last rewiring;
    - each wasted tuple takes the saved place with the largest |∂loss/∂v'| that no tuple holds. It
      starts there with a small variance, a fresh optimiser state and, if values are learned, with
      the value 0; its old value is added to that of the tuple with which it shared its place.

    With a template a tuple stays among the places with its fixed columns, such as those of one
    output; in a block diagonal matrix it stays in its block. All of the above holds for each such
    group apart. Nothing dense is stored: at most four places are saved for each tuple.

    Args:
        layer: A layer with free parameters (`SparseLinear`, `SparseLayer`, or `HyperLayer` of a
            `FreeTuples`) of any rank, a sequence of such layers, or a module that contains some.
        optimizer: The optimiser of their parameters, whose state is reset for tuples that move.
        every: Number of steps from one rewiring to the next.
        negligible: Share of the typical contribution below which a tuple counts as wasted.
        patience: Number of rewirings for which a tuple that moved may stay without contributing.
        distinct: Whether tuples of different outputs, too, may not share an input, so that a layer
            selects different inputs: a tuple on the input of a stronger one is wasted. For layers
            whose learned columns are all input columns.

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
        layer: nn.Module | Sequence[nn.Module],
        optimizer: Optimizer,
        every: int = 100,
        *,
        negligible: float = 0.05,
        patience: int = 1,
        distinct: bool = False,
    ) -> None:
        layers = _find_layers(layer)
        if not isinstance(optimizer, Optimizer):
            raise TypeError(
                f"optimizer must be a torch.optim.Optimizer; got {type(optimizer).__name__}"
            )
        self.every, self.negligible = check_count("every", every, least=1), negligible
        options: Any = {"negligible": negligible, "patience": patience, "distinct": distinct}
        self.steps = 0
        #: What is saved and counted for each layer, in order.
        self.layers = [LayerRewiring(one, optimizer, **options) for one in layers]
        for one in self.layers:
            one.attach()

    def __repr__(self) -> str:
        return f"Rewire(every={self.every}, negligible={self.negligible}, steps={self.steps})"

    @property
    def moves(self) -> Int[Tensor, ""]:
        """Number of moves so far, in all layers."""
        return torch.stack([one.moves for one in self.layers]).sum()

    def remove(self) -> None:
        """Detach from the layers."""
        for one in self.layers:
            one.remove()

    def step(self) -> None:
        """Count a step; after every `every`-th, move the wasted tuples."""
        self.steps += 1
        if self.steps % self.every == 0:
            self.rewire()

    def rewire(self) -> None:
        """Move the wasted tuples now."""
        for one in self.layers:
            one.rewire()

    def state_dict(self) -> dict[str, Any]:
        """Return the saved places and counts, for a checkpoint."""
        return {"steps": self.steps, "layers": [one.state_dict() for one in self.layers]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what `state_dict` returned; the layers must have as many tuples as then."""
        states = state.get("layers", [state])  # older states are of one layer
        if (saved := len(states)) != (count := len(self.layers)):
            raise ValueError(f"state must be of {count} layers; got {saved}")
        for one, part in zip(self.layers, states, strict=True):
            one.check_state(part)
        self.steps = int(state["steps"])
        for one, part in zip(self.layers, states, strict=True):
            one.load_state_dict(part)


def _find_layers(given: Any) -> list[HyperLayer]:
    """Return one layer, those of a sequence, or those in a module that can be rewired."""
    if isinstance(given, HyperLayer) or not isinstance(given, nn.Module):
        layers = list(given) if isinstance(given, Sequence) else [given]
    elif not (layers := [part for part in given.modules() if why_not(part) is None]):
        kind = type(given).__name__
        raise TypeError(
            f"layer must be or contain a layer with free tuples, like SparseLayer; got {kind}"
        )
    if not layers:
        raise ValueError("layer must be at least one layer; got an empty sequence")
    for layer in layers:
        if (reason := why_not(layer)) is not None:
            raise reason
    if len({id(layer) for layer in layers}) < len(layers):
        raise ValueError("layer must hold each layer once; got one twice")
    return layers
