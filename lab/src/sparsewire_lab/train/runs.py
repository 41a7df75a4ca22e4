"""Runs: every seed of every setting, each once, recorded when it ends, and summed up."""

import contextlib
import io
import logging
import math
import os
import shlex
import shutil
import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import distributed

from sparsewire_lab import provenance
from sparsewire_lab.errors import FAILED, INTERRUPTED, complain, first_process
from sparsewire_lab.files import DiskError, check_writable, write_whole
from sparsewire_lab.train import records
from sparsewire_lab.train.checkpoints import CheckpointError, Checkpoints
from sparsewire_lab.train.loop import DivergedError, StoppedError, Training
from sparsewire_lab.train.options import Experiment, processes
from sparsewire_lab.train.records import Record

AT_ONCE_VARIABLE = "SPARSEWIRE_AT_ONCE"  # how many runs share the device, for their records
_PRECISIONS = {"fp32": "32-true", "bf16": "bf16-mixed"}


class UnfinishedError(RuntimeError):
    """A run is unfinished, and no argument says whether to continue it."""


def run_all(experiments: Sequence[Experiment], command: Sequence[str]) -> int:
    """Make all runs that are not recorded yet; return the exit status of the command.

    Args:
        experiments: The settings, with all arguments resolved and checked; they share folder and
            device.
        command: The words of the command line, for the records and for the hint how to continue.
    """
    first = experiments[0]
    fabric = make_fabric(first)
    text = shlex.join(["sparsewire", first.name, *command])
    words = [word for word in command if word not in ("--again", "--resume")]
    resume = shlex.join(["sparsewire", first.name, *words, "--resume"])
    runs = [(experiment, seed) for experiment in experiments for seed in experiment.seeds]
    try:
        check_writable(first.out)
        for note in records.read_all(record_path(first))[1]:
            _complain(note)
        check_unfinished(runs)
        statuses = [make_run(*run, fabric, text) for run in runs]
    except StoppedError as error:
        _complain(f"{error}\nto continue: {resume}")
        return 128 + error.number
    except KeyboardInterrupt:
        _complain(f"stopped at once, without saving\nto continue: {resume}")
        return INTERRUPTED
    except (CheckpointError, DiskError, UnfinishedError) as error:
        # The error of an unfinished run has a hint of its own.
        hint = "" if isinstance(error, UnfinishedError) else None
        return complain(f"sparsewire {first.name}", error, hint=hint) if first_process() else FAILED
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()
    _say(first, f"\n{summary(experiments)}\nrecord: {record_path(first)}")
    # In a sweep some settings are expected to fail; the summary says which.
    return 0 if len(experiments) > 1 else int("diverged" in statuses)


def check_unfinished(runs: Iterable[tuple[Experiment, int]]) -> None:
    """Raise an error for an unfinished run, unless an argument says what to do with it."""
    for experiment, seed in runs:
        if experiment.resume or experiment.again or find_finished(experiment, seed) is not None:
            continue
        folder = run_folder(experiment, seed)
        if Checkpoints(folder).exist():
            raise UnfinishedError(
                f"{folder} holds an unfinished run; --resume continues it, --again starts it from "
                "the beginning"
            )


def make_run(experiment: Experiment, seed: int, fabric: Fabric, command: str) -> str:
    """Make the run of one seed, unless it is recorded; return how it ended."""
    name = f"{experiment.label()}, seed {seed}"
    if not experiment.again and (done := find_finished(experiment, seed)) is not None:
        where = f"in {record_path(experiment)} (--again to repeat)"
        _say(experiment, f"{name}: {done['status']} already, {where}")
        return done["status"]
    training = Training(experiment, seed, fabric, run_folder(experiment, seed))
    prepare(training)
    status, problem = "finished", None
    try:
        training.run()
        training.conclude()
    except DivergedError as error:
        status, problem = "diverged", str(error)
        _complain(f"{name}: {error}")
    if fabric.is_global_zero:
        records.append(record_path(experiment), describe(training, command, status, problem))
    if status == "finished":
        ended = ", ".join(f"{k} {v:.3g}" for k, v in final(training).items())
        _say(experiment, f"{name}: {ended} after {training.step:,} steps, {training.seconds:.1f} s")
    fabric.barrier()
    if training.signal:
        raise StoppedError(training.signal, training.step)
    return status


def prepare(training: Training) -> None:
    """Continue an unfinished run, or begin it anew."""
    experiment, checkpoints = training.experiment, training.checkpoints
    if not checkpoints.exist():
        return
    if experiment.again:
        training.fabric.barrier()
        if training.fabric.is_global_zero:
            checkpoints.clear()
            shutil.rmtree(training.folder / "events", ignore_errors=True)
    else:
        for problem in training.resume():
            _complain(f"{problem}; the checkpoint before it is used")
        name = f"{experiment.label()}, seed {training.seed}"
        _say(experiment, f"{name}: goes on after step {training.step:,}")


def describe(training: Training, command: str, status: str, problem: str | None) -> Record:
    """Return the record of a run, and write its snapshots next to the checkpoints."""
    experiment, device = training.experiment, training.device
    described = provenance.describe(device)
    return {
        "experiment": experiment.name,
        "key": experiment.key(),
        "label": experiment.label(),
        "command": command,
        "arguments": experiment.arguments(),
        "seed": training.seed,
        "status": status,
        "problem": problem,
        "run": training.identifier,
        "date": provenance.now(),
        "commit": provenance.commit(provenance.clone() or Path(__file__).parent),
        "device": described.pop("device"),
        "versions": {name: version for name, version in described.items() if version},
        "processes": training.fabric.world_size,
        "at_once": int(os.environ.get(AT_ONCE_VARIABLE, "1")),
        "steps": training.step,
        "seconds": round(training.seconds, 3),
        "step_ms": training.timing.step_ms,
        "peak_memory": training.timing.peak_memory,
        "final": final(training),
        "best": training.best,
        "curve": training.curve,
        "wiring": write_frames(training) if status == "finished" else None,
    }


def final(training: Training) -> dict[str, float]:
    """Return the metrics of the last evaluation, and those of the end."""
    last = {
        name: values[-1]
        for name, values in training.curve.items()
        if name not in ("step", "seconds", "loss")
    }
    return last | training.conclusion


def write_frames(training: Training) -> str | None:
    """Write the snapshots of a run; return their path, relative to the folder of the record."""
    if not training.frames:
        return None
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {**training.frames, **training.constants()}
    plain: dict[str, Any] = {name: array.cpu().numpy() for name, array in arrays.items()}
    np.savez_compressed(buffer, **plain)
    path = training.folder / "wiring.npz"
    write_whole(path, buffer.getvalue())
    return path.relative_to(record_path(training.experiment).parent).as_posix()


def summary(experiments: Sequence[Experiment]) -> str:
    """Return a table of the settings, best first, averaged over their seeds."""
    rows = []
    for experiment in experiments:
        group = [find_record(experiment, seed) for seed in experiment.seeds]
        if not (done := [record for record in group if record is not None]):
            continue
        means = records.aggregate(done)
        mean, seconds = means[experiment.metric].mean, (record["seconds"] for record in done)
        bad = sum(record["status"] != "finished" for record in done)
        varied = f" lr {experiment.lr:g}" if len(experiments) > 1 else ""
        numbers = ", ".join(f"{name} {value}" for name, value in means.items())
        line = (
            f"{experiment.label()}{varied}: {numbers} ({len(done)} seed{'s'[: len(done) > 1]}, "
            f"{records.statistics_of(seconds)} s each{f', {bad} diverged' if bad else ''})"
        )
        rows.append((bad > 0, math.isnan(mean), mean, line))
    return "\n".join(line for *_, line in sorted(rows, key=lambda row: row[:3]))


def find_record(experiment: Experiment, seed: int) -> Record | None:
    """Return the record of this run; None if it has none."""
    every = records.read_all(record_path(experiment))[0]
    mine = (r for r in every if (r["key"], r["seed"]) == (experiment.key(), seed))
    return next(mine, None)


def find_finished(experiment: Experiment, seed: int) -> Record | None:
    """Return the record of this run, unless the run was begun again and is unfinished."""
    record = find_record(experiment, seed)
    checkpoints = Checkpoints(run_folder(experiment, seed))
    if record is not None and checkpoints.exist():
        with contextlib.suppress(CheckpointError):
            if checkpoints.load()[0]["run"] != record.get("run"):
                return None
    return record


def record_path(experiment: Experiment) -> Path:
    """Return the file of an experiment's records."""
    return experiment.out / f"{experiment.name}.jsonl"


def run_folder(experiment: Experiment, seed: int) -> Path:
    """Return the folder of one run."""
    words = "".join(c if c.isalnum() or c in ".-" else "-" for c in experiment.label())
    return experiment.out / experiment.name / f"{words}-{experiment.key()}" / f"seed-{seed}"


def make_fabric(experiment: Experiment) -> Fabric:
    """Return the fabric for a device and the processes that `torchrun` started, if it did."""
    count = processes()
    here = int(os.environ.get("LOCAL_WORLD_SIZE", count))
    if experiment.device == "cpu" and count == 1:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if experiment.device == "cuda":
        torch.backends.cudnn.benchmark = True  # shapes stay the same in all steps
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice about devices that were not asked for
        fabric = Fabric(
            accelerator=experiment.device,
            devices=here,
            num_nodes=count // here,
            strategy="ddp" if count > 1 else "auto",
            precision=_PRECISIONS[experiment.precision],  # pyright: ignore[reportArgumentType]
        )
        fabric.launch()
    return fabric


def _say(experiment: Experiment, text: str) -> None:
    if first_process() and not experiment.quiet:
        print(text)


def _complain(text: str) -> None:
    if first_process():
        print(text, file=sys.stderr)
