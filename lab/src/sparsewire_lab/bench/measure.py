"""Time and peak memory of a call, on the CPU and on a GPU."""

import ctypes
import gc
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

MIB = 2**20
_MANY = 500
_FEW = 3
_LONG = 16


class Measured(NamedTuple):
    """Median time of a call, how often it was timed, and the extra memory at its peak.

    Noise is the distance between the quartiles of the times, as a share of the median.
    """

    ms: float
    repeats: int
    noise: float | None
    extra_mib: float | None = None


class CpuMeter(NamedTuple):
    """Measures with the clock and the peak of the resident memory, which Linux can reset.

    What a first call loads and compiles must be done before.
    """

    device: torch.device
    budget: float  # seconds for the repeats of a call

    def time(self, call: Callable[[], Any]) -> Measured:
        """Time a call, several times."""
        return self._repeat(call, [_clocked(call)])

    def measure(self, call: Callable[[], Any]) -> Measured:
        """Time calls, and measure the memory that the first needs beyond what is held before."""
        before = settle_memory()
        first = _clocked(call)
        after = None if before is None else _from_status("VmHWM")
        extra = None if before is None or after is None else max(after - before, 0) / MIB
        return self._repeat(call, [first])._replace(extra_mib=extra)

    def _repeat(self, call: Callable[[], Any], times: list[float]) -> Measured:
        # A call much longer than the budget is timed once: its noise is relatively small.
        least = _FEW if times[0] < _LONG * self.budget else 1
        while len(times) < _MANY and (len(times) < least or sum(times) < self.budget):
            times.append(_clocked(call))
        return _summed_up(times)


class CudaMeter(NamedTuple):
    """Measures with events on the stream and the peak of torch's allocator."""

    device: torch.device
    budget: float

    def time(self, call: Callable[[], Any]) -> Measured:
        """Time a call, several times; short calls are timed in groups, as an event has a cost."""
        call()
        seconds = max(self._events(call, 1), 1e-6)
        together = max(1, min(100, round(1e-3 / seconds)))
        rounds = max(_FEW, min(_MANY, round(self.budget / (seconds * together))))
        if seconds > _LONG * self.budget:
            return _summed_up([seconds])
        return _summed_up([self._events(call, together) for _ in range(rounds)], together)

    def measure(self, call: Callable[[], Any]) -> Measured:
        """Return the time, and the memory of one call."""
        extra, _ = self.peak(call)
        return self.time(call)._replace(extra_mib=extra)

    def peak(self, call: Callable[[], Any]) -> tuple[float, Any]:
        """Return the extra MiB of a call at its peak, and its result."""
        gc.collect()
        torch.cuda.synchronize(self.device)
        before = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        result = call()
        torch.cuda.synchronize(self.device)
        return (torch.cuda.max_memory_allocated(self.device) - before) / MIB, result

    def _events(self, call: Callable[[], Any], together: int) -> float:
        """Return the seconds of one call, the mean of several in a row."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(together):
            call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3 / together


Meter = CpuMeter | CudaMeter


def meter_for(device: torch.device, budget: float) -> Meter:
    """Return the meter of a device."""
    return CudaMeter(device, budget) if device.type == "cuda" else CpuMeter(device, budget)


def captured(call: Callable[[], Any]) -> Callable[[], Any]:
    """Return a call that replays this one as a CUDA graph, with the same tensors."""
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()

    def replay() -> Any:
        graph.replay()
        return result

    return replay


def settle_memory() -> int | None:
    """Release free memory, reset the peak, and return the resident bytes.

    None where the peak of a running process cannot be reset: only Linux can.
    """
    gc.collect()
    if sys.platform.startswith("linux"):
        getattr(ctypes.CDLL(None), "malloc_trim", abs)(0)  # glibc alone has it
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return _from_status("VmRSS")


def _from_status(name: str) -> int | None:
    status = Path("/proc/self/status").read_text()
    value = re.search(rf"^{name}:\s*(\d+)", status, re.MULTILINE)
    return int(value[1]) * 1024 if value else None


def _summed_up(seconds: list[float], together: int = 1) -> Measured:
    median, noise = statistics.median(seconds), None
    if len(seconds) > 1:
        low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
        noise = (high - low) / median if median else None
    return Measured(median * 1e3, len(seconds) * together, noise)


def _clocked(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
