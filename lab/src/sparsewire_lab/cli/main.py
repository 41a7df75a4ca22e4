"""The command `sparsewire`: finds the subcommand, and says what it lacks if it cannot run."""

import contextlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sparsewire._version import __version__
from sparsewire_lab.cli.words import nearest
from sparsewire_lab.errors import (
    DEBUG_WORD,
    INTERRUPTED,
    PIPE_CLOSED,
    WRONG_USE,
    complain,
    debug_mode,
    debugging,
)


class Command(NamedTuple):
    """A subcommand: a module with `main(words)`, loaded when it is called and not before."""

    module: str
    summary: str
    extra: str = ""
    packages: tuple[str, ...] = ()


_EXPERIMENTS = ("lightning_fabric", "matplotlib", "tensorboard", "tqdm", "tyro")

COMMANDS = {
    "identity": Command(
        "sparsewire_lab.identity.experiment",
        "learn identity matrices, permutations and bands from random vectors",
        "experiments",
        _EXPERIMENTS,
    ),
    "attention": Command(
        "sparsewire_lab.attention.experiment",
        "classify digits on cluttered canvases from a few glimpses",
        "experiments",
        _EXPERIMENTS,
    ),
    "sorting": Command(
        "sparsewire_lab.sorting.experiment",
        "learn to sort numbers written in digits, from their order alone",
        "experiments",
        _EXPERIMENTS,
    ),
    "data": Command(
        "sparsewire_lab.cli.data",
        "fetch and check MNIST, and show cluttered canvases",
    ),
    "figures": Command(
        "sparsewire_lab.cli.figures",
        "draw the figures of the experiments from their records",
        "experiments",
        _EXPERIMENTS,
    ),
    "report": Command(
        "sparsewire_lab.cli.report",
        "write one page from all records: tables, curves, wires that move",
        "experiments",
        _EXPERIMENTS,
    ),
    "bench": Command(
        "sparsewire_lab.cli.bench",
        "measure this machine's ceilings, every engine, peers and whole training steps",
    ),
    "completion": Command(
        "sparsewire_lab.cli.completion",
        "print a script that lets bash, zsh or fish complete all this",
    ),
}

EXAMPLES = {
    "sparsewire identity --size 16": "learn a 16 × 16 identity matrix, in seconds",
    "sparsewire attention --data digits --dry-run": "what it would do, and about how long it takes",
    "sparsewire figures out/identity.jsonl": "draw the figures of what was run",
}


def main(words: Sequence[str] | None = None) -> int:
    """Run `sparsewire` with these words, those of the command line if not given."""
    given = sys.argv[1:] if words is None else list(words)
    rest = [word for word in given if word != DEBUG_WORD]
    with debug_mode(DEBUG_WORD in given):
        try:
            try:
                return run(rest)
            finally:
                sys.stdout.flush()  # here, where a reader that went away can be dealt with
        except BrokenPipeError:
            return _end_quietly()
        except KeyboardInterrupt as stop:
            _show_where(stop)
            print("\ninterrupted", file=sys.stderr)
            return INTERRUPTED
        except Exception as error:
            return complain(" ".join(["sparsewire", *rest[:1]]), _told(error))


def run(words: Sequence[str]) -> int:
    """Find the command that the words begin with, and run it with the others."""
    if words and words[0] == "help":
        words = [*words[1:2], "--help"]
    if not words or words[0] in ("-h", "--help"):
        print(overview(), end="")
        return 0
    if words[0] == "--version":
        print(f"sparsewire {__version__}")
        return 0
    name = words[0]
    if name not in COMMANDS:
        what = "option" if name.startswith("-") else "command"
        close = "" if what == "option" else nearest(name, COMMANDS)
        return complain("sparsewire", f"unknown {what} {name}{close}", WRONG_USE)
    command = COMMANDS[name]
    if missing := missing_packages(command):
        problem = f"needs {', '.join(missing)}, which the extra '{command.extra}' brings"
        hint = f"to install it: {how_to_install(command.extra)}"
        return complain(f"sparsewire {name}", problem, WRONG_USE, hint)
    return importlib.import_module(command.module).main(words[1:])


def missing_packages(command: Command) -> list[str]:
    """Return the packages that a command needs and that are not installed."""
    return [name for name in command.packages if importlib.util.find_spec(name) is None]


def how_to_install(extra: str) -> str:
    """Return the line that installs an extra."""
    return f"pip install 'sparsewire[{extra}]' (in a clone: pip install -e '.[{extra}]')"


def overview() -> str:
    """Return what there is: a sentence, every command, examples, and where to read on."""
    width = max(map(len, COMMANDS))
    commands = [f"  {name:{width}}  {command.summary}" for name, command in COMMANDS.items()]
    width = max(map(len, EXAMPLES))
    examples = [f"  {line:{width}}  # {what}" for line, what in EXAMPLES.items()]
    return "\n".join(
        [
            "sparsewire: sparse layers that learn their own wiring, by backpropagation.",
            "",
            "usage: sparsewire COMMAND [OPTIONS]",
            "",
            "commands:",
            *commands,
            "",
            "examples:",
            *examples,
            "",
            "options:",
            "  --help     this text; after a command, all of its arguments",
            "  --version  the version",
            f"  {DEBUG_WORD}    with any command: show where in the code an error happened",
            "",
            f"documentation: {where_docs_are()}",
            "",
        ]
    )


def where_docs_are() -> str:
    """Return where to read on: the pages of the clone that this is, if it is one."""
    page = Path(__file__).resolve().parents[4] / "docs" / "index.md"
    built = "the folder docs of the source; make docs builds pages of it"
    return f"{page} (make docs builds pages of it)" if page.is_file() else built


def _told(error: Exception) -> str:
    """Return what an error says; of one that was not meant for people, its kind and a line."""
    text, kind = str(error).strip(), type(error)
    ours = kind.__module__.startswith("sparsewire.")
    if text and (ours or kind is RuntimeError or issubclass(kind, OSError | ValueError)):
        return text
    return f"{kind.__name__}: {text.partition(chr(10))[0]}".removesuffix(": ")


def _show_where(stop: BaseException) -> None:
    if debugging():
        traceback.print_exception(stop)


def _end_quietly() -> int:
    """End as other programs do when the reader of their output went away, such as `head`."""
    # Python flushes both once more when it ends, and would complain then.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # not every stream is a file
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
    return PIPE_CLOSED
