"""From the words of a command line to a dataclass of arguments, with tyro."""

import contextlib
import inspect
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sparsewire_lab.errors import DEBUG_WORD, UsageError

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_BORDERS = " ─│╭╮╰╯"
_MORE = f"With {DEBUG_WORD}, an error shows where it happened."


def parse(kind: Any, words: Sequence[str], program: str) -> Any:
    """Return the arguments that the words of a command line give.

    Args:
        kind: A dataclass, or a union of dataclasses with one for each subcommand; the docstring
            describes the command, and the strings under the fields describe the arguments. A union
            without any word prints its help.
        words: The words after the command.
        program: The words that name the command.

    Raises:
        UsageError: The words cannot be read.
        SystemExit: Help was asked for and is printed.
    """
    import tyro  # slow to import

    single = inspect.isclass(kind)
    described = f"{inspect.getdoc(kind)}\n\n{_MORE}" if single else _MORE
    given = list(words) if words or single else ["--help"]
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(kind, args=given, prog=program, description=described)
    except SystemExit as stop:
        if stop.code:
            raise UsageError(shortened(errors.getvalue())) from None
        raise


def print_completion(kinds: Mapping[str, Any], words: Sequence[str], program: str) -> None:
    """Print or write a script for a shell, which completes all commands and their options.

    Args:
        kinds: The arguments of the commands, by their names.
        words: `--tyro-print-completion SHELL` or `--tyro-write-completion SHELL FILE`.
        program: The word that names the command.
    """
    import tyro.extras

    count = 2 if words[0] == "--tyro-print-completion" else 3
    if len(words) != count or words[1] not in ("bash", "zsh", "fish"):
        file = " and a file" if count == 3 else ""
        raise UsageError(f"{words[0]} must be followed by bash, zsh or fish{file}")
    with contextlib.suppress(SystemExit):
        tyro.extras.subcommand_cli_from_dict(dict(kinds), prog=program, args=list(words))


def shortened(text: str) -> str:
    r"""Return what tyro prints in a box of several lines as one line.

    Examples:
        >>> shortened("╭─ Title ──╮\n│ Unknown. │\n│ ──────── │\n│ See help │\n╰──────────╯")
        'Unknown.'
    """
    title, *lines = [line.strip(_BORDERS) for line in _COLOURS.sub("", text).splitlines()]
    parts: list[list[str]] = [[]]
    for line in lines:
        if line.strip("-"):
            parts[-1].append(line)
        elif parts[-1]:
            parts.append([])
    message = " ".join(parts[0])
    if "subcommand" in title:
        message = f"{title}: {message}"
    for first, *others in filter(None, parts[1:]):
        if first.startswith("Available subcommands"):
            message += f"; {first.lower()}"
        if first.startswith(("Perhaps you meant", "Arguments similar")):
            close = [line.split()[0].rstrip(",") for line in others if line.startswith("--")]
            message += f"; did you mean {' or '.join(dict.fromkeys(close))}?"
    return message
