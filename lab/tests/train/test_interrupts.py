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
@pytest.mark.parametrize("announce", [True, False])
def test_a_first_signal_is_noted_and_answered_if_wanted_and_then_ctrl_c_interrupts(
    announce: bool, number: int, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with Interrupts(announce) as interrupts:
        assert ignore not in handlers()
        assert interrupts.received is None
        signal.raise_signal(number)
        assert interrupts.received == number
        answer = f"\n{name}: saving and stopping soon; Ctrl-C stops now, without saving\n"
        assert capfd.readouterr().err == (answer if announce else "")
        signal.raise_signal(signal.SIGTERM)  # waits as the first
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert capfd.readouterr().err == ""
    assert handlers() == [ignore, ignore]


def test_handlers_are_given_back_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), Interrupts():
        raise ZeroDivisionError
    assert handlers() == [ignore, ignore]


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
