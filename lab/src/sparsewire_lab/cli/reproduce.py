"""`sparsewire reproduce`: make every run behind a page of results, or the README's table."""

import importlib
import itertools
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from sparsewire_lab.errors import UsageError

_SIGNALLED = 128  # exit statuses from here on are those of a signal


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Make every run behind a page of results; what is recorded already is not run again.

    The table of README.md is written from the records, without a run. Examples:

    sparsewire reproduce identity --list

    sparsewire reproduce attention --out results --only main speed

    sparsewire reproduce readme
    """

    page: Positional[Literal["identity", "attention", "sorting", "readme"]]
    """The experiment, or the README."""
    only: tuple[str, ...] = ()
    """Parts of the runs; without any, all of them."""
    list_parts: Annotated[bool, arg(name="list")] = False
    """Only print the parts, and how many commands each has."""
    dry_run: bool = False
    """Only print the commands."""
    out: Path | None = None
    """Folder of the records; None takes out, and for readme the clone's results."""
    at_once: int = 1
    """Seeds that are trained at once, which share the device; records say so. On a GPU this pays
    only with CUDA's multi-process service (nvidia-cuda-mps-control -d)."""

    def parts(self) -> dict[str, list[list[str]]]:
        """Return the commands of each part that was asked for.

        Raises:
            UsageError: There is no such part.
        """
        if self.page == "readme":
            return {}
        module = importlib.import_module(f"sparsewire_lab.{self.page}.parts")
        if unknown := [part for part in self.only if part not in module.PARTS]:
            known = ", ".join(module.PARTS)
            raise UsageError(f"--only must be some of {known}; got {unknown[0]}")
        rest = ["--no-tensorboard", "--no-figures", "--resume", "--out", str(self.out or "out")]
        return {
            part: [[self.page, *words.split(), *module.more(words), *rest] for words in runs]
            for part, runs in module.PARTS.items()
            if part in self.only or not self.only
        }

    def check(self) -> None:
        """Raise a `UsageError` for arguments that cannot be used."""
        if self.at_once < 1:
            raise UsageError(f"--at-once must be at least 1; got {self.at_once}")
        if self.only and self.page == "readme":
            raise UsageError("--only needs an experiment; got readme")
        self.parts()


def run(arguments: Arguments, words: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    del words
    arguments.check()
    if arguments.page == "readme":
        return write_readme(arguments.out)
    parts = arguments.parts()
    if arguments.list_parts:
        for part, runs in parts.items():
            print(f"{part}: {len(runs)} command{'s' if len(runs) > 1 else ''}")
        return 0
    commands = [command for runs in parts.values() for command in runs]
    if arguments.dry_run:
        print("\n".join(shlex.join(["sparsewire", *command]) for command in commands))
        return 0
    if arguments.at_once == 1:
        from sparsewire_lab.cli.main import main

        return next(filter(None, map(main, commands)), 0)
    return _at_once(arguments.at_once, [one for words in commands for one in by_seed(words)])


def write_readme(folder: Path | None = None) -> int:
    """Write the table of results in README.md, from the records of a folder or of the clone."""
    from sparsewire_lab import provenance
    from sparsewire_lab.files import write_whole
    from sparsewire_lab.report.summary_table import fill_summary
    from sparsewire_lab.train import records

    if (root := provenance.clone()) is None:
        raise UsageError("readme needs a clone of the repository; this is none")
    names = ("identity", "attention", "sorting")
    folder = folder or root / "results"
    results = {name: records.read(folder / f"{name}.jsonl") for name in names}
    page = root / "README.md"
    write_whole(page, fill_summary(page.read_text(encoding="utf-8"), results).encode())
    print(f"page: {page}")
    return 0


def by_seed(words: Sequence[str]) -> list[list[str]]:
    """Return a command for each of its seeds.

    Examples:
        >>> by_seed(["identity", "--seeds", "0", "1", "--quiet"])
        [['identity', '--quiet', '--seeds', '0'], ['identity', '--quiet', '--seeds', '1']]
    """
    if "--seeds" not in words:
        return [list(words)]
    start = words.index("--seeds")
    seeds = list(itertools.takewhile(str.isdigit, words[start + 1 :]))
    rest = [*words[:start], *words[start + 1 + len(seeds) :]]
    return [[*rest, "--seeds", seed] for seed in seeds]


def _at_once(count: int, commands: Sequence[Sequence[str]]) -> int:
    """Make runs in so many processes at once; a signal that ends one ends all."""
    from sparsewire_lab.train.runs import AT_ONCE_VARIABLE

    os.environ[AT_ONCE_VARIABLE] = str(count)
    stopped = threading.Event()

    def make(words: Sequence[str]) -> int:
        if stopped.is_set():
            return 0
        # Progress bars of several runs would overwrite each other.
        command = [sys.executable, "-m", "sparsewire_lab", *words, "--quiet"]
        status = subprocess.call(command)
        if not 0 <= status < _SIGNALLED:
            stopped.set()
        print(f"exit status {status}: {shlex.join(words)}", flush=True)
        return _SIGNALLED - status if status < 0 else status

    with ThreadPoolExecutor(count) as pool:
        return max(pool.map(make, commands), default=0)
