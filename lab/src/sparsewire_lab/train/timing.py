"""How long a training step takes and how much memory it needs, evaluations and all else apart."""

import time
from statistics import median

import torch


class Timing:
    """Times stretches of steps between moments at which the device has no work left.

    Args:
        device: Where the steps run.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._milliseconds: list[float] = []
        self._peak = 0
        self._step, self._began = 0, time.perf_counter()

    def begin(self, step: int) -> None:
        """Start a stretch after this many steps."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
        self._step, self._began = step, time.perf_counter()

    def end(self, step: int) -> None:
        """End the stretch; one without steps does not count."""
        if step <= self._step:
            return
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            # Replayed graphs allocate nothing; the peak is from the steps before the capture.
            self._peak = max(self._peak, torch.cuda.max_memory_allocated(self.device))
        seconds = time.perf_counter() - self._began
        self._milliseconds.append(1000 * seconds / (step - self._step))

    @property
    def step_ms(self) -> float | None:
        """Milliseconds of a step: the median stretch, without the first if there are others.

        The first one compiles kernels, and captures the step.
        """
        if not self._milliseconds:
            return None
        return round(median(self._milliseconds[1:] or self._milliseconds), 4)

    @property
    def peak_memory(self) -> int | None:
        """Most bytes that tensors took on a GPU; None elsewhere."""
        return self._peak or None
