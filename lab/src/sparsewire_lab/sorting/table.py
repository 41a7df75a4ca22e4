"""Records → the tables of the sorting experiment: results, peers, a protocol, a search, speed."""

from collections.abc import Sequence
from typing import Any

from sparsewire_lab.figures.cells import NONE, duration, percent, step_time, steps_of, table_of
from sparsewire_lab.figures.pages import (
    FIELD_BEGIN,
    FIELD_END,
    PROTOCOL_BEGIN,
    PROTOCOL_END,
    SPEED_BEGIN,
    SPEED_END,
    VALIDATION_BEGIN,
    VALIDATION_END,
    fill,
    fill_marked,
)
from sparsewire_lab.figures.series import Group, Record
from sparsewire_lab.figures.settings import finished, seeds
from sparsewire_lab.figures.speeds import speed_cells
from sparsewire_lab.sorting.settings import (
    PROTOCOL,
    SORTING_ARGUMENTS,
    agrees,
    papers,
    sorting_names,
    sorting_settings,
    sorting_words,
)

# In fewer steps nothing is learned: such runs tell how long a step takes.
_LEAST_LEARNED = 1_000
# On test digits, shorter runs than that are no results: they compare methods after as many steps.
_LEAST_RESULT = 3_000
# By their names in records.
_ERRORS = {
    "error": "error (ties in any order), %",
    "strict": "strict error, %",
    "elements": "numbers misplaced, %",
}
_TASK = ("n", "digits", "method", "loss", "preset")
_TOLD = ("size", "places", "data", "loss", "preset", "steps", "batch")
_HEAD = (
    *_TASK,
    "training",
    "seeds",
    *_ERRORS.values(),
    "ms per step",
    "paper's error (strict)",
)
_FIELD_HEAD = (
    "n",
    "digits",
    "method",
    "loss",
    "steps × batch",
    "seeds",
    *_ERRORS.values(),
    "ms per step",
    "device",
)
_PROTOCOL_HEAD = (
    "n",
    "method",
    "EM, %",
    "EW, %",
    "training",
    "EM after as many steps, %",
    "seeds",
    "ms per step",
)
_VALIDATION_HEAD = (
    *_TASK,
    "differs from its preset in",
    "steps × batch",
    "seeds",
    *_ERRORS.values(),
)
_SPEED_HEAD = (*_TASK, "batch", "seeds", "ms per step", "beside the likelihood")


def sorting_table(records: Sequence[Record], least: int = 0) -> str:
    """Return the table of the runs that were measured on test digits: a row for each setting.

    Errors are in percent, mean ± standard deviation over the seeds that did not diverge; the
    times are means over them. The paper's error stands in the rows of quicksort, on its task.
    Runs by the four-digit protocol have a table of their own.

    Args:
        records: Of the experiment.
        least: Steps of a run, below which it is left out.
    """
    found = [
        group
        for group in _of(records, "test")
        if not _is_protocol(group.setting) and group.setting["steps"] >= least
    ]
    names = sorting_names(found, _TOLD)
    return table_of(_HEAD, [_row(*pair) for pair in zip(found, names, strict=True)])


def sorting_field_table(records: Sequence[Record]) -> str:
    """Return the table of short runs on test digits, of many methods with as many steps each."""
    found = [
        group
        for group in _of(records, "test")
        if not _is_protocol(group.setting) and group.setting["steps"] < _LEAST_RESULT
    ]
    names = sorting_names(found, _TOLD)
    return table_of(_FIELD_HEAD, [_field_row(*pair) for pair in zip(found, names, strict=True)])


def sorting_protocol_table(records: Sequence[Record]) -> str:
    """Return the table of the four-digit protocol, in its terms.

    EM is the share of sets in order, EW that of numbers in their place; equal numbers must stand
    as they came, for both. Where runs on as many numbers have different lengths, EM is told after
    the steps of the shortest too.
    """
    found = [group for group in _of(records, "test") if _is_protocol(group.setting)]
    told = ["size", "places", "data", "loss", "steps", "batch"]
    # What is the protocol's is no news, unless some have it otherwise.
    told += [
        name
        for name, value in PROTOCOL.items()
        if all(agrees(group.setting.get(name), value) for group in found)
    ]
    names = sorting_names(found, told)
    rows = []
    for group, name in zip(found, names, strict=True):
        size = group.setting["size"]
        steps = min(one.setting["steps"] for one in found if one.setting["size"] == size)
        rows.append(_protocol_row(group, name, steps))
    return table_of(_PROTOCOL_HEAD, rows)


def sorting_validation_table(records: Sequence[Record]) -> str:
    """Return the table of the runs that were measured on validation digits, to choose settings."""
    found = [group for group in _of(records, "validation") if not _is_timing(group.setting)]
    names = sorting_names(found, (*_TOLD, *SORTING_ARGUMENTS))
    rows = [_validation_row(*pair) for pair in zip(found, names, strict=True)]
    return table_of(_VALIDATION_HEAD, rows)


def sorting_speed_table(records: Sequence[Record]) -> str:
    """Return the times of a step, of short runs that had their device to themselves."""
    alone = [record for record in records if record.get("at_once", 1) == 1]
    found = [group for group in _of(alone, "validation") if _is_timing(group.setting)]
    names = sorting_names(found, _TOLD)
    cells = speed_cells(found, lambda setting: setting["method"] == "likelihood")
    rows = [
        (*_task(group.setting, name), f"{group.setting['batch']:,}", *row)
        for group, name, row in zip(found, names, cells, strict=True)
    ]
    return table_of(_SPEED_HEAD, rows)


def fill_sorting(page: str, records: Sequence[Record]) -> str:
    """Return a page with the table of results, and with the others if it has marks for them."""
    tables = {
        (PROTOCOL_BEGIN, PROTOCOL_END): sorting_protocol_table(records),
        (VALIDATION_BEGIN, VALIDATION_END): sorting_validation_table(records),
        (SPEED_BEGIN, SPEED_END): sorting_speed_table(records),
        (FIELD_BEGIN, FIELD_END): sorting_field_table(records),
    }
    results = sorting_table(records, _LEAST_RESULT if FIELD_BEGIN in page else 0)
    return fill_marked(fill(page, results), tables)


def _of(records: Sequence[Record], split: str) -> list[Group]:
    return [group for group in sorting_settings(records) if group.setting["split"] == split]


def _is_protocol(setting: dict[str, Any]) -> bool:
    return (setting["places"], setting["data"], setting.get("network")) == (4, "mnist", "wide")


def _is_timing(setting: dict[str, Any]) -> bool:
    return setting["data"] == "mnist" and setting["steps"] < _LEAST_LEARNED


def _row(group: Group, name: str) -> tuple[str, ...]:
    setting, runs = group.setting, finished(group)
    said = papers(setting)
    return (
        *_task(setting, name),
        _training(setting, runs),
        seeds(group),
        *_errors(runs),
        step_time(runs),
        said[0] if said else NONE,
    )


def _field_row(group: Group, name: str) -> tuple[str, ...]:
    setting, runs = group.setting, finished(group)
    size, digits, name, loss, _ = _task(setting, name)
    devices = dict.fromkeys(run.get("device") or NONE for run in runs)
    return (
        *(size, digits, name, loss),
        steps_of(setting),
        seeds(group),
        *_errors(runs),
        step_time(runs),
        ", ".join(devices),
    )


def _protocol_row(group: Group, name: str, steps: int) -> tuple[str, ...]:
    setting, runs = group.setting, finished(group)
    return (
        f"{setting['size']:,}",
        name,
        *(
            percent([_rest(run["final"], error) for run in runs])
            for error in ("strict", "elements")
        ),
        _training(setting, runs),
        percent([_rest(_after(run, steps), "strict") for run in runs]),
        seeds(group),
        step_time(runs),
    )


def _validation_row(group: Group, name: str) -> tuple[str, ...]:
    setting = group.setting
    differs = ", ".join(sorting_words(setting)) or NONE
    errors = _errors(finished(group))
    return *_task(setting, name), differs, steps_of(setting), seeds(group), *errors


def _task(setting: dict[str, Any], name: str) -> tuple[str, ...]:
    small = "" if setting["data"] == "mnist" else ", small"
    digits = f"{setting['places']}{small}"
    return f"{setting['size']:,}", digits, name, setting["loss"], setting["preset"]


def _training(setting: dict[str, Any], runs: Sequence[Record]) -> str:
    return f"{steps_of(setting)}, {duration([run['seconds'] for run in runs])}"


def _after(run: Record, steps: int) -> dict[str, Any]:
    """What was measured after so many steps, if there is such a point on the curve."""
    curve = run["curve"] or {"step": []}
    if steps not in curve["step"]:
        return {}
    place = curve["step"].index(steps)
    return {name: values[place] for name, values in curve.items()}


def _rest(found: dict[str, Any] | None, name: str) -> float | None:
    """The share that is not wrong."""
    error = (found or {}).get(name)
    return None if error is None else 1 - error


def _errors(runs: Sequence[Record]) -> list[str]:
    return [percent([(run["final"] or {}).get(name) for run in runs]) for name in _ERRORS]
