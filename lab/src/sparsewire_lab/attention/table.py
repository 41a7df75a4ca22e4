"""Records → the tables of the attention experiment: results, how settings were found, speed."""

from collections.abc import Sequence
from typing import Any

from sparsewire_lab.attention.settings import (
    PRESET_ARGUMENTS,
    departure_words,
    departures,
    names,
    settings,
)
from sparsewire_lab.figures.cells import NONE, duration, percent, step_time, steps_of, table_of
from sparsewire_lab.figures.pages import (
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

# Percent, by the number of glimpses and their size, on canvases of 100 × 100.
PAPER = {(1, 32): "0.85 %", (8, 12): "1.01 %"}
# Four ways to evaluate one trained model, by their names in records.
_ERRORS = {
    "error": "error (rounded), %",
    "expected": "expected, %",
    "sampled": "1 draw, %",
    "sampled16": "16 draws, %",
}
_HEAD = (
    "canvas",
    "model",
    "classifier reads",
    "head",
    "training",
    "seeds",
    *_ERRORS.values(),
    "ms per step",
    "memory, GiB",
    "paper, as published",
)
_VALIDATION_HEAD = (
    "model",
    "differs from our preset in",
    "steps × batch",
    "seeds",
    *_ERRORS.values(),
)
_SPEED_HEAD = ("model", "seeds", "ms per step", "beside the plain ConvNet")


def attention_table(records: Sequence[Record]) -> str:
    """Return the table of the runs that were measured on the test set: a row for each setting.

    Errors are in percent, mean ± standard deviation over the seeds that did not diverge; the
    times are means over them, the memory is the most that any took.
    """
    found = _of(records, "test")
    told = ("canvas", "data", "head", "width", "steps", "batch")
    return table_of(_HEAD, [_row(*pair) for pair in zip(found, names(found, told), strict=True)])


def validation_table(records: Sequence[Record]) -> str:
    """Return the table of the runs that were measured on the validation set.

    The preset comes first, then what differs from it in one argument after the other. The paper's
    settings are not searched; those runs are for `speed_table`.
    """
    found = [g for g in _of(records, "validation") if g.setting["preset"] != "paper"]
    named = list(zip(found, names(found, (*PRESET_ARGUMENTS, "steps", "batch")), strict=True))
    models = [name for _, name in named]
    named.sort(key=lambda pair: (models.index(pair[1]), _places(pair[0].setting)))
    return table_of(_VALIDATION_HEAD, [_validation_row(*pair) for pair in named])


def speed_table(records: Sequence[Record]) -> str:
    """Return the times of a step with the paper's settings, beside the plain network's."""
    found = [g for g in _of(records, "validation") if g.setting["preset"] == "paper"]
    cells = speed_cells(found, lambda setting: setting["model"] == "convnet")
    rows = [(name, *row) for name, row in zip(names(found), cells, strict=True)]
    return table_of(_SPEED_HEAD, rows)


def fill_attention(page: str, records: Sequence[Record]) -> str:
    """Return a page with the table of results, and with the others if it has marks for them."""
    tables = {
        (VALIDATION_BEGIN, VALIDATION_END): validation_table(records),
        (SPEED_BEGIN, SPEED_END): speed_table(records),
    }
    return fill_marked(fill(page, attention_table(records)), tables)


def _of(records: Sequence[Record], split: str) -> list[Group]:
    return [group for group in settings(records) if group.setting["split"] == split]


def _row(group: Group, name: str) -> tuple[str, ...]:
    setting, runs = group.setting, finished(group)
    memory = [run["peak_memory"] for run in runs if run.get("peak_memory") is not None]
    return (
        f"{setting['canvas']}" + ("" if setting["data"] == "mnist" else f", {setting['data']}"),
        name,
        _reads(setting),
        _head(setting),
        f"{steps_of(setting)}, {duration([run['seconds'] for run in runs])}",
        seeds(group),
        *_errors(runs),
        step_time(runs),
        f"{max(memory) / 2**30:.2f}" if memory else NONE,
        _paper(setting),
    )


def _validation_row(group: Group, name: str) -> tuple[str, ...]:
    differs = ", ".join(departure_words(group.setting)) or NONE
    errors = _errors(finished(group))
    return name, differs, steps_of(group.setting), seeds(group), *errors


def _places(setting: dict[str, Any]) -> list[int]:
    """Where the arguments that differ from the preset stand among all."""
    return [PRESET_ARGUMENTS.index(name) for name in departures(setting)]


def _reads(setting: dict[str, Any]) -> str:
    """How much of the image the classifier is given."""
    if setting["model"] == "convnet":
        return "all" if setting["reduce"] == 1 else f"all, reduced {setting['reduce']} ×"
    read, there = setting["glimpses"] * setting["size"] ** 2, setting["canvas"] ** 2
    return f"{read:,} of {there:,} ({100 * read / there:.3g} %)"


def _head(setting: dict[str, Any]) -> str:
    if setting["model"] == "convnet":
        return NONE
    wide = f" {setting['width']}" if setting["head"] == "conv" and "width" in setting else ""
    return f"{setting['head']}{wide}"


def _errors(runs: Sequence[Record]) -> list[str]:
    return [percent([(run["final"] or {}).get(name) for run in runs]) for name in _ERRORS]


def _paper(setting: dict[str, Any]) -> str:
    """What the paper prints for the model and data of a row, whatever its settings are."""
    if (setting["model"], setting["canvas"], setting["data"]) != ("glimpse", 100, "mnist"):
        return NONE
    return PAPER.get((setting["glimpses"], setting["size"]), NONE)
