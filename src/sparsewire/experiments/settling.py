"""From wide and sampled to narrow and rounded, while a layer is trained."""

from typing import Any

import torch

from sparsewire.layers.hyper import HyperLayer


class Settling:
    """Lets the variances of a layer fall, and its passes become rounded, at set times.

    The numbers that do it lie on the device and are changed there, also between replays of
    a captured step.

    Args:
        layer: The layer.
        steps: How many steps there are.
        falls: Two shares of the steps, between which what variances have above their floor falls
            to nothing, with the third power of what is left of the time; None leaves them free.
        rounds: Share of the steps from which on passes are rounded, with the gradient of sampled
            ones; None for never.
        device: Where the layer is.
    """

    def __init__(
        self,
        layer: HyperLayer,
        steps: int,
        falls: tuple[float, float] | None,
        rounds: float | None,
        device: torch.device,
    ) -> None:
        self.steps, self.falls, self.rounds, self.step = steps, falls, rounds, 0
        self.factor = None if falls is None else torch.ones((), device=device)
        self.hardness = None if rounds is None else torch.zeros((), device=device)
        layer.variance_factor, layer.hardness = self.factor, self.hardness
        self._set()

    def advance(self) -> None:
        """Go on by a step."""
        self.step += 1
        self._set()

    def left(self) -> float:
        """Return what is left of the time in which variances fall, from 1 to 0."""
        begin, end = self.falls or (0.0, 1.0)
        return min(1.0, max(0.0, (end - self.step / self.steps) / (end - begin)))

    def state_dict(self) -> dict[str, Any]:
        """Return the step."""
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what `state_dict` returned."""
        self.step = state["step"]
        self._set()

    def _set(self) -> None:
        if self.factor is not None:
            self.factor.fill_(self.left() ** 3)
        if self.hardness is not None and self.rounds is not None:
            self.hardness.fill_(float(self.step / self.steps >= self.rounds))
