"""The mean loss between evaluations, summed on the device."""

from typing import Any

import torch
from torch import Tensor


class Meter:
    """Mean loss since the last evaluation and the first step with a bad one, on the device.

    The host reads them when it needs them; noting a loss makes it wait for nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self.total = torch.zeros((), dtype=torch.float64, device=device)
        self.count = torch.zeros((), dtype=torch.int64, device=device)
        self.steps = torch.zeros((), dtype=torch.int64, device=device)
        self.first_bad = torch.zeros((), dtype=torch.int64, device=device)  # 0: none

    def note(self, loss: Tensor) -> None:
        """Count a step and its loss."""
        self.total += loss
        self.count += 1
        self.steps += 1
        new = ~loss.isfinite() & (self.first_bad == 0)
        self.first_bad.copy_(torch.where(new, self.steps, self.first_bad))

    def mean(self) -> float | None:
        """Return the mean loss since it was last asked for; None if there was no step."""
        count, total = int(self.count), float(self.total)
        self.count.zero_()
        self.total.zero_()
        return total / count if count else None

    def state_dict(self) -> dict[str, Any]:
        """Return the numbers."""
        return {name: tensor.clone() for name, tensor in vars(self).items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what `state_dict` returned."""
        for name, tensor in vars(self).items():
            tensor.copy_(state[name])
