"""From wide and sampled to narrow and rounded, while a layer is trained."""

from typing import Any

import torch

from sparsewire.layers.hyper import HyperLayer


class Settling:
    """Lets the variances of a layer fall, and its passes become rounded, at set times.

    Variances are multiplied, above their floor, by (1 − t / settle)³ at the share t of the steps,
    and by 0 from `settle` on. From the share `straight` on, passes are rounded, with the gradient
    of sampled ones. The numbers lie on the device and are changed there, also between replays of
    a captured step.

    Args:
        layer: The layer.
        steps: How many steps there are.
        settle: When variances are at their floor, as a share of the steps; 0 leaves them alone.
        straight: When passes begin to be rounded, as a share of the steps; 1 means never.
        device: Where the layer is.
    """

    def __init__(
        self,
        layer: HyperLayer,
        steps: int,
        settle: float,
        straight: float | None,
        device: torch.device,
    ) -> None:
        self.steps, self.settle = steps, settle
        self.straight = 1.0 if straight is None else straight
        self.step = 0
        self.factor = layer.variance_factor = torch.ones((), device=device) if settle else None
        rounds = self.straight < 1
        self.hardness = layer.hardness = torch.zeros((), device=device) if rounds else None
        self._set()

    def advance(self) -> None:
        """Go on by a step."""
        self.step += 1
        self._set()

    def state_dict(self) -> dict[str, Any]:
        """Return the step."""
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what `state_dict` returned."""
        self.step = state["step"]
        self._set()

    def _set(self) -> None:
        share = self.step / self.steps
        if self.factor is not None:
            self.factor.fill_(max(0.0, 1 - share / self.settle) ** 3)
        if self.hardness is not None:
            self.hardness.fill_(float(share >= self.straight))
