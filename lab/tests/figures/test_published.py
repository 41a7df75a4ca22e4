"""Every published number has a record, and every page says what its records say."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sparsewire_lab.attention.experiment import Attention
from sparsewire_lab.attention.table import fill_attention
from sparsewire_lab.figures.tables import fill, marks
from sparsewire_lab.identity.experiment import Identity
from sparsewire_lab.identity.table import identity_table
from sparsewire_lab.report.summary_table import fill_summary
from sparsewire_lab.sorting.experiment import Sorting
from sparsewire_lab.sorting.table import fill_sorting
from sparsewire_lab.train import records
from sparsewire_lab.train.options import Experiment

ROOT = Path(__file__).resolve().parents[3]
EXPERIMENTS: dict[str, Callable[..., Experiment]] = {
    "identity": Identity,
    "attention": Attention,
    "sorting": Sorting,
}


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("identity", "identity"),
        ("film/identity", "identity"),
        ("attention", "attention"),
        ("sorting", "sorting"),
    ],
)
def test_every_published_number_has_an_origin(file: str, name: str) -> None:
    path = ROOT / "results" / f"{file}.jsonl"
    found = records.read(path)
    assert found
    for record in found:
        arguments = record["arguments"]
        given = {"seeds": tuple(arguments["seeds"]), "out": Path(arguments["out"])}
        assert record["key"] == EXPERIMENTS[name](**(arguments | given)).key()
        assert len(record["commit"]) == 40
        assert record["command"].startswith(f"sparsewire {name} ")
        assert record["device"]
        assert record["versions"]["torch"]
        assert record["status"] == "finished"
        shown = record["seed"] == 0 and arguments.get("split", "test") == "test"
        if record["wiring"] is not None and shown:
            assert (path.parent / record["wiring"]).exists()


def test_the_pages_are_those_of_the_records() -> None:
    page = (ROOT / "docs" / "reproduction" / "identity.md").read_text()
    table = identity_table(records.read(ROOT / "results" / "identity.jsonl"))
    assert page == fill(page, table)
    page = (ROOT / "docs" / "reproduction" / "attention.md").read_text()
    assert page == fill_attention(page, records.read(ROOT / "results" / "attention.jsonl"))
    page = (ROOT / "docs" / "reproduction" / "sorting.md").read_text()
    assert page == fill_sorting(page, records.read(ROOT / "results" / "sorting.jsonl"))


def test_the_readme_says_what_the_records_say() -> None:
    """As `sparsewire reproduce readme` writes it."""
    found = {name: records.read(ROOT / "results" / f"{name}.jsonl") for name in EXPERIMENTS}
    page = (ROOT / "README.md").read_text()
    assert page == fill_summary(page, found)


def test_the_time_of_new_canvases_is_recorded() -> None:
    """The page's sentence: the newest record of 100 × 100 pixels, below 5 % of a glimpse's step."""
    lines = (ROOT / "results" / "clutter.jsonl").read_text().splitlines()
    (drawn,) = [row["ms"] for row in map(json.loads, lines) if row["canvas"] == 100]
    page = (ROOT / "docs" / "reproduction" / "attention.md").read_text()
    assert f"{drawn:.3g} ms for 128 of 100 × 100 pixels" in page
    begin, end = marks("speed table")
    table = page.partition(begin)[2].partition(end)[0]
    (row,) = [row for row in table.splitlines() if row.startswith("| 1 glimpse of 32 × 32")]
    assert drawn < 0.05 * float(row.split(" | ")[2])
