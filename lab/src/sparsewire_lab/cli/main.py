"""The command `sparsewire`: it finds the subcommand, reads its arguments and runs it."""

import contextlib
import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sparsewire_lab import __version__
from sparsewire_lab.errors import (
    DEBUG_WORD,
    INTERRUPTED,
    PIPE_CLOSED,
    WRONG_USE,
    UsageError,
    complain,
    debug_mode,
    debugging,
)


class Command(NamedTuple):
    """A subcommand, whose modules are imported when it is called and not before."""

    summary: str
    arguments: str
    """`module:name` of the dataclass of its arguments."""
    run: str
    """`module:name` of the function that takes the arguments and the words of the command line,
    and returns the exit status."""


_EXPERIMENTS = {
    "identity": "learn identity matrices, permutations and bands from random vectors",
    "attention": "classify digits on cluttered canvases from a few glimpses",
    "sorting": "learn to sort numbers written in digits, from their order alone",
}
_TOOLS = {
    "data": "fetch and check MNIST, and show cluttered canvases",
    "figures": "draw the figures of the experiments from their records",
    "report": "write one page from all records: tables, curves, wires that move",
    "bench": "measure this machine's ceilings, every engine, peers and whole training steps",
    "reproduce": "make every run behind a page of results",
}
_LAB = "sparsewire_lab"
_LABELS = Command(
    "learn to rank labels on 21 data sets, with soft ranks, peers and regression",
    f"{_LAB}.label_ranking.experiment:LabelRanking",
    f"{_LAB}.label_ranking.experiment:run",
)
COMMANDS = {
    name: Command(text, f"{_LAB}.{name}.experiment:{name.title()}", f"{_LAB}.cli.experiment:run")
    for name, text in _EXPERIMENTS.items()
}
COMMANDS |= {"label-ranking": _LABELS} | {
    name: Command(text, f"{_LAB}.cli.{name}:Arguments", f"{_LAB}.cli.{name}:run")
    for name, text in _TOOLS.items()
}

EXAMPLES = {
    "sparsewire identity --size 8 --steps 1000": "a small run, within a minute on a CPU",
    "sparsewire attention --data digits --dry-run": "what it would do, and about how long it takes",
    "sparsewire figures out/identity.jsonl": "draw the figures of what was run",
}

_HOW_TO_COMPLETE = (
    "sparsewire --tyro-write-completion bash ~/.local/share/bash-completion/completions/sparsewire"
)
_COMPLETION = ("--tyro-print-completion", "--tyro-write-completion")


def main(words: Sequence[str] | None = None) -> int:
    """Run `sparsewire` with these words, those of the command line if not given."""
    given = sys.argv[1:] if words is None else list(words)
    rest = [word for word in given if word != DEBUG_WORD]
    program = f"sparsewire {rest[0]}" if rest and rest[0] in COMMANDS else "sparsewire"
    with debug_mode(DEBUG_WORD in given):
        try:
            try:
                return run(rest)
            finally:
                sys.stdout.flush()  # here, where a reader that is gone can be dealt with
        except BrokenPipeError:
            return _end_quietly()
        except KeyboardInterrupt as stop:
            if debugging():
                traceback.print_exception(stop)
            print("\ninterrupted", file=sys.stderr)
            return INTERRUPTED
        except UsageError as error:
            return complain(program, error, WRONG_USE)
        except Exception as error:
            return complain(program, _message(error))


def run(words: Sequence[str]) -> int:
    """Find the command that the words begin with, and run it with the others.

    Raises:
        UsageError: There is no such command, or its arguments are wrong.
    """
    if words and words[0] == "help":
        words = [*words[1:2], "--help"]
    if not words or words[0] in ("-h", "--help"):
        print(overview(), end="")
        return 0
    for word in words:
        if any("\ud800" <= character <= "\udfff" for character in word):  # bytes, undecoded
            raise UsageError(f"arguments must be UTF-8; got {word!a}")
    name = words[0].replace("_", "-")
    if name == "--version":
        print(f"sparsewire {__version__}")
        return 0
    from sparsewire_lab.cli.parse import parse, print_completion

    if name in _COMPLETION:
        kinds = {name: load(command.arguments) for name, command in COMMANDS.items()}
        print_completion(kinds, words, "sparsewire")
        return 0
    if name not in COMMANDS:
        what = "option" if name.startswith("-") else "command"
        close = difflib.get_close_matches(name, [*COMMANDS, *_COMPLETION, "--version"], n=1)
        meant = f"; did you mean {close[0]}?" if close else ""
        raise UsageError(f"unknown {what} {name}{meant}")
    command = COMMANDS[name]
    arguments = parse(load(command.arguments), words[1:], f"sparsewire {name}")
    return load(command.run)(arguments, words[1:])


def load(path: str) -> Any:
    """Import what `module:name` names."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def overview() -> str:
    """Return the help of the command: its subcommands, examples, options and documentation."""
    commands = {name: command.summary for name, command in COMMANDS.items()}
    examples = {line: f"# {what}" for line, what in EXAMPLES.items()}
    options = {
        "--help": "this text; after a command, all of its arguments",
        "--version": "the version",
        DEBUG_WORD: "with any command: show where in the code an error happened",
        "--tyro-print-completion SHELL": "print a script that completes commands and options",
        "--tyro-write-completion SHELL FILE": "write it; SHELL is bash, zsh or fish",
    }
    lines = ["sparsewire: sparse layers that learn their own wiring, by backpropagation.", ""]
    lines += ["usage: sparsewire COMMAND [OPTIONS]", ""]
    for title, rows in (("commands", commands), ("examples", examples), ("options", options)):
        width = max(map(len, rows))
        lines += [f"{title}:", *(f"  {name:{width}}  {text}" for name, text in rows.items()), ""]
    lines += ["completion in bash, after this and in a new terminal:", f"  {_HOW_TO_COMPLETE}", ""]
    return "\n".join([*lines, f"documentation: {where_docs_are()}", ""])


def where_docs_are() -> str:
    """Return where the documentation is: in the clone that this file is part of, if it is."""
    page = Path(__file__).resolve().parents[4] / "docs" / "index.md"
    built = "the folder docs of the source; make docs builds pages of it"
    return f"{page} (make docs builds pages of it)" if page.is_file() else built


def _message(error: Exception) -> str:
    """Return what an error says; of one that was not meant for people, its kind and a line."""
    text, kind = str(error).strip(), type(error)
    ours = kind.__module__.partition(".")[0] in ("sparsewire", "sparsewire_lab")
    if text and (ours or kind is RuntimeError or issubclass(kind, OSError | ValueError)):
        return text
    return f"{kind.__name__}: {text.partition(chr(10))[0]}".removesuffix(": ")


def _end_quietly() -> int:
    """End as other programs do when the reader of their output is gone, such as `head`."""
    # Python flushes both once more when it ends, and would complain then.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # not every stream is a file
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
    return PIPE_CLOSED
