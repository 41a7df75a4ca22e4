"""Errors for people: a line that says what was wrong, and one that says how to see more."""

import argparse
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

DEBUG_WORD = "--debug"
DEBUG_VARIABLE = "SPARSEWIRE_DEBUG"

# Exit statuses: those of shells and of argparse.
FAILED, WRONG_USE, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141

_HOW_TO_DEBUG = f"the same command with {DEBUG_WORD} shows where it happened"


def complain(program: str, problem: object, status: int = FAILED, hint: str | None = None) -> int:
    """Print what went wrong and how to see more; return the exit status.

    With `--debug` the traceback of the error that is being handled comes first.

    Args:
        program: The words that name the command.
        problem: What went wrong: which argument, what was expected, what came.
        status: The exit status.
        hint: How to see more, if that is not the command's help or `--debug`.
    """
    debug = debugging()
    if debug and sys.exc_info()[0] is not None:
        traceback.print_exc()
    print(f"{program}: error: {problem}", file=sys.stderr)
    if hint is None:
        hint = f"{program} --help says more" if status == WRONG_USE else _HOW_TO_DEBUG
    if hint and not (debug and hint == _HOW_TO_DEBUG):
        print(hint, file=sys.stderr)
    return status


def debugging() -> bool:
    """Whether errors are shown with their tracebacks."""
    return os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")


@contextmanager
def debug_mode(wanted: bool) -> Iterator[None]:
    """Show tracebacks meanwhile if wanted, here and in the processes that are started."""
    before = os.environ.get(DEBUG_VARIABLE)
    if wanted:
        os.environ[DEBUG_VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(DEBUG_VARIABLE, None)
        else:
            os.environ[DEBUG_VARIABLE] = before


class Parser(argparse.ArgumentParser):
    """A parser of arguments that complains in two lines, and knows `--debug`.

    Args:
        values: Words that positional arguments may be, by their names, to complete them.
    """

    def __init__(
        self, *args: object, values: dict[str, Sequence[str]] | None = None, **options: object
    ) -> None:
        super().__init__(*args, **options)  # pyright: ignore[reportArgumentType]
        self.values = values or {}
        if self.add_help:  # which those lack that only lend their arguments
            self.add_argument(
                DEBUG_WORD, action="store_true", help="show where in the code an error happened"
            )

    def error(self, message: str) -> NoReturn:
        """End the program and say why."""
        self.exit(complain(self.prog, message, WRONG_USE))
