"""A first signal is noted, a second Ctrl-C interrupts, and handlers are given back."""

import signal
import threading
from collections.abc import Iterator

import pytest

from sparsewire_lab.train.interrupts import Interrupts

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in SIGNALS]


@pytest.fixture(autouse=True)
def _own_handlers() -> Iterator[None]:
    """Handlers of our own around each test: neither the default ones nor pytest's."""
    before = [signal.signal(number, ignore) for number in SIGNALS]
    yield
    for number, handler in zip(SIGNALS, before, strict=True):
        signal.signal(number, handler)


def ignore(*_: object) -> None:
    pass


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")]
)
def test_a_first_signal_is_answered_at_once_if_wanted(
    number: int, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with Interrupts(announce=True):
        signal.raise_signal(number)
        answer = f"\n{name}: saving and stopping soon; Ctrl-C stops now, without saving\n"
        assert capfd.readouterr().err == answer
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    with Interrupts():
        signal.raise_signal(number)
    assert capfd.readouterr().err == ""


def test_handlers_are_set_and_given_back_also_after_an_error() -> None:
    with Interrupts():
        assert ignore not in handlers()
    assert handlers() == [ignore, ignore]
    with pytest.raises(ZeroDivisionError), Interrupts():
        raise ZeroDivisionError
    assert handlers() == [ignore, ignore]


@pytest.mark.parametrize("first", SIGNALS)
def test_a_first_signal_is_noted_and_ctrl_c_after_it_interrupts(first: signal.Signals) -> None:
    with Interrupts() as interrupts:
        assert interrupts.received is None
        signal.raise_signal(first)
        assert interrupts.received == first
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert handlers() == [ignore, ignore]


def test_a_second_sigterm_waits_as_the_first() -> None:
    with Interrupts() as interrupts:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert interrupts.received == signal.SIGTERM


def test_other_threads_leave_the_handlers() -> None:
    seen: list[object] = []

    def enter() -> None:
        with Interrupts() as interrupts:
            seen.extend([handlers(), interrupts.received])

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [[ignore, ignore], None]
    assert handlers() == [ignore, ignore]
