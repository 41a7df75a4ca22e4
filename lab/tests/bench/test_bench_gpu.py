"""What is particular to a GPU: its arithmetic with a pretended one, the rest where there is one."""

import importlib.util
import itertools
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

import sparsewire as sw
from sparsewire_lab.bench.cases import CEILINGS, Case
from sparsewire_lab.bench.measure import MIB, CudaMeter
from sparsewire_lab.bench.perform import Setting, capture_step, perform


class PretendedGpu:
    """A clock that calls move on, and memory that they take and give back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ms, self.held, self.most, self.calls = 0.0, 7 * MIB, 0, 0
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = gpu.ms

            def synchronize(self) -> None:
                pass

            def elapsed_time(self, end: Any) -> float:
                return end.at - self.at

        pretended = {
            "Event": Event,
            "synchronize": lambda device=None: None,
            "memory_allocated": lambda device=None: self.held,
            "max_memory_allocated": lambda device=None: self.most,
            "reset_peak_memory_stats": self._reset,
        }
        for name, value in pretended.items():
            monkeypatch.setattr(torch.cuda, name, value)

    def _reset(self, device: Any = None) -> None:
        self.most = self.held

    def take(self, ms: float, mib: int = 0) -> None:
        self.calls += 1
        self.ms += ms
        self.most = max(self.most, self.held + mib * MIB)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> PretendedGpu:
    return PretendedGpu(monkeypatch)


METER = CudaMeter(torch.device("cuda"), budget=0.5)


def test_short_calls_are_timed_together_and_long_ones_once(gpu: PretendedGpu) -> None:
    measured = METER.time(lambda: gpu.take(0.25))
    assert measured.ms == pytest.approx(0.25)
    assert measured.noise == pytest.approx(0.0, abs=1e-6)
    assert measured.repeats % 4 == 0
    assert measured.repeats * 0.25 == pytest.approx(500, rel=0.1)
    before = gpu.calls
    assert METER.time(lambda: gpu.take(9000.0)) == (9000.0, 1, None, None)
    assert gpu.calls == before + 2


def test_noise_is_the_distance_between_quartiles_and_memory_is_above_what_was_held(
    gpu: PretendedGpu,
) -> None:
    times = itertools.cycle([8.0, 10.0, 12.0])
    measured = METER.measure(lambda: gpu.take(next(times), mib=30))
    assert measured.ms == pytest.approx(10.0)
    assert measured.noise == pytest.approx(0.4)
    assert measured.extra_mib == pytest.approx(30)
    assert METER.peak(lambda: gpu.take(1.0, mib=3) or "result") == (3.0, "result")


def test_steps_are_captured_as_a_user_would(
    gpu: PretendedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    class Captured:
        captured = False

        def __call__(self) -> torch.Tensor:
            gpu.take(1.0, mib=5)
            self.captured = gpu.calls > 3
            return torch.tensor(0.5)

    def capture(step: Any, **options: Any) -> Captured:
        given.update(options, step=step)
        return Captured()

    def step() -> torch.Tensor:
        raise AssertionError("only its capture is called")

    monkeypatch.setattr(sw, "capture", capture, raising=False)
    extra, replay = capture_step(step, "an optimiser", METER)
    assert (extra, float(replay()), gpu.calls) == (5.0, 0.5, 5)
    assert given == {"step": step, "optimizer": "an optimiser", "device": torch.device("cuda")}


KERNEL = """
import torch
from sparsewire_lab.bench import ceilings
x = torch.rand(2 * ceilings.BLOCK)
wanted = x.clone()
for _ in range(ceilings.ROUNDS):
    wanted = torch.exp2(-wanted)
assert ceilings.exponentials(x) == x.numel() * ceilings.ROUNDS
assert torch.allclose(x, wanted, atol=1e-6), (x - wanted).abs().max()
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_the_kernel_of_the_exp_ceiling_does_what_it_counts() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", KERNEL], env=environment, check=True)


ON_GPU = [
    ("spread", "auto", 64, ""),
    ("spread", "auto", 64, "all pairs"),
    ("spread", "plain", 64, ""),
    ("spread", "chunked", 64, ""),
    ("step", "auto", 64, ""),
    ("step", "auto", 64, "floor variances"),
    ("glimpse", "auto", 1024, "1×32×32"),
    ("contexts", "auto", 2**17, ""),
    ("soft_rank", "auto", 64, ""),
    ("soft_sort", "auto", 64, ""),
    ("soft_sort", "bitonic values", 64, ""),
    ("sort_by", "auto", 16, "3×784"),
    ("sort_by", "torch.sort", 16, "3×784"),
    ("order_loss", "auto", 64, ""),
    ("canvases", "auto", 60, ""),
]
RATES = [("ceilings", name, 0, "") for name in CEILINGS]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.usefixtures("any_order")
@pytest.mark.parametrize(
    ("case", "mode"),
    [*itertools.product(ON_GPU, ("eager", "captured")), *((case, "eager") for case in RATES)],
    ids=str,
)
def test_cases_on_a_gpu(case: tuple[str, str, int, str], mode: str) -> None:
    row = perform(Case(*case, mode=mode, batch=4), Setting(device="cuda", budget=0.01))
    assert row["status"] == "ok", row["note"]
    if case in RATES:
        assert row["rate"] > 1e9
    elif case[0] == "canvases":
        assert row["ms_forward"] > 0
    else:
        assert row["ms_forward_backward"] > 0
        assert row["extra_mib"] >= 0
        if mode == "eager" or case[0] not in ("step", "contexts", "glimpse"):
            assert row["error"] < 1e-4
