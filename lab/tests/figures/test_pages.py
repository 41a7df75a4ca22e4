"""Pages: what is between their marks is replaced by the tables of an experiment's records."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab.tests.figures.samples import make_attention, make_identity, make_sorting

from sparsewire_lab.attention import table as attention
from sparsewire_lab.cli.figures import write_table
from sparsewire_lab.figures.tables import fill, marks
from sparsewire_lab.identity.table import identity_table
from sparsewire_lab.sorting import table as sorting

PROTOCOL: dict[str, Any] = {"places": 4, "network": "wide", "batch": 100, "jitter": 0.0}
RUNS = {
    "identity": [make_identity([0.5, 0.0])],
    "attention": [
        make_attention([0.5]),
        make_attention([0.1], key="b", split="validation"),
        make_attention([0.1], key="c", split="validation", preset="paper", other={"step_ms": 2.0}),
    ],
    "sorting": [
        make_sorting([0.5], steps=3000),
        make_sorting([0.1], key="b", split="validation"),
        make_sorting([0.2], key="c", size=7, **PROTOCOL),
        make_sorting([0.9], key="d", split="validation", steps=600, other={"step_ms": 2.0}),
        make_sorting([0.9], key="e", steps=2000),
    ],
}
TABLES: dict[str, dict[str, Callable[[list[dict]], str]]] = {
    "identity": {"table": identity_table},
    "attention": {
        "table": attention.attention_table,
        "validation table": attention.validation_table,
        "speed table": attention.speed_table,
    },
    "sorting": {
        "table": lambda runs: sorting.sorting_table(runs, 3000),
        "validation table": sorting.validation_table,
        "speed table": sorting.speed_table,
        "protocol table": sorting.protocol_table,
        "field table": sorting.field_table,
    },
}


@pytest.mark.parametrize("experiment", TABLES)
def test_all_tables_are_put_between_their_marks(experiment: str, tmp_path: Path) -> None:
    page, runs, before, after = tmp_path / "page.md", RUNS[experiment], "", ""
    for name, table in TABLES[experiment].items():
        begin, end = marks(name)
        assert len(table(runs).splitlines()) == 3
        before += f"{name}\n{begin}\nold\n{end}\n"
        after += f"{name}\n{begin}\n\n{table(runs)}\n{end}\n"
    page.write_text(before)
    assert write_table(page, runs) == page
    assert page.read_text() == after


@pytest.mark.parametrize("experiment", ["attention", "sorting"])
def test_other_tables_need_no_marks(experiment: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    begin, end = marks()
    page.write_text(f"{begin}\n{end}\n")
    write_table(page, RUNS[experiment][1:2])
    assert page.read_text() == f"{begin}\n\nNo run is recorded yet.\n\n{end}\n"


def test_pages_and_records_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    (begin, end), (_, last) = marks(), marks("validation table")
    for text in ("", begin, end):
        with pytest.raises(ValueError, match=f"page must hold {begin}"):
            fill(text, "table")
    page, content = tmp_path / "page.md", f"{begin}\n{end}\n{last}\n"
    page.write_text(content)
    for runs in (RUNS["attention"], RUNS["sorting"]):
        with pytest.raises(ValueError, match="page must hold <!-- validation table: begin -->"):
            write_table(page, runs)
    with pytest.raises(ValueError, match="must be of one experiment; got attention, identity"):
        write_table(page, RUNS["attention"] + RUNS["identity"])
    assert page.read_text() == content
