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


@pytest.mark.parametrize("file", ["identity", "film/identity", "attention", "sorting"])
def test_every_published_number_has_an_origin(file: str) -> None:
    path = ROOT / "results" / f"{file}.jsonl"
    name = path.stem
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


@pytest.mark.parametrize(
    ("page", "filled"),
    [
        ("docs/reproduction/identity.md", lambda page, runs: fill(page, identity_table(runs[0]))),
        ("docs/reproduction/attention.md", lambda page, runs: fill_attention(page, runs[1])),
        ("docs/reproduction/sorting.md", lambda page, runs: fill_sorting(page, runs[2])),
        (
            "README.md",  # as `sparsewire reproduce readme` writes it
            lambda page, runs: fill_summary(page, dict(zip(EXPERIMENTS, runs, strict=True))),
        ),
    ],
)
def test_pages_say_what_the_records_say(page: str, filled: Callable[..., str]) -> None:
    runs = [records.read(ROOT / "results" / f"{name}.jsonl") for name in EXPERIMENTS]
    text = (ROOT / page).read_text()
    assert text == filled(text, runs)


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
