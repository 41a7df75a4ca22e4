"""Records are read as they were written, whatever a killed process left between them."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from lab.tests.train.toy import full_disk

from sparsewire_lab.files import DiskError
from sparsewire_lab.train.records import aggregate, append, read, spread_of


def make_record(key: str = "k", seed: int = 0, **others: Any) -> dict[str, Any]:
    record = {
        "experiment": "toy",
        "key": key,
        "seed": seed,
        "status": "finished",
        "arguments": {"lr": 0.1, "seeds": [0, 1]},
        "curve": {"step": [0, 10], "error": [1.0, 0.5]},
        "final": {"error": 0.5},
    }
    return record | others


def test_records_come_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "toy.jsonl"
    assert read(path) == []
    written = [make_record("b"), make_record("a", 1), make_record("b", 2)]
    for record in written:
        append(path, record)
    assert read(path) == written
    assert len(path.read_text().splitlines()) == 3


def test_what_is_not_finite_becomes_null(tmp_path: Path) -> None:
    path = tmp_path / "toy.jsonl"
    curve = {"error": [1.0, math.nan, math.inf, -math.inf], "pair": (math.nan, 1)}
    append(path, make_record(curve=curve, final={"error": math.nan}, best=math.inf, at=path))
    (record,) = read(path)
    assert record["curve"] == {"error": [1.0, None, None, None], "pair": [None, 1]}
    assert record["final"] == {"error": None}
    assert record["best"] is None
    assert record["at"] == str(path)
    json.loads(path.read_text(), parse_constant=pytest.fail)


def test_text_of_any_kind_stays_in_its_line(tmp_path: Path) -> None:
    path = tmp_path / "toy.jsonl"
    text = "two\nlines, \u2028 and \x85 ± more"
    append(path, make_record(problem=text))
    append(path, make_record(seed=1))
    assert [record.get("problem") for record in read(path)] == [text, None]


def test_a_cut_off_line_is_passed_over_and_later_ones_are_read(tmp_path: Path) -> None:
    path = tmp_path / "toy.jsonl"
    append(path, make_record("a"))
    append(path, make_record("b"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert [record["key"] for record in read(path)] == ["a"]
    append(path, make_record("c"))
    assert [record["key"] for record in read(path)] == ["a", "c"]


def test_lines_of_something_else_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "toy.jsonl"
    append(path, make_record("a"))
    with path.open("ab") as file:
        file.write(b'\n[1]\n{"key": "x", "seed": 0}\nnull\n\xff\xfe\n')
    append(path, make_record("b"))
    assert [record["key"] for record in read(path)] == ["a", "b"]


def test_the_newest_of_one_run_counts_at_the_place_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "toy.jsonl"
    for record in (
        make_record("a", 0, status="diverged"),
        make_record("a", 1),
        make_record("b", 0),
        make_record("a", 0),
    ):
        append(path, record)
    assert [(r["key"], r["seed"], r["status"]) for r in read(path)] == [
        ("a", 0, "finished"),
        ("a", 1, "finished"),
        ("b", 0, "finished"),
    ]


@pytest.mark.parametrize(
    "name", ["experiment", "key", "seed", "status", "arguments", "curve", "final"]
)
def test_a_record_without_a_needed_field_is_refused(name: str, tmp_path: Path) -> None:
    record = make_record()
    del record[name]
    with pytest.raises(ValueError, match=f"it lacks {name}"):
        append(tmp_path / "toy.jsonl", record)
    assert list(tmp_path.iterdir()) == []


def test_means_and_deviations_by_hand() -> None:
    """Of 1, 2 and 6: mean 3, squares 4 + 1 + 9 = 14, over n − 1 = 2 the root of 7."""
    group = [make_record(final={"error": x, "found": 1.0}) for x in (1.0, 2.0, 6.0)]
    found = aggregate(group)
    assert list(found) == ["error", "found"]
    assert found["error"] == (3.0, pytest.approx(math.sqrt(7)), 3)
    assert found["found"] == (1.0, 0.0, 3)
    assert str(found["error"]) == "3 ± 2.6"


def test_one_seed_has_no_deviation() -> None:
    spread = spread_of([0.25])
    assert (spread.mean, spread.seeds) == (0.25, 1)
    assert math.isnan(spread.deviation)
    assert str(spread) == "0.25"


@pytest.mark.parametrize("bad", [None, math.nan, math.inf])
def test_one_seed_without_a_number_leaves_no_mean(bad: float | None) -> None:
    spread = spread_of([1.0, bad])
    assert math.isnan(spread.mean)
    assert math.isnan(spread.deviation)
    assert spread.seeds == 2


def test_no_numbers_have_no_mean() -> None:
    assert math.isnan(spread_of([]).mean)
    assert spread_of([]).seeds == 0


def test_a_metric_that_one_seed_lacks_has_no_mean() -> None:
    found = aggregate([make_record(final={"error": 1.0}), make_record(final={"loss": 2.0})])
    assert math.isnan(found["error"].mean)
    assert math.isnan(found["loss"].mean)


def test_a_full_disk_keeps_what_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "toy.jsonl"
    append(path, make_record("a"))
    with full_disk(path.stat().st_size + 10), pytest.raises(DiskError, match=r"toy\.jsonl"):
        append(path, make_record("b"))
    assert [record["key"] for record in read(path)] == ["a"]
    append(path, make_record("b"))
    assert [record["key"] for record in read(path)] == ["a", "b"]
