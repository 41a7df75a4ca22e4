"""Settings → the numbers of the page: the summary of all, and the table of each experiment."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from sparsewire_lab.attention.settings import family
from sparsewire_lab.figures.cells import NONE, duration, percent, step_time, steps_of
from sparsewire_lab.figures.series import THRESHOLD, reach
from sparsewire_lab.figures.settings import plain_value, seeds
from sparsewire_lab.report.lines import Line, by_task
from sparsewire_lab.train.records import statistics_of

_HEADS = {
    "identity": ("rounded error", "places found", f"below {THRESHOLD:g} after"),
    "attention": ("error", "not rounded", "time of a step"),
    "sorting": ("error", "strict error", "numbers misplaced", "time of a step"),
}


class Entry(NamedTuple):
    """A number, what it is of, and the command that makes it."""

    number: str
    name: str
    seeds: str
    command: str


class Task(NamedTuple):
    """A row of the summary."""

    experiment: str
    name: str
    ours: list[Entry]
    paper: list[str]
    """What the paper says, of each method."""
    baselines: list[Entry]


def summary(experiment: str, lines: Sequence[Line]) -> list[Task]:
    """Return a row for each task that was measured as published: not on validation digits."""
    tasks = []
    for name, alike in by_task(lines).items():
        if alike[0].group.setting.get("split", "test") != "test":
            continue
        shown = [line for line in alike if _is_usual(line)] or alike
        said = dict.fromkeys(
            f"{_of_what(line)}: {line.paper}".replace(" %", "\u00a0%")
            for line in shown
            if line.paper
        )
        tasks.append(
            Task(
                experiment,
                name,
                [entry(experiment, line) for line in shown if line.ours],
                list(said),
                [entry(experiment, line) for line in shown if not line.ours],
            )
        )
    return _gathered(experiment, tasks)


def _gathered(experiment: str, tasks: Sequence[Task]) -> list[Task]:
    """Tasks that have nothing to be compared with become one row, after the others."""
    compared = [task for task in tasks if task.paper or task.baselines]
    alone = [task for task in tasks if task not in compared]
    if len(alone) < 2 or not compared:
        return list(tasks)
    entries = [
        item._replace(name=f"{task.name}, {item.name}") for task in alone for item in task.ours
    ]
    return [*compared, Task(experiment, "beyond the paper", entries, [], [])]


def entry(experiment: str, line: Line) -> Entry:
    """Return the number of a setting: its error, mean ± standard deviation over seeds."""
    return Entry(main_number(experiment, line), line.name, _seed_words(line), line.command)


def main_number(experiment: str, line: Line) -> str:
    """Return the error of a setting in words, in percent where it is a share."""
    errors = [run["final"].get("error") for run in line.runs]
    if experiment == "identity":
        spread = statistics_of(errors)
        if not math.isfinite(spread.mean):
            return "diverged"
        # A wire may stand for two places at once: rounding is the wrong way to read it then.
        expected = statistics_of(run["final"].get("expected_error") for run in line.runs)
        known = math.isfinite(expected.mean)
        return f"{spread} (not rounded: {expected})" if known else str(spread)
    found = percent(errors)
    return "diverged" if found == NONE else f"{found} %"


def full_head(experiment: str) -> tuple[str, ...]:
    """Return the head of the table of an experiment, but for its commands."""
    return "task", "method", "training", "seeds", *_HEADS[experiment], "paper"


def full_row(experiment: str, line: Line) -> tuple[str, ...]:
    """Return the row of a setting, without its command."""
    setting = line.group.setting
    first = line.task, line.name, _training(line), seeds(line.group)
    if experiment == "identity":
        found = statistics_of(run["final"].get("found") for run in line.runs).mean
        places = f"{100 * found:.4g} %" if math.isfinite(found) else NONE
        cells = main_number(experiment, line), places, _reached(line)
    elif experiment == "attention":
        expected = _percent(line, "expected") if setting["model"] == "glimpse" else NONE
        cells = main_number(experiment, line), expected, _step_time(line)
    else:
        others = (_percent(line, name) for name in ("strict", "elements"))
        cells = main_number(experiment, line), *others, _step_time(line)
    return *first, *cells, line.paper or NONE


def _percent(line: Line, name: str) -> str:
    found = percent([run["final"].get(name) for run in line.runs])
    return found if found == NONE else f"{found} %"


def _step_time(line: Line) -> str:
    number, _, shared = step_time(line.runs).partition(",") if line.runs else (NONE, "", "")
    return number if number == NONE else f"{number} ms" + (f",{shared}" if shared else "")


def _training(line: Line) -> str:
    setting = line.group.setting
    steps = steps_of(setting) if type(setting.get("batch")) is int else f"{setting['steps']:,}"
    taken = [run["seconds"] for run in line.runs if run.get("seconds") is not None]
    rate = f", lr {plain_value(setting['lr'])}" if setting.get("lr") is not None else ""
    return f"{steps}{rate}, {duration(taken)}"


def _reached(line: Line) -> str:
    group = line.group._replace(runs=line.runs)
    there = [reach(group._replace(runs=[run])) for run in group.runs]
    count = sum(end.reached for end in there)
    if not there or count < len(there):
        return f"{count} of {len(there)} seeds" if count else "never"
    whole = reach(group)
    taken = f", {whole.seconds:.2g} s" if math.isfinite(whole.seconds) else ""
    return f"{whole.steps:,.0f} steps{taken}"


def _of_what(line: Line) -> str:
    """What a number of the paper is of, whatever the settings that were run here."""
    setting = line.group.setting
    if "places" in setting:
        return "sampled quicksort, strict error"
    return family(setting) if "glimpses" in setting else line.name


def _is_usual(line: Line) -> bool:
    """Variants that were run to be compared with the usual ones are left to the full table."""
    setting = line.group.setting
    if "values" in setting and "method" in setting:
        return setting["values"] == "fixed" or setting["method"] == "rewire"
    return True


def _seed_words(line: Line) -> str:
    words = seeds(line.group)
    return f"{words}\u00a0seed{'' if words == '1' else 's'}" if words.isdigit() else words
