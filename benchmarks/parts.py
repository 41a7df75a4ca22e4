"""What the scripts of the experiments share: parts of a page's runs, by name, made one by one."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sparsewire.cli import main as sparsewire


def run_parts(
    experiment: str,
    parts: Mapping[str, Sequence[str]],
    about: str,
    more: Callable[[str], Sequence[str]],
) -> int:
    """Read the command line and make its runs; what is recorded already is not run again.

    Args:
        experiment: The command of `sparsewire`.
        parts: For each name, the arguments of its commands.
        about: What the script says of itself.
        more: Gives more arguments for those of a command.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for the records")
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts), help="the parts")
    args = parser.parse_args()
    for part in args.only:
        for words in parts[part]:
            given = [*words.split(), *more(words), "--out", str(args.out)]
            quiet = ["--no-tensorboard", "--no-figures", "--resume"]
            if status := sparsewire([experiment, *given, *quiet]):
                return status
    return 0
