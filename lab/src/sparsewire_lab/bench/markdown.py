"""Tables and numbers as the page of a record writes them."""

from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]

_VERSIONS = ("python", "torch", "numpy", "triton", "keops", "sparsewire")


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    rule = "|" + "---|" * len(head)
    body = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    return "\n".join(["| " + " | ".join(head) + " |", rule, *body]) + "\n"


def milliseconds(value: float | None) -> str:
    """Write a time, if there is one."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def number(value: float | None, form: str) -> str:
    """Write a number, if there is one."""
    return "" if value is None else form.format(value)


def half_range(row: Row) -> str:
    """Write half the distance between the quartiles of the times."""
    return "" if row["noise"] is None else f"{50 * row['noise']:.0f} %"


def over(row: Row, floor: str) -> str:
    """Write how many times a floor the time of a row is."""
    time, least = row["ms_forward_backward"], row[floor]
    return f"{time / least:,.1f}" if time and least else ""


def note(row: Row) -> str:
    """Write what a row says of itself."""
    if row["status"] in ("ok", "wrong"):
        return row["note"]
    return f"{row['status']}: {row['note']}"


def origin(rows: Sequence[Row]) -> str:
    """Say where rows come from."""
    row = rows[0]
    versions = ", ".join(f"{name} {row[name]}" for name in _VERSIONS if row[name])
    quick = " quick run;" if row["plan"] == "quick" else ""
    return f"{row['date']};{quick} commit `{row['commit']}`; {versions}."
