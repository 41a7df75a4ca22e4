"""Ctrl-C and SIGTERM end a run after its step, not within it."""

import contextlib
import os
import signal
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STDERR = 2


class Interrupts:
    """Notes a first signal while it is on; the second Ctrl-C interrupts at once.

    Args:
        announce: Whether to say on standard error what a first signal does.
    """

    def __init__(self, announce: bool = False) -> None:
        self.announce = announce
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        for number in _SIGNALS:
            try:
                self._before[number] = signal.signal(number, self._note)
            except ValueError:  # not the main thread: signals go elsewhere
                break
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.received is None and self.announce:
            text = (
                f"\n{name_of(number)}: saving and stopping soon; Ctrl-C stops now, without saving\n"
            )
            with contextlib.suppress(OSError):
                os.write(_STDERR, text.encode())  # print may be what the signal interrupted
        self.received = number


def name_of(number: int) -> str:
    """Return the name of a signal for people."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
