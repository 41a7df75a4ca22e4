"""What changes with the time of training."""

import math
from collections.abc import Callable
from typing import Any

_RISE = 0.02  # share of the steps in which learning rates rise, where they fall later


class Clock:
    """Counts steps, for numbers that follow them.

    Those lie in tensors on the device and are changed there, also between replays of a captured
    step.

    Args:
        steps: How many steps there are.
    """

    def __init__(self, steps: int) -> None:
        self.steps, self.step = steps, 0

    def advance(self) -> None:
        """Go on by a step."""
        self.step += 1
        self.set()

    def between(self, begin: float, end: float) -> float:
        """Return how far the time is between two shares of the steps, from 0 to 1."""
        return min(1.0, max(0.0, (self.step / self.steps - begin) / (end - begin)))

    def set(self) -> None:
        """Set what follows the steps."""

    def state_dict(self) -> dict[str, Any]:
        """Return the step."""
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what `state_dict` returned."""
        self.step = state["step"]
        self.set()


def rise_and_fall(steps: int) -> Callable[[int], float]:
    """Return a short rise, times a cosine from 1 to 0 over all steps.

    Examples:
        >>> factor = rise_and_fall(100)
        >>> [round(factor(step), 2) for step in (0, 1, 50, 100)]
        [0.5, 1.0, 0.5, 0.0]
    """

    def factor(step: int) -> float:
        risen = min(1.0, (step + 1) / max(1.0, _RISE * steps))
        return risen * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))

    return factor
