"""`--dry-run`: what a command would do, and about how much time and memory it would need."""

import dataclasses
import os
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TextIO

import torch
from lightning_fabric import Fabric
from torch import Tensor, distributed

from sparsewire_lab import provenance
from sparsewire_lab.errors import first_process
from sparsewire_lab.train.checkpoints import CheckpointError, Checkpoints
from sparsewire_lab.train.loop import Training
from sparsewire_lab.train.options import Experiment
from sparsewire_lab.train.runs import find_finished, make_fabric, record_path, run_folder

_SECONDS = 1.0  # to time steps for
_STEPS = 10  # timed at once on a GPU; in several processes, which must agree, the number of all
_MOST_STEPS = 500
_MARGIN = 13  # columns before the text
_JOINT = "\N{NO-BREAK SPACE}"


class Plan(NamedTuple):
    """One run: what would happen to it, in words, and how many steps are left to make."""

    experiment: Experiment
    seed: int
    words: str
    left: int = 0


class Cost(NamedTuple):
    """The measured time, in seconds, and memory, in bytes, of a run."""

    step: float
    steps: int  # that were timed
    evaluation: float
    parameters: int  # numbers that are trained
    model: int
    training: int  # the model, its gradients and the optimiser's state
    peak: int | None  # of tensors on a GPU


def make_dry_run(experiments: Sequence[Experiment], command: Sequence[str]) -> int:
    """Print what all runs of a command would do and need; return the exit status.

    Args:
        experiments: The settings, with all arguments resolved and checked.
        command: The words of the command line.
    """
    first = experiments[0]
    plans = [plan(experiment, seed) for experiment in experiments for seed in experiment.seeds]
    fabric = make_fabric(first)
    try:
        _show_plans(experiments, plans, command)
        _show("device", f"{first.device}: {provenance.device_name(fabric.device)}")
        if fabric.world_size > 1:
            _show("processes", f"{fabric.world_size}, which share each batch")
        _estimate(plans, fabric)
        _show_places(first, plans)
        _print("\nThis was a dry run: nothing was trained to the end, nothing was written.")
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()
    return 0


def plan(experiment: Experiment, seed: int) -> Plan:
    """Return what would happen to the run of one seed."""
    steps = experiment.steps or 0
    whole = Plan(experiment, seed, f"{steps:,} steps", steps)
    checkpoints = Checkpoints(run_folder(experiment, seed))
    if experiment.again:
        return whole
    if (done := find_finished(experiment, seed)) is not None:
        return Plan(experiment, seed, f"{done['status']} already; --again would repeat it")
    if not checkpoints.exist():
        return whole
    try:
        made = checkpoints.load()[0]["step"]
    except CheckpointError as error:
        return Plan(experiment, seed, f"would fail: {error}")
    if experiment.resume:
        return Plan(experiment, seed, f"goes on after step {made:,}", max(steps - made, 0))
    words = f"unfinished after step {made:,}: refused without --resume or --again"
    return Plan(experiment, seed, words)


def measure(experiment: Experiment, seed: int, fabric: Fabric) -> Cost:
    """Make some steps and one evaluation of a run, and return what they need.

    The first steps, which compile kernels and capture the step, are not timed.
    """
    training = Training(experiment, seed, fabric, run_folder(experiment, seed))
    step, device = training.make_step(), training.device
    on_gpu, alone = device.type == "cuda", fabric.world_size == 1

    def wait() -> float:
        if on_gpu:
            torch.cuda.synchronize(device)
        return time.perf_counter()

    def make(count: int) -> float:
        began = wait()
        for _ in range(count):
            step()
            training.follow_step()
        return wait() - began

    make(step.warmup + 2 if on_gpu else 1)
    at_once = _STEPS if on_gpu or not alone else 1
    made, seconds = at_once, make(at_once)
    while alone and seconds < _SECONDS and made < _MOST_STEPS:
        seconds += make(at_once)
        made += at_once
    model = training.trial.model
    size = _bytes([*model.parameters(), *model.buffers()])
    trained = [p for p in model.parameters() if p.requires_grad]
    states = [s for state in training.trial.optimizer.state.values() for s in state.values()]
    peak = torch.cuda.max_memory_allocated(device) if on_gpu else None
    began = wait()
    with training.judging():
        training.trial.evaluate()
    return Cost(
        seconds / made,
        made,
        wait() - began,
        sum(p.numel() for p in trained),
        size,
        size + _bytes(trained) + _bytes(s for s in states if isinstance(s, Tensor)),
        peak,
    )


def seconds_of(plans: Sequence[Plan], cost: Cost) -> float:
    """Return about how long runs take: their steps, and the evaluations between."""
    return sum(p.left * cost.step + evaluations(p) * cost.evaluation for p in plans)


def evaluations(plan: Plan) -> int:
    """Return how many evaluations are left of a run; one that begins has one before its steps."""
    steps, every = plan.experiment.steps or 0, plan.experiment.evaluate_every or 1
    made = steps - plan.left
    whole = steps // every - made // every
    return whole + (steps % every > 0) + (made == 0) if plan.left else 0


def duration(seconds: float) -> str:
    """Return a time in the units that people would use.

    Examples:
        >>> duration(0.0042), duration(75.0), duration(9000.0), duration(90000.0)
        ('4.2 ms', '1.2 min', '2.5 h', '1 day')
    """
    units = (("day", 86400), ("h", 3600), ("min", 60), ("s", 1))
    unit, size = next((unit for unit in units if seconds >= unit[1]), ("ms", 1e-3))
    count = seconds / size
    number = f"{count:.2g}" if count < 10 else f"{count:,.0f}"
    return f"{number} {unit}{'s' if unit == 'day' and number != '1' else ''}"


def memory(count: int) -> str:
    """Return bytes in the units that people would use.

    Examples:
        >>> memory(300), memory(5 * 2**20), memory(40 * 2**30)
        ('300 bytes', '5 MiB', '40 GiB')
    """
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"


def _estimate(plans: Sequence[Plan], fabric: Fabric) -> None:
    """Time the first run that has something to do, and show what all of them would need."""
    if not (todo := [p for p in plans if p.left]):
        _show("time", "none: there is nothing to run")
        return
    first = todo[0]
    if what := first.experiment.fetches():
        _show("time", f"not known: a run would first fetch {what}")
        return
    _print("timing some steps and an evaluation …", file=sys.stderr)
    cost = measure(first.experiment, first.seed, fabric)
    _show(
        "memory",
        f"model {memory(cost.model)}, {cost.parameters:,} trained numbers; "
        f"{memory(cost.training)} with gradients and the optimiser's state"
        + (f"; {memory(cost.peak)} at most in a step" if cost.peak else ""),
    )
    until = first.experiment.until
    runs = "1 run" if len(todo) == 1 else f"{len(todo)} runs, one after the other"
    _show(
        "time",
        f"about {duration(seconds_of(todo, cost))} for {runs}: {duration(cost.step)} a step, timed "
        f"over {cost.steps}, and {duration(cost.evaluation)} an evaluation, timed once. "
        "Compilation, checkpoints, figures and what is measured at the end are extra"
        + (f"; runs end earlier if they fall below {until:g}." if until else "."),
    )


def _show_plans(
    experiments: Sequence[Experiment], plans: Sequence[Plan], command: Sequence[str]
) -> None:
    first = experiments[0]
    _print(shlex.join(["sparsewire", first.name, *command]))
    _show("setting", ", ".join(dict.fromkeys(each.label() for each in experiments)))
    # A name and its value stay in one line.
    _show("", ", ".join(f"{n} {v}".replace(" ", _JOINT) for n, v in _arguments(experiments)))
    for row, words in enumerate(_outcomes(plans)):
        _show("" if row else "runs", words)
    total, todo = sum(p.left for p in plans), sum(p.left > 0 for p in plans)
    runs = f"{len(plans)} run{'s'[: len(plans) > 1]}"
    _show(
        "steps",
        f"{total:,} in {runs if todo == len(plans) else f'{todo} of {runs}'}; evaluated every "
        f"{first.evaluate_every:,}, saved every {first.checkpoint_every:,}",
    )


def _outcomes(plans: Sequence[Plan]) -> Iterator[str]:
    """Yield what would happen, each once with its seeds, and with its settings if not with all."""
    settings_of: dict[tuple[str, str], list[str]] = {}
    settings = list(dict.fromkeys(p.experiment for p in plans))
    differs = next(iter(_differing(settings)), "lr")
    for experiment in settings:
        mine = [p for p in plans if p.experiment == experiment]
        for words in dict.fromkeys(p.words for p in mine):
            seeds = ", ".join(str(p.seed) for p in mine if p.words == words)
            name = f"{differs} {_text(getattr(experiment, differs))}"
            settings_of.setdefault((seeds, words), []).append(name)
    for (seeds, words), some in settings_of.items():
        some = "in each setting, " if len(some) == len(settings) else f"{', '.join(some)}: "
        name = "seeds" if "," in seeds else "seed"
        yield f"{some if len(settings) > 1 else ''}{name} {seeds}: {words}"


def _show_places(first: Experiment, plans: Sequence[Plan]) -> None:
    """Show where things would go."""
    folder = run_folder(first, first.seeds[0])
    others = " and so on, a folder for each run" if len(plans) > 1 else ""
    _show("record", str(record_path(first)))
    _show("checkpoints", f"{folder}{os.sep}{others}")
    _show("events", f"{folder / 'events'}{os.sep}" if first.tensorboard else "none, as asked")
    _show("figures", f"{first.out / 'figures'}{os.sep}" if first.figures else "none, as asked")


def _arguments(experiments: Sequence[Experiment]) -> Iterator[tuple[str, str]]:
    """Yield the arguments that decide what is computed, as they are after all is filled in."""
    first, shared = experiments[0], {field.name for field in dataclasses.fields(Experiment)}
    differing = _differing(experiments)
    # Own ones first, as in the help.
    for name, value in sorted(first.deciding().items(), key=lambda item: item[0] in shared):
        if name in differing:
            yield name, " / ".join(_text(getattr(each, name)) for each in experiments)
        elif value is not None:
            yield name, str(value)


def _differing(experiments: Sequence[Experiment]) -> list[str]:
    """The names of the arguments that not all settings share."""
    every = [experiment.deciding() for experiment in experiments]
    return [name for name in every[0] if any(each.get(name) != every[0][name] for each in every)]


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _bytes(tensors: "Sequence[Tensor] | Iterator[Tensor]") -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _show(name: str, text: str) -> None:
    """Print a text after its name, as wide as the terminal."""
    width = max(60, min(shutil.get_terminal_size((100, 24)).columns, 120))
    wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    wrapper.initial_indent, wrapper.subsequent_indent = f"{name:{_MARGIN}}", " " * _MARGIN
    _print(wrapper.fill(text).replace(_JOINT, " "))


def _print(text: str, file: TextIO | None = None) -> None:
    if first_process():
        print(text, file=file, flush=True)
