"""From wide and sampled to narrow and rounded, while a layer is trained."""

import torch

from sparsewire.nn.hyper import HyperLayer
from sparsewire_lab.train.schedules import Clock


class Settling(Clock):
    """Lets the variances of a layer fall, and its passes become rounded, at set times.

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
        super().__init__(steps)
        self.falls, self.rounds = falls, rounds
        self.factor = None if falls is None else torch.ones((), device=device)
        self.hardness = None if rounds is None else torch.zeros((), device=device)
        layer.variance_factor, layer.hardness = self.factor, self.hardness
        self.set()

    def left(self) -> float:
        """Return what is left of the time in which variances fall, from 1 to 0."""
        return 1 - self.between(*(self.falls or (0.0, 1.0)))

    def set(self) -> None:
        """Set the factor of the variances, and whether passes are rounded."""
        if self.factor is not None:
            self.factor.fill_(self.left() ** 3)
        if self.hardness is not None and self.rounds is not None:
            self.hardness.fill_(float(self.step / self.steps >= self.rounds))
