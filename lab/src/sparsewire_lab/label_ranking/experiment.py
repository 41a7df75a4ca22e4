"""`sparsewire label-ranking`: soft ranks, peers and regression on the 21 data sets of the field."""

import dataclasses
import hashlib
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple, get_args

import torch

from sparsewire.checks import check_count
from sparsewire_lab import provenance
from sparsewire_lab.errors import INTERRUPTED, UsageError
from sparsewire_lab.files import check_writable
from sparsewire_lab.label_ranking import data
from sparsewire_lab.label_ranking.fitting import Plan, Scores, cross_validate, settings_of
from sparsewire_lab.label_ranking.methods import METHODS, Name
from sparsewire_lab.train import records
from sparsewire_lab.train.records import Record

NAME = "label-ranking"
Model = Literal["linear", "mlp"]
_BOOKKEEPING = ("data_sets", "methods", "models", "seeds", "wheel", "out", "dry_run", "quiet")


class Run(NamedTuple):
    """One record: a method and a model, on all folds of a data set."""

    data_set: str
    model: Model
    seed: int
    method: Name


@dataclass(frozen=True, kw_only=True)
class LabelRanking:
    """Learn to rank labels on 21 data sets, and compare losses by ten-fold cross-validation.

    What is recorded is not run again. All runs together take about an hour on one CPU thread.

    Such as:

    sparsewire label-ranking --data-sets iris glass --models linear

    sparsewire label-ranking --methods spearman regression --seeds 0 1 2 3 4
    """

    data_sets: tuple[str, ...] = data.DATA_SETS
    """Names of data sets; all of them if not given."""
    methods: tuple[Name, ...] = tuple(METHODS)
    """Losses that are compared."""
    models: tuple[Model, ...] = get_args(Model)
    """linear: one weight for each feature and label; mlp: one hidden layer."""
    seeds: tuple[int, ...] = (0,)
    """Each makes other folds, first weights and batches."""
    folds: int = 10
    """Parts of a data set, each of which is tested once."""
    steps: int = 600
    """Training steps; settings are compared after half as many."""
    batch: int = 64
    """Instances in a step, or all of a small data set."""
    hidden: int = 32
    """Hidden units of the mlp."""
    wheel: Path | None = None
    """Folder of the wheel with the data; None takes the cache. If missing, it is downloaded."""
    out: Path = Path("out")
    """Folder for the record, label_ranking.jsonl."""
    quiet: bool = False
    """Print nothing but errors."""
    dry_run: bool = False
    """Only list what would be run."""

    def check(self) -> None:
        """Raise a `UsageError` for arguments that cannot be."""
        for name in ("steps", "batch", "hidden"):
            self._count(name, 1)
        self._count("folds", 2)
        for name in ("data_sets", "methods", "models", "seeds"):
            given = getattr(self, name)
            if not given or len(set(given)) < len(given):
                raise UsageError(f"{name} must be different, and at least one; got {given}")
        if unknown := [name for name in self.data_sets if name not in data.DATA_SETS]:
            known = ", ".join(data.DATA_SETS)
            raise UsageError(f"data_sets must be some of {known}; got {', '.join(unknown)}")
        if any(not 0 <= seed < 2**32 for seed in self.seeds):
            raise UsageError(f"seeds must be at least 0 and below 2**32; got {self.seeds}")

    def _count(self, name: str, least: int) -> None:
        try:
            check_count(name, getattr(self, name), least)
        except (TypeError, ValueError) as error:
            raise UsageError(str(error)) from error

    def runs(self) -> Iterator[Run]:
        """Yield all runs, those of one data set after the other."""
        for data_set in self.data_sets:
            for model in self.models:
                for seed in self.seeds:
                    for method in self.methods:
                        yield Run(data_set, model, seed, method)

    def arguments(self, run: Run) -> dict[str, Any]:
        """Return what decides the result of a run, but for the seed."""
        shared = {k: v for k, v in dataclasses.asdict(self).items() if k not in _BOOKKEEPING}
        shared |= {} if run.model == "mlp" else {"hidden": 0}
        return {"data_set": run.data_set, "model": run.model, "method": run.method, **shared}

    def key(self, run: Run) -> str:
        """Return a short fingerprint of what is computed, the same for all seeds."""
        text = json.dumps([NAME, self.arguments(run)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


def run(arguments: LabelRanking, words: Sequence[str]) -> int:
    """Run the command: what is not recorded yet, or a dry run; return the exit status."""
    arguments.check()
    path = arguments.out / "label_ranking.jsonl"
    known = {(record["key"], record["seed"]) for record in records.read_all(path)[0]}
    every = list(arguments.runs())
    todo = [one for one in every if (arguments.key(one), one.seed) not in known]
    if arguments.dry_run:
        _show(arguments, todo, len(every) - len(todo), path)
        return 0
    if not arguments.quiet and len(todo) < len(every):
        print(f"{len(every) - len(todo)} of {len(every)} runs are in {path} already")
    if not todo:
        return 0
    check_writable(arguments.out)
    wheel = data.find_wheel(arguments.wheel)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    origin = _origin(words)
    try:
        for one in todo:
            record = _record(arguments, one, wheel) | origin
            records.append(path, record)
            if not arguments.quiet:
                print(f"{record['label']}: {_numbers(record)}", flush=True)
    except KeyboardInterrupt:
        print("\ninterrupted: the same command goes on from here", file=sys.stderr)
        return INTERRUPTED
    return 0


def _record(arguments: LabelRanking, one: Run, wheel: Path) -> Record:
    """Run all folds of a data set; return the record without its origin."""
    given, begin = arguments.arguments(one), time.monotonic()
    plan = Plan(given["steps"], given["batch"], given["hidden"], given["folds"])
    scores = cross_validate(data.load(one.data_set, wheel), METHODS[one.method], plan, one.seed)
    return {
        "experiment": NAME,
        "key": arguments.key(one),
        "label": f"{one.data_set} {one.model} {one.method}",
        "arguments": given,
        "seed": one.seed,
        "status": "finished",
        "steps": plan.steps,
        "seconds": round(time.monotonic() - begin, 3),
        "final": {"kendall": fmean(scores.kendall), "spearman": fmean(scores.spearman)},
        "curve": {"step": []},
        "folds": _rounded(scores),
        "date": provenance.now(),
    }


def _rounded(scores: Scores) -> dict[str, Any]:
    found = {name: [round(x, 6) for x in getattr(scores, name)] for name in ("kendall", "spearman")}
    return found | {"settings": [list(setting) for setting in scores.settings]}


def _origin(words: Sequence[str]) -> Record:
    """Return what is the same for all records of a command."""
    described = provenance.describe(torch.device("cpu"))
    return {
        "command": shlex.join(["sparsewire", NAME, *words]),
        "commit": provenance.commit(provenance.clone() or Path(__file__).parent),
        "device": described.pop("device"),
        "versions": {name: version for name, version in described.items() if version},
    }


def _numbers(record: Record) -> str:
    final = record["final"]
    return (
        f"Kendall {final['kendall']:.4f}, Spearman {final['spearman']:.4f} "
        f"({record['seconds']:.0f} s)"
    )


def _show(arguments: LabelRanking, todo: Sequence[Run], done: int, path: Path) -> None:
    models = sum(len(settings_of(METHODS[one.method])) + 1 for one in todo) * arguments.folds
    print(f"{len(todo)} runs, {models:,} models; {done} runs are recorded already")
    for one in todo:
        print(f"  {one.data_set}, {one.model}, {one.method}, seed {one.seed}")
    print(f"record: {path}")
    try:
        print(f"data: {data.find_wheel(arguments.wheel, download=False)}")
    except data.SourceError:
        print(f"data: would be downloaded into {arguments.wheel or data.cache_folder()}")
    print("This was a dry run: nothing was trained, nothing was written.")
