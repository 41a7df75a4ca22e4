"""What changes while a model that looks is trained: variances, rounding, and where digits are."""

import torch

from sparsewire.nn.hyper import HyperLayer
from sparsewire_lab.train.schedules import Clock


class Annealing(Clock):
    """Reduces the variances of a layer to their floor, and begins to round its passes.

    Args:
        layer: The layer.
        steps: Number of steps of the run.
        falls: Two shares of the steps, between which the part of the variances above their floor
            falls to zero, as the cube of the time left; None leaves variances free.
        rounds: Share of the steps after which passes are rounded, with the gradient of sampled
            ones; None for never.
        device: Device of the layer.
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
        """Return the part of the fall that is left, from 1 to 0."""
        return 1 - self.between(*(self.falls or (0.0, 1.0)))

    def set(self) -> None:
        """Set the factor of the variances, and whether passes are rounded."""
        if self.factor is not None:
            self.factor.fill_(self.left() ** 3)
        if self.hardness is not None and self.rounds is not None:
            self.hardness.fill_(float(self.step / self.steps >= self.rounds))


class Placement(Clock):
    """Grows the part of a canvas, around its middle, in which digits are placed.

    Args:
        steps: Number of steps of the run.
        start: Share of the canvas's sides at first.
        until: Share of the steps after which digits may be anywhere.
        device: Device of the canvases.
    """

    def __init__(self, steps: int, start: float, until: float, device: torch.device) -> None:
        super().__init__(steps)
        self.start, self.until = start, until
        self.share = torch.ones((), device=device)
        self.set()

    def set(self) -> None:
        """Set the share."""
        self.share.fill_(self.start + (1 - self.start) * self.between(0.0, self.until))
