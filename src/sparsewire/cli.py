"""The command `sparsewire`: finds the subcommand, and says what it lacks if it cannot run."""

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from typing import NamedTuple

from sparsewire._version import __version__


class Command(NamedTuple):
    """A subcommand: a module with `main(words)`, loaded when it is called and not before."""

    module: str
    summary: str
    extra: str = ""
    packages: tuple[str, ...] = ()


_EXPERIMENTS = ("lightning_fabric", "matplotlib", "tensorboard", "tqdm", "tyro")

COMMANDS = {
    "identity": Command(
        "sparsewire.experiments.identity",
        "learn identity matrices, permutations and bands from random vectors",
        "experiments",
        _EXPERIMENTS,
    ),
    "attention": Command(
        "sparsewire.experiments.attention",
        "classify digits on cluttered canvases from a few glimpses",
        "experiments",
        _EXPERIMENTS,
    ),
    "sorting": Command(
        "sparsewire.experiments.sorting",
        "learn to sort numbers written in digits, from their order alone",
        "experiments",
        _EXPERIMENTS,
    ),
    "data": Command(
        "sparsewire.data.command",
        "fetch and check MNIST, and show cluttered canvases",
    ),
    "figures": Command(
        "sparsewire.figures.command",
        "draw the figures of the experiments from their records",
        "experiments",
        _EXPERIMENTS,
    ),
    "bench": Command(
        "sparsewire.bench.command",
        "measure this machine's ceilings, every engine, peers and whole training steps",
    ),
}


def main(words: Sequence[str] | None = None) -> int:
    """Run `sparsewire` with these words, those of the command line if not given."""
    words = sys.argv[1:] if words is None else list(words)
    if not words or words[0] not in COMMANDS:
        parser = _parser()
        parser.parse_args(words)  # help, the version, or an error: each ends the program
        parser.print_help()
        return 0
    name, command = words[0], COMMANDS[words[0]]
    if missing := [p for p in command.packages if importlib.util.find_spec(p) is None]:
        print(
            f"sparsewire {name}: error: needs {', '.join(missing)}, which the extra "
            f"'{command.extra}' brings: {how_to_install(command.extra)}",
            file=sys.stderr,
        )
        return 2
    return importlib.import_module(command.module).main(words[1:])


def how_to_install(extra: str) -> str:
    """Return the line that installs an extra."""
    return f"pip install 'sparsewire[{extra}]' (in a clone: pip install -e '.[{extra}]')"


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {command.summary}" for name, command in COMMANDS.items()]
    parser = argparse.ArgumentParser(
        prog="sparsewire",
        usage="sparsewire COMMAND [OPTIONS]",
        description="Sparse transformations whose wiring is learned by backpropagation.",
        epilog="commands:\n" + "\n".join(lines) + "\n\nsparsewire COMMAND --help says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"sparsewire {__version__}")
    parser.add_argument("command", nargs="?", choices=COMMANDS, help=argparse.SUPPRESS)
    return parser
