"""Settings → the numbers of the page: the summary of all, and the table of each experiment."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from sparsewire_lab.attention.settings import family
from sparsewire_lab.figures.series import THRESHOLD, reach_words
from sparsewire_lab.figures.settings import plain_value
from sparsewire_lab.figures.tables import NONE, duration, final_percent, step_time, steps_of
from sparsewire_lab.report.entries import Entry, by_task
from sparsewire_lab.train.records import statistics_of

_HEADS = {
    "identity": ("rounded error", "places found", f"below {THRESHOLD:g} after"),
    "attention": ("error", "not rounded", "time of a step"),
    "sorting": ("error", "strict error", "numbers misplaced", "time of a step"),
}


class Number(NamedTuple):
    """The error of a setting, and the command that makes it."""

    text: str
    name: str
    seeds: str
    command: str


class Task(NamedTuple):
    """A task of the summary: what was measured, and what the paper says."""

    experiment: str
    name: str
    ours: list[Number]
    paper: list[str]
    """What the paper says, of each method."""
    baselines: list[Number]


def summary(experiment: str, entries: Sequence[Entry]) -> list[Task]:
    """Return the tasks that were measured as published: not on validation digits."""
    tasks = []
    for name, alike in by_task(entries).items():
        if alike[0].setting.get("split", "test") != "test":
            continue
        shown = [entry for entry in alike if _is_usual(entry)] or alike
        papers = (f"{_paper_name(e)}: {e.paper}".replace(" %", "\u00a0%") for e in shown if e.paper)
        tasks.append(
            Task(
                experiment,
                name,
                [number(experiment, entry) for entry in shown if entry.ours],
                list(dict.fromkeys(papers)),
                [number(experiment, entry) for entry in shown if not entry.ours],
            )
        )
    return _combined(experiment, tasks)


def _combined(experiment: str, tasks: Sequence[Task]) -> list[Task]:
    """Combine the tasks that have nothing to be compared with into one, after the others."""
    compared = [task for task in tasks if task.paper or task.baselines]
    alone = [task for task in tasks if not (task.paper or task.baselines)]
    if len(alone) < 2 or not compared:
        return list(tasks)
    numbers = [
        item._replace(name=f"{task.name}, {item.name}") for task in alone for item in task.ours
    ]
    return [*compared, Task(experiment, "beyond the paper", numbers, [], [])]


def number(experiment: str, entry: Entry) -> Number:
    """Return the error of a setting, mean ± standard deviation over seeds."""
    seeds = entry.group.seeds
    words = f"{seeds}\u00a0seed{'' if seeds == '1' else 's'}" if seeds.isdigit() else seeds
    return Number(main_error(experiment, entry), entry.name, words, entry.command)


def main_error(experiment: str, entry: Entry) -> str:
    """Return the error of a setting in words, in percent where it is a share."""
    if experiment != "identity":
        share = _percent(entry, "error")
        return "diverged" if share == NONE else share
    error, expected = (
        statistics_of(run["final"].get(name) for run in entry.runs)
        for name in ("error", "expected_error")
    )
    if not math.isfinite(error.mean):
        return "diverged"
    # A wire may represent two indices at once: rounding is the wrong way to read it then.
    return f"{error}" + (f" (not rounded: {expected})" if math.isfinite(expected.mean) else "")


def full_head(experiment: str) -> tuple[str, ...]:
    """Return the head of the table of an experiment, but for its commands."""
    return "task", "method", "training", "seeds", *_HEADS[experiment], "paper"


def full_row(experiment: str, entry: Entry) -> tuple[str, ...]:
    """Return the row of a setting, without its command."""
    error = main_error(experiment, entry)
    if experiment == "identity":
        found = statistics_of(run["final"].get("found") for run in entry.runs).mean
        places = f"{100 * found:.4g} %" if math.isfinite(found) else NONE
        cells = error, places, reach_words(entry.runs)
    elif experiment == "attention":
        is_glimpse = entry.setting["model"] == "glimpse"
        cells = error, _percent(entry, "expected") if is_glimpse else NONE, _step_time(entry)
    else:
        cells = error, _percent(entry, "strict"), _percent(entry, "elements"), _step_time(entry)
    first = entry.task, entry.name, _training(entry), entry.group.seeds
    return *first, *cells, entry.paper or NONE


def _percent(entry: Entry, metric: str) -> str:
    share = final_percent(entry.runs, metric)
    return share if share == NONE else f"{share} %"


def _step_time(entry: Entry) -> str:
    ms, _, shared = step_time(entry.runs).partition(",")
    return ms if ms == NONE else f"{ms} ms" + (f",{shared}" if shared else "")


def _training(entry: Entry) -> str:
    setting = entry.setting
    steps = steps_of(setting) if type(setting.get("batch")) is int else f"{setting['steps']:,}"
    rate = f", lr {plain_value(setting['lr'])}" if setting.get("lr") is not None else ""
    return f"{steps}{rate}, {duration(entry.runs)}"


def _paper_name(entry: Entry) -> str:
    """Return the method that the paper reports, whatever the settings that were run here."""
    setting = entry.setting
    if "places" in setting:
        return "sampled quicksort, strict error"
    return family(setting) if "glimpses" in setting else entry.name


def _is_usual(entry: Entry) -> bool:
    """Return whether a setting is no variant, which is left to the full table."""
    setting = entry.setting
    if "values" in setting and "method" in setting:
        return setting["values"] == "fixed" or setting["method"] == "rewire"
    return True
