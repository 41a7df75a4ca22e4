"""Errors for people: one line that says what was wrong, one that says how to see more."""

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

DEBUG_WORD = "--debug"
DEBUG_VARIABLE = "SPARSEWIRE_DEBUG"

# Exit statuses, as of shells.
FAILED, WRONG_USE, INTERRUPTED, PIPE_CLOSED = 1, 2, 130, 141

_HOW_TO_DEBUG = f"the same command with {DEBUG_WORD} shows where it happened"


class UsageError(ValueError):
    """The arguments of a command are wrong."""


def complain(program: str, problem: object, status: int = FAILED, hint: str | None = None) -> int:
    """Print what went wrong and how to see more; return the exit status.

    With `--debug` the traceback of the error that is being handled comes first. Processes that
    train together say only once that arguments are wrong.

    Args:
        program: The words that name the command.
        problem: What went wrong: which argument, what was expected, what came.
        status: The exit status.
        hint: How to see more, if that is not the command's help or `--debug`.
    """
    if status == WRONG_USE and not first_process():
        return status
    debug = debugging()
    if debug and sys.exc_info()[0] is not None:
        traceback.print_exc()
    print(f"{program}: error: {problem}", file=sys.stderr)
    if hint is None:
        hint = f"{program} --help says more" if status == WRONG_USE else _HOW_TO_DEBUG
    if hint and not (debug and hint == _HOW_TO_DEBUG):
        print(hint, file=sys.stderr)
    return status


def first_process() -> bool:
    """Return whether this process trains alone, or is the first of those that train together."""
    return os.environ.get("RANK", "0") == "0"


def debugging() -> bool:
    """Return whether errors are shown with their tracebacks."""
    return os.environ.get(DEBUG_VARIABLE, "") not in ("", "0")


@contextmanager
def debug_mode(wanted: bool) -> Iterator[None]:
    """Show tracebacks inside the block if wanted, here and in the processes that it starts."""
    before = os.environ.get(DEBUG_VARIABLE)
    if wanted:
        os.environ[DEBUG_VARIABLE] = "1"
    try:
        yield
    finally:
        os.environ.pop(DEBUG_VARIABLE, None)
        if before is not None:
            os.environ[DEBUG_VARIABLE] = before
