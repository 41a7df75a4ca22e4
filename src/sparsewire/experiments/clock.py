"""What changes with the time of training."""

from typing import Any


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
