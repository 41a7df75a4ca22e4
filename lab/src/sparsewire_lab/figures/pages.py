"""Tables in Markdown, and pages that hold some, each between two marks."""

from collections.abc import Mapping, Sequence

BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
VALIDATION_BEGIN = "<!-- validation table: begin -->"
VALIDATION_END = "<!-- validation table: end -->"
SPEED_BEGIN, SPEED_END = "<!-- speed table: begin -->", "<!-- speed table: end -->"
PROTOCOL_BEGIN = "<!-- protocol table: begin -->"
PROTOCOL_END = "<!-- protocol table: end -->"
FIELD_BEGIN, FIELD_END = "<!-- field table: begin -->", "<!-- field table: end -->"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table.

    Examples:
        >>> print(markdown(["size", "error"], [["8", "0.5"]]))
        | size | error |
        | --- | --- |
        | 8 | 0.5 |
    """
    lines = [head, ["---" for _ in head], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def fill(page: str, table: str, begin: str = BEGIN, end: str = END) -> str:
    """Return a page with the table between its marks."""
    before, first, rest = page.partition(begin)
    _, last, after = rest.partition(end)
    if not first or not last:
        raise ValueError(f"page must hold {begin} and {end}; one of them is missing")
    return f"{before}{begin}\n\n{table}\n{end}{after}"


def fill_marked(page: str, tables: Mapping[tuple[str, str], str]) -> str:
    """Return a page with those of the tables that it has marks for, by begin and end."""
    for marks, table in tables.items():
        if any(mark in page for mark in marks):
            page = fill(page, table, *marks)
    return page
