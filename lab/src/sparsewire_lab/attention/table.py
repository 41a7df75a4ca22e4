"""Records → the tables of the attention experiment: results, the search of settings, speed."""

from collections.abc import Collection, Sequence

from sparsewire_lab.attention.settings import SETTINGS, names, settings
from sparsewire_lab.figures.series import Group, Record
from sparsewire_lab.figures.tables import (
    NONE,
    Columns,
    Row,
    error_columns,
    fill,
    fill_marked,
    on_split,
    seeds,
    speed_columns,
    step_time,
    steps_of,
    table_of,
    training,
)

# Percent, by the number of glimpses and their size, on canvases of 100 × 100.
PAPER = {(1, 32): "0.85 %", (8, 12): "1.01 %"}


def attention_table(records: Sequence[Record]) -> str:
    """Return the table of the runs that were measured on the test set: a row for each setting.

    Errors are in percent, mean ± standard deviation over the seeds that did not diverge; times are
    means over them, the memory is the maximum.
    """
    stated = ("canvas", "data", "head", "width", "steps", "batch")
    return table_of(_RESULTS, _rows(on_split(settings(records), "test"), stated))


def validation_table(records: Sequence[Record]) -> str:
    """Return the table of the runs that were measured on the validation set.

    The preset comes first, then what departs from it in one argument after the other. The paper's
    settings were not searched; those runs are for `speed_table`.
    """
    tried = on_split(settings(records), "validation")
    searched = [group for group in tried if group.setting["preset"] != "paper"]
    rows = _rows(searched, (*SETTINGS.arguments, "steps", "batch"))
    models = [row.name for row in rows]

    def order(row: Row) -> tuple[int, list[int]]:
        departures = SETTINGS.departures(row.setting)
        return models.index(row.name), [SETTINGS.arguments.index(name) for name in departures]

    return table_of(_VALIDATION, sorted(rows, key=order))


def speed_table(records: Sequence[Record]) -> str:
    """Return the times of a step with the paper's settings, relative to the plain network's."""
    tried = on_split(settings(records), "validation")
    rows = _rows([group for group in tried if group.setting["preset"] == "paper"])
    relative = "relative to the plain ConvNet"
    columns = speed_columns(rows, relative, lambda setting: setting["model"] == "convnet")
    return table_of({**_MODEL, **columns}, rows)


def fill_attention(page: str, records: Sequence[Record]) -> str:
    """Return a page with the table of results, and with the others if it has marks for them."""
    tables = {
        "validation table": validation_table(records),
        "speed table": speed_table(records),
    }
    return fill_marked(fill(page, attention_table(records)), tables)


def _rows(groups: Sequence[Group], stated: Collection[str] = ()) -> list[Row]:
    return [Row(*pair) for pair in zip(groups, names(groups, stated), strict=True)]


def _canvas(row: Row) -> str:
    data = row.setting["data"]
    return f"{row.setting['canvas']}" + ("" if data == "mnist" else f", {data}")


def _reads(row: Row) -> str:
    """Return how much of the image the classifier is given."""
    setting = row.setting
    if setting["model"] == "convnet":
        return "all" if setting["reduce"] == 1 else f"all, reduced {setting['reduce']} ×"
    read, all_of = setting["glimpses"] * setting["size"] ** 2, setting["canvas"] ** 2
    return f"{read:,} of {all_of:,} ({100 * read / all_of:.3g} %)"


def _head(row: Row) -> str:
    setting = row.setting
    if setting["model"] == "convnet":
        return NONE
    wide = f" {setting['width']}" if setting["head"] == "conv" and "width" in setting else ""
    return f"{setting['head']}{wide}"


def _memory(row: Row) -> str:
    memory = [run["peak_memory"] for run in row.runs if run.get("peak_memory") is not None]
    return f"{max(memory) / 2**30:.2f}" if memory else NONE


def _paper(row: Row) -> str:
    """Return what the paper prints for the model and data of a row, whatever its settings are."""
    setting = row.setting
    if (setting["model"], setting["canvas"], setting["data"]) != ("glimpse", 100, "mnist"):
        return NONE
    return PAPER.get((setting["glimpses"], setting["size"]), NONE)


_MODEL: Columns = {"model": lambda row: row.name}
# Four ways to evaluate one trained model.
_ERRORS = error_columns(
    {
        "error": "error (rounded), %",
        "expected": "expected, %",
        "sampled": "1 sample, %",
        "sampled16": "16 samples, %",
    }
)
_RESULTS: Columns = {
    "canvas": _canvas,
    **_MODEL,
    "classifier reads": _reads,
    "head": _head,
    "training": training,
    "seeds": seeds,
    **_ERRORS,
    "ms per step": lambda row: step_time(row.runs),
    "memory, GiB": _memory,
    "paper, as published": _paper,
}
_VALIDATION: Columns = {
    **_MODEL,
    "differs from our preset in": lambda row: (
        ", ".join(SETTINGS.departure_words(row.setting)) or NONE
    ),
    "steps × batch": lambda row: steps_of(row.setting),
    "seeds": seeds,
    **_ERRORS,
}
