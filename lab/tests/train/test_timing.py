"""How long a step takes: stretches of steps, by a clock that the test turns."""

from pathlib import Path
from typing import Any

import pytest
import torch
from lab.tests.train.toy import Toy, stop, training_of

from sparsewire_lab.train import timing as module
from sparsewire_lab.train.timing import Timing

CPU = torch.device("cpu")


class Clock:
    """Shows seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


@pytest.mark.parametrize(
    ("stretches", "want"),
    [
        ([], None),
        ([(5, 5, 9.0)], None),  # without a step
        ([(5, 5, 9.0), (5, 7, 1.0), (7, 7, 9.0)], 500.0),
        ([(0, 8, 2.0)], 250.0),
        ([(0, 8, 2.0), (10, 20, 0.5), (20, 30, 0.5)], 50.0),
        # The first is left out if there are others, and one slow stretch changes no median.
        ([(0, 1, 60.0)], 60_000.0),
        ([(0, 1, 60.0), (1, 2, 3.0), (2, 3, 1.0), (3, 4, 100.0)], 3000.0),
    ],
)
def test_a_step_takes_its_share_of_a_stretch_and_what_lies_between_does_not_count(
    stretches: list[tuple[int, int, float]], want: float | None, clock: Clock
) -> None:
    timing = Timing(CPU)
    for first, last, seconds in stretches:
        timing.begin(0)  # is forgotten with the next beginning
        clock.now += 1000.0
        timing.begin(first)
        clock.now += seconds
        timing.end(last)
    assert timing.step_ms == want
    assert timing.peak_memory is None  # known of GPUs alone


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_the_peak_is_of_steps_and_not_of_what_lies_between() -> None:
    timing, device = Timing(torch.device("cuda")), "cuda"
    between = torch.empty(2**26, dtype=torch.uint8, device=device)
    del between
    before = torch.cuda.memory_allocated()
    timing.begin(0)
    held = torch.empty(2**22, dtype=torch.uint8, device=device)
    del held
    timing.end(1)
    assert timing.peak_memory is not None
    assert 2**22 <= timing.peak_memory - before < 2**24


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("start", "stretches"), [(0, 5), (6, 3)])
def test_evaluations_and_checkpoints_take_nothing_from_the_steps(
    start: int, stretches: int, folder: Path, clock: Clock
) -> None:
    """Every step takes a second on the clock, an evaluation an hour, and saving a day."""
    if start:
        stop(Toy(), folder, start)
    training = training_of(Toy(), folder)
    if start:
        training.resume()

    def slow(owner: Any, name: str, seconds: float) -> None:
        method = getattr(owner, name)

        def waits(*given: object) -> object:
            clock.now += seconds
            return method(*given)

        setattr(owner, name, waits)

    slow(training, "advance", 1.0)
    slow(training.trial, "evaluate", 3600.0)
    slow(training.trial, "snapshot", 3600.0)
    slow(training, "_write", 86_400.0)
    training.run()
    training.conclude()
    # Between the steps 0, 4, 5, 8, 10 and 12, at which it was judged or saved; or 6, 8, 10 and 12.
    assert training.timing._milliseconds == [1000.0] * stretches
    assert training.timing.step_ms == 1000.0
