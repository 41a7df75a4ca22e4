"""How long a step takes: stretches of steps, by a clock that the test turns."""

from pathlib import Path

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


def stretch(timing: Timing, clock: Clock, first: int, last: int, seconds: float) -> None:
    timing.begin(first)
    clock.now += seconds
    timing.end(last)


def test_a_step_takes_its_share_of_a_stretch_and_what_lies_between_does_not_count(
    clock: Clock,
) -> None:
    timing = Timing(CPU)
    stretch(timing, clock, 0, 8, 2.0)
    assert timing.step_ms == 250.0
    for first in (10, 20):
        clock.now += 1000.0
        stretch(timing, clock, first, first + 10, 0.5)
    assert timing.step_ms == 50.0
    assert timing.peak_memory is None  # known of GPUs alone


def test_the_first_stretch_is_left_out_if_there_are_others(clock: Clock) -> None:
    timing = Timing(CPU)
    stretch(timing, clock, 0, 1, 60.0)
    assert timing.step_ms == 60_000.0
    for first, seconds in ((1, 3.0), (2, 1.0), (3, 100.0)):
        stretch(timing, clock, first, first + 1, seconds)
    assert timing.step_ms == 3000.0  # the median of the others: one slow stretch changes nothing


def test_stretches_without_steps_do_not_count(clock: Clock) -> None:
    timing = Timing(CPU)
    assert timing.step_ms is None
    stretch(timing, clock, 5, 5, 9.0)
    assert timing.step_ms is None
    stretch(timing, clock, 5, 7, 1.0)
    stretch(timing, clock, 7, 7, 9.0)
    assert timing.step_ms == 500.0


def test_a_new_beginning_forgets_the_one_before(clock: Clock) -> None:
    timing = Timing(CPU)
    timing.begin(0)
    clock.now += 50.0
    stretch(timing, clock, 4, 5, 1.0)
    assert timing.step_ms == 1000.0


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
def test_evaluations_and_checkpoints_take_nothing_from_the_steps(
    folder: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step takes a second on the clock, an evaluation an hour, and saving a day."""
    training = training_of(Toy(steps=12, evaluate_every=4, checkpoint_every=5), folder)
    slow = {"evaluate": 3600.0, "snapshot": 3600.0}
    for name, seconds in slow.items():
        method = getattr(training.trial, name)

        def waits(*given: object, method: object = method, seconds: float = seconds) -> object:
            clock.now += seconds
            return method(*given)  # pyright: ignore[reportCallIssue]

        monkeypatch.setattr(training.trial, name, waits)
    advance, write = training.advance, training._write

    def one_second() -> torch.Tensor:
        clock.now += 1.0
        return advance()

    def one_day(save: object) -> None:
        clock.now += 86_400.0
        write(save)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(training, "advance", one_second)
    monkeypatch.setattr(training, "_write", one_day)
    training.run()
    training.conclude()
    assert training.step == 12
    # Between the steps 0, 4, 5, 8, 10 and 12, at which it was judged or saved.
    assert training.timing._milliseconds == [1000.0] * 5
    assert training.timing.step_ms == 1000.0


@pytest.mark.usefixtures("unchecked")
def test_a_resumed_run_times_the_steps_that_it_makes(folder: Path, clock: Clock) -> None:
    stop(Toy(), folder, 6)
    training = training_of(Toy(), folder)
    training.resume()
    clock.now += 500.0
    advance = training.advance

    def two_seconds() -> torch.Tensor:
        clock.now += 2.0
        return advance()

    training.advance = two_seconds
    training.run()
    # Between the steps 6, 8, 10 and 12.
    assert training.timing._milliseconds == [2000.0] * 3
