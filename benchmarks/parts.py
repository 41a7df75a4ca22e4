"""What the scripts of the experiments share: parts of a page's runs, by name, made one by one."""

import argparse
import contextlib
import multiprocessing
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparsewire_lab.cli.main import main as sparsewire
from sparsewire_lab.train.runs import AT_ONCE_VARIABLE

_SIGNALLED = 128  # exit statuses from here on are those of a signal


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
    parser.add_argument(
        "--at-once",
        type=int,
        default=1,
        help="seeds that are trained at once, which share the device; records say so. On a GPU it "
        "pays with CUDA's multi-process service only (nvidia-cuda-mps-control -d)",
    )
    args = parser.parse_args()
    quiet = ["--no-tensorboard", "--no-figures", "--resume", "--out", str(args.out)]
    commands = [
        [experiment, *words.split(), *more(words), *quiet]
        for part in args.only
        for words in parts[part]
    ]
    if args.at_once == 1:
        return next(filter(None, map(sparsewire, commands)), 0)
    return _at_once(args.at_once, [one for words in commands for one in by_seed(words)])


def by_seed(words: Sequence[str]) -> list[list[str]]:
    """Return a command for each of its seeds.

    Examples:
        >>> by_seed(["identity", "--seeds", "0", "1", "--quiet"])
        [['identity', '--quiet', '--seeds', '0'], ['identity', '--quiet', '--seeds', '1']]
    """
    if "--seeds" not in words:
        return [list(words)]
    start = words.index("--seeds")
    end = start + 1
    while end < len(words) and words[end].isdigit():
        end += 1
    rest = [*words[:start], *words[end:]]
    return [[*rest, "--seeds", seed] for seed in words[start + 1 : end]]


def _at_once(count: int, commands: Sequence[Sequence[str]]) -> int:
    """Make runs in several processes; each takes the next that none has begun."""
    os.environ[AT_ONCE_VARIABLE] = str(count)
    started = multiprocessing.get_context("spawn")
    begun, worst = started.Value("i", 0), started.Value("i", 0)
    workers = [
        started.Process(target=_work, args=(list(commands), begun, worst)) for _ in range(count)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        while worker.is_alive():
            # An interrupt reaches the workers too, which save their runs before they end.
            with contextlib.suppress(KeyboardInterrupt):
                worker.join()
    return max(worst.value, *(worker.exitcode or 0 for worker in workers))


def _work(commands: Sequence[Sequence[str]], begun: Any, worst: Any) -> None:
    status = 0
    while status < _SIGNALLED:
        with begun.get_lock():
            number: int = begun.value
            begun.value += 1
        if number >= len(commands):
            return
        # Bars of several runs would write over each other.
        status = sparsewire([*commands[number], "--quiet"])
        print(f"exit status {status}: {shlex.join(commands[number])}", flush=True)
        with worst.get_lock():
            worst.value = max(worst.value, status)
