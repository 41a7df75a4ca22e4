"""Records → the tables of the sorting experiment: results, peers, a protocol, a search, speed."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from sparsewire_lab.figures.series import Group, Record
from sparsewire_lab.figures.tables import (
    NONE,
    Columns,
    Row,
    error_columns,
    fill,
    fill_marked,
    marks,
    on_split,
    percent,
    seeds,
    speed_columns,
    step_time,
    steps_of,
    table_of,
    training,
)
from sparsewire_lab.sorting.settings import (
    PROTOCOL,
    SETTINGS,
    agrees,
    departure_words,
    names,
    reported,
    settings,
)

# Nothing is learned in fewer steps: such runs measure the time of a step.
_LEAST_LEARNED = 1_000
# Shorter runs on test digits are no results: they compare methods after equally many steps.
_LEAST_RESULT = 3_000
_STATED = ("size", "places", "data", "loss", "preset", "steps", "batch")


def sorting_table(records: Sequence[Record], least: int = 0) -> str:
    """Return the table of the runs that were measured on test digits: a row for each setting.

    Errors are in percent, mean ± standard deviation over the seeds that did not diverge; times are
    means over them. The paper's error is in the rows of quicksort, on its task. Runs by the
    four-digit protocol have a table of their own.

    Args:
        records: The records of the experiment.
        least: Steps below which a run is left out.
    """
    groups = [group for group in _results(records) if group.setting["steps"] >= least]
    return table_of(_RESULTS, _rows(groups, _STATED))


def field_table(records: Sequence[Record]) -> str:
    """Return the table of short runs on test digits, of many methods with as many steps each."""
    groups = [group for group in _results(records) if group.setting["steps"] < _LEAST_RESULT]
    return table_of(_FIELD, _rows(groups, _STATED))


def protocol_table(records: Sequence[Record]) -> str:
    """Return the table of the four-digit protocol, in its terms.

    EM is the share of sets in order, EW that of numbers in their place; for both, equal numbers
    must keep their order. Where runs on as many numbers have different lengths, EM after the steps
    of the shortest is given too.
    """
    groups = [group for group in on_split(settings(records), "test") if _is_protocol(group.setting)]
    stated = ["size", "places", "data", "loss", "steps", "batch"]
    # Arguments of the protocol are stated by the table, unless some runs have others.
    stated += [
        name
        for name, value in PROTOCOL.items()
        if all(agrees(group.setting.get(name), value) for group in groups)
    ]

    def shortest(size: int) -> int:
        return min(g.setting["steps"] for g in groups if g.setting["size"] == size)

    rows = [replace(row, extra=shortest(row.setting["size"])) for row in _rows(groups, stated)]
    return table_of(_PROTOCOL, rows)


def validation_table(records: Sequence[Record]) -> str:
    """Return the table of the runs that were measured on validation digits, to choose settings."""
    groups = [g for g in on_split(settings(records), "validation") if not _is_timing(g.setting)]
    return table_of(_VALIDATION, _rows(groups, (*_STATED, *SETTINGS.arguments)))


def speed_table(records: Sequence[Record]) -> str:
    """Return the times of a step, of short runs that had their device to themselves."""
    alone = [record for record in records if (record.get("at_once") or 1) == 1]
    timed = [g for g in on_split(settings(alone), "validation") if _is_timing(g.setting)]
    rows = _rows(timed, _STATED)
    relative = "relative to the likelihood"
    columns = speed_columns(rows, relative, lambda setting: setting["method"] == "likelihood")
    return table_of({**_TASK, "batch": lambda row: f"{row.setting['batch']:,}", **columns}, rows)


def fill_sorting(page: str, records: Sequence[Record]) -> str:
    """Return a page with the table of results, and with the others if it has marks for them."""
    tables = {
        "protocol table": protocol_table(records),
        "validation table": validation_table(records),
        "speed table": speed_table(records),
        "field table": field_table(records),
    }
    has_field = marks("field table")[0] in page
    results = sorting_table(records, _LEAST_RESULT if has_field else 0)
    return fill_marked(fill(page, results), tables)


def _results(records: Sequence[Record]) -> list[Group]:
    return [
        group for group in on_split(settings(records), "test") if not _is_protocol(group.setting)
    ]


def _rows(groups: Sequence[Group], stated: Collection[str]) -> list[Row]:
    return [Row(*pair) for pair in zip(groups, names(groups, stated), strict=True)]


def _is_protocol(setting: dict[str, Any]) -> bool:
    return (setting["places"], setting["data"], setting.get("network")) == (4, "mnist", "wide")


def _is_timing(setting: dict[str, Any]) -> bool:
    return setting["data"] == "mnist" and setting["steps"] < _LEAST_LEARNED


def _digits(row: Row) -> str:
    return f"{row.setting['places']}" + ("" if row.setting["data"] == "mnist" else ", small")


def _paper(row: Row) -> str:
    error = reported(row.setting)
    return error[0] if error else NONE


def _right(finals: Sequence[dict[str, Any] | None], name: str) -> str:
    """Return the share that is not wrong, in percent."""
    errors = [(final or {}).get(name) for final in finals]
    return percent(None if error is None else 1 - error for error in errors)


def _after(run: Record, steps: int) -> dict[str, Any]:
    """Return what was measured after this number of steps, if there is such a point."""
    curve = run["curve"]
    if steps not in curve["step"]:
        return {}
    place = curve["step"].index(steps)
    return {name: values[place] for name, values in curve.items()}


_SIZE: Columns = {"n": lambda row: f"{row.setting['size']:,}"}
_METHOD: Columns = {"method": lambda row: row.name}
_FIELD_TASK: Columns = {
    **_SIZE,
    "digits": _digits,
    **_METHOD,
    "loss": lambda row: row.setting["loss"],
}
_TASK: Columns = {**_FIELD_TASK, "preset": lambda row: row.setting["preset"]}
_STEPS: Columns = {"steps × batch": lambda row: steps_of(row.setting), "seeds": seeds}
_ERRORS = error_columns(
    {
        "error": "error (ties in any order), %",
        "strict": "strict error, %",
        "elements": "numbers misplaced, %",
    }
)
_STEP_TIME: Columns = {"ms per step": lambda row: step_time(row.runs)}
_RESULTS: Columns = {
    **_TASK,
    "training": training,
    "seeds": seeds,
    **_ERRORS,
    **_STEP_TIME,
    "paper's error (strict)": _paper,
}
_FIELD: Columns = {
    **_FIELD_TASK,
    **_STEPS,
    **_ERRORS,
    **_STEP_TIME,
    "device": lambda row: ", ".join(dict.fromkeys(run.get("device") or NONE for run in row.runs)),
}
_PROTOCOL: Columns = {
    **_SIZE,
    **_METHOD,
    "EM, %": lambda row: _right([run["final"] for run in row.runs], "strict"),
    "EW, %": lambda row: _right([run["final"] for run in row.runs], "elements"),
    "training": training,
    "EM after as many steps, %": lambda row: _right(
        [_after(run, row.extra) for run in row.runs], "strict"
    ),
    "seeds": seeds,
    **_STEP_TIME,
}
_VALIDATION: Columns = {
    **_TASK,
    "differs from its preset in": lambda row: ", ".join(departure_words(row.setting)) or NONE,
    **_STEPS,
    **_ERRORS,
}
