"""Every published number has a record, and every page says what its records say."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from sparsewire.experiments.attention import Attention
from sparsewire.experiments.identity import Identity
from sparsewire.figures.attention_table import attention_table, fill_attention
from sparsewire.figures.tables import fill, identity_table
from sparsewire.training import records
from sparsewire.training.options import Experiment

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTS: dict[str, Callable[..., Experiment]] = {"identity": Identity, "attention": Attention}


@pytest.mark.parametrize(
    ("file", "name"),
    [("identity", "identity"), ("film/identity", "identity"), ("attention", "attention")],
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
        if record["wiring"] is not None and record["seed"] == 0:
            assert (path.parent / record["wiring"]).exists()


def test_the_pages_are_those_of_the_records() -> None:
    page = (ROOT / "docs" / "identity.md").read_text()
    table = identity_table(records.read(ROOT / "results" / "identity.jsonl"))
    assert page == fill(page, table)
    page = (ROOT / "docs" / "attention.md").read_text()
    assert page == fill_attention(page, records.read(ROOT / "results" / "attention.jsonl"))


def test_the_readme_says_what_the_records_say() -> None:
    """Each mean ± deviation there stands in the table, in the row of the same model."""
    rows = attention_table(records.read(ROOT / "results" / "attention.jsonl")).splitlines()
    names = {
        "one glimpse of 32 × 32": "1 glimpse of 32 × 32",
        "eight glimpses of 12 × 12": "8 glimpses of 12 × 12",
        "a plain ConvNet that reads everything": "plain ConvNet",
    }
    readme = (ROOT / "README.md").read_text().splitlines()
    for said, name in names.items():
        (line,) = [line for line in readme if line.startswith(f"| cluttered MNIST, {said} |")]
        (number,) = re.findall(r"\d\.\d\d ± \d\.\d\d", line)
        (row,) = [row for row in rows if row.startswith(f"| 100 | {name} |")]
        assert f"| {number} |" in row
