"""From easy to hard: digits lie near the middle first, and anywhere later."""

import torch

from sparsewire_lab.train.schedules import Clock


class Spreading(Clock):
    """Tells in which share of a canvas, around its middle, digits may lie.

    Args:
        steps: How many steps there are.
        start: The share at first.
        until: Share of the steps after which they may lie anywhere.
        device: Where canvases are made.
    """

    def __init__(self, steps: int, start: float, until: float, device: torch.device) -> None:
        super().__init__(steps)
        self.start, self.until = start, until
        self.share = torch.ones((), device=device)
        self.set()

    def set(self) -> None:
        """Set the share."""
        self.share.fill_(self.start + (1 - self.start) * self.between(0.0, self.until))
