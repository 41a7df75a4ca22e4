"""Records → the table of the identity experiment."""

import math
from collections.abc import Sequence

from sparsewire_lab.figures.series import THRESHOLD, Record, reach_words
from sparsewire_lab.figures.settings import plain_value
from sparsewire_lab.figures.tables import NONE, Columns, Row, fill, seeds, table_of
from sparsewire_lab.identity.settings import best, groups
from sparsewire_lab.train.records import aggregate, statistics_of

# What the paper says of its figure; it prints no numbers.
PAPER = {
    **{("sparse", size): "converges" for size in (8, 16, 32, 64)},
    ("reinforce", 8): "works, if slowly",
    ("reinforce", 16): "fails",
}
_VALUES = {"fixed": "fixed at 1", "ones": "learned, from 1", "normal": "learned, from N(0, 1)"}


def identity_table(records: Sequence[Record]) -> str:
    """Return the table of the identity experiment: a row for each setting, averaged over seeds.

    Of a sweep, the row of the best learning rate.
    """
    return table_of(_COLUMNS, [Row(group, "") for group in best(groups(records))])


def fill_identity(page: str, records: Sequence[Record]) -> str:
    """Return a page with the table."""
    return fill(page, identity_table(records))


def _error(row: Row) -> str:
    finals = aggregate(row.group.runs)
    error, expected = finals.get("error", NONE), finals.get("expected_error")
    return f"{error}" + (f" (not rounded: {expected})" if expected else "")


def _found(row: Row) -> str:
    """Return a share with as many digits as it takes not to write 100 % of less."""
    share = statistics_of((run["final"] or {}).get("found") for run in row.group.runs).mean
    if math.isnan(share):
        return NONE
    short = f"{100 * share:.4g} %"
    return f"{100 * share:.6g} %" if short == "100 %" and share < 1 else short


def _paper(row: Row) -> str:
    method, size, target, values = (
        row.setting[name] for name in ("method", "size", "target", "values")
    )
    return PAPER.get((method, size), NONE) if (target, values) == ("identity", "fixed") else NONE


_COLUMNS: Columns = {
    "size": lambda row: f"{row.setting['size']:,}",
    "target": lambda row: row.setting["target"],
    "method": lambda row: row.setting["method"],
    "values": lambda row: _VALUES.get(row.setting["values"]) or row.setting["values"],
    "lr": lambda row: plain_value(row.setting["lr"]),
    "steps": lambda row: f"{row.setting['steps']:,}",
    "seeds": seeds,
    "rounded error": _error,
    "places found": _found,
    f"below {THRESHOLD:g} after": lambda row: reach_words(row.group.runs),
    "paper": _paper,
}
