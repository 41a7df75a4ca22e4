"""Records → the tables of the sorting experiment: results, and how settings were found."""

from collections.abc import Sequence
from typing import Any

from sparsewire.figures.cells import NONE, duration, percent, step_time, steps_of, table_of
from sparsewire.figures.pages import VALIDATION_BEGIN, VALIDATION_END, fill
from sparsewire.figures.series import Group, Record
from sparsewire.figures.settings import finished, plain_value, seeds
from sparsewire.figures.sorting_settings import papers, sorting_names, sorting_settings

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
_TRIED = ("lr", "temperature", "jitter", "dropout", "decay")
_VALIDATION_HEAD = (*_TASK, *_TRIED, "steps × batch", "seeds", *_ERRORS.values())


def sorting_table(records: Sequence[Record]) -> str:
    """Return the table of the runs that were measured on test digits: a row for each setting.

    Errors are in percent, mean ± standard deviation over the seeds that did not diverge; the
    times are means over them. The paper's error stands in the rows of quicksort, on its task.
    """
    found = _of(records, "test")
    names = sorting_names(found, _TOLD)
    return table_of(_HEAD, [_row(*pair) for pair in zip(found, names, strict=True)])


def sorting_validation_table(records: Sequence[Record]) -> str:
    """Return the table of the runs that were measured on validation digits."""
    found = _of(records, "validation")
    names = sorting_names(found, (*_TOLD, *_TRIED))
    rows = [_validation_row(*pair) for pair in zip(found, names, strict=True)]
    return table_of(_VALIDATION_HEAD, rows)


def fill_sorting(page: str, records: Sequence[Record]) -> str:
    """Return a page with the table of results, and with the other if it has marks for it."""
    page = fill(page, sorting_table(records))
    if VALIDATION_BEGIN in page or VALIDATION_END in page:
        page = fill(page, sorting_validation_table(records), VALIDATION_BEGIN, VALIDATION_END)
    return page


def _of(records: Sequence[Record], split: str) -> list[Group]:
    return [group for group in sorting_settings(records) if group.setting["split"] == split]


def _row(group: Group, name: str) -> tuple[str, ...]:
    setting, runs = group.setting, finished(group)
    said = papers(setting)
    return (
        *_task(setting, name),
        f"{steps_of(setting)}, {duration([run['seconds'] for run in runs])}",
        seeds(group),
        *_errors(runs),
        step_time(runs),
        said[0] if said else NONE,
    )


def _validation_row(group: Group, name: str) -> tuple[str, ...]:
    setting = group.setting
    tried = (plain_value(setting.get(name)) for name in _TRIED)
    errors = _errors(finished(group))
    return *_task(setting, name), *tried, steps_of(setting), seeds(group), *errors


def _task(setting: dict[str, Any], name: str) -> tuple[str, ...]:
    small = "" if setting["data"] == "mnist" else ", small"
    digits = f"{setting['places']}{small}"
    return f"{setting['size']:,}", digits, name, setting["loss"], setting["preset"]


def _errors(runs: Sequence[Record]) -> list[str]:
    return [percent([(run["final"] or {}).get(name) for run in runs]) for name in _ERRORS]
