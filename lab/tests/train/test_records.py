"""Records are read as they were written, whatever a killed process left between them."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from sparsewire_lab.train import records
from sparsewire_lab.train.record_checks import has_errors, problem_of
from sparsewire_lab.train.records import (
    aggregate,
    append,
    array_file,
    read,
    read_all,
    statistics_of,
)


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


def test_what_is_not_finite_becomes_null(tmp_path: Path) -> None:
    path = tmp_path / "toy.jsonl"
    curve = {"error": [1.0, math.nan, math.inf, -math.inf], "step": (0, 4, 8, 12)}
    append(path, make_record(curve=curve, final={"error": math.nan}, best=math.inf, at=path))
    (record,) = read(path)
    assert record["curve"] == {"error": [1.0, None, None, None], "step": [0, 4, 8, 12]}
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


def test_every_line_that_is_no_record_is_skipped_and_noted_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "toy.jsonl"
    append(path, make_record("a"))
    with path.open("ab") as file:
        file.write(b'\n[1]\n{"key": "x", "seed": 0}\nnull\n\xff\xfe\n' + b"[" * 10**5 + b"\n")
        file.write(b'{"canvas": 100, "ms": 1.5}\n')  # of another measurement: no note
    append(path, make_record("b"))
    found, notes = read_all(path)
    assert [record["key"] for record in found] == ["a", "b"]
    assert [note.partition(", ")[2] for note in notes] == [
        "line 3: skipped, it must be a JSON object; got list",
        "line 4: skipped, it lacks experiment, status, arguments, curve, final",
        "line 5: skipped, it must be a JSON object; got NoneType",
        "line 6: skipped, it is cut off, or not JSON",
        "line 7: skipped, it is cut off, or not JSON",
    ]
    with pytest.warns(UserWarning, match=": skipped, ") as warned:
        assert read(path) == found
    assert [str(each.message) for each in warned] == notes


def test_files_and_lines_are_read_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "toy.jsonl"
    append(path, make_record("a"))
    append(path, make_record("b", problem="x" * 500))
    monkeypatch.setattr(records, "LONGEST_LINE", 500)
    found, (note,) = read_all(path)
    assert [record["key"] for record in found] == ["a"]
    assert "line 2: skipped, it must have at most 500 bytes; it has " in note
    monkeypatch.setattr(records, "LARGEST_FILE", 600)
    with pytest.raises(ValueError, match=r"toy\.jsonl must be at most 600 bytes"):
        read(path)


ESCAPE = "x/../../../escaped/owned"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"key": ["a"]}, r"key must be a plain word; got \['a'\]"),
        ({"key": ESCAPE}, "key must be a plain word"),
        ({"experiment": {}}, "experiment must be a plain word"),
        ({"seed": "0"}, "seed must be a whole number"),
        ({"seed": True}, "seed must be a whole number"),
        ({"seed": 2**70}, "seed must be a whole number"),
        ({"status": []}, "status must be one of finished, diverged"),
        ({"arguments": [1]}, "arguments must be a table"),
        ({"arguments": {"a b": 1}}, "arguments must be a table"),
        ({"arguments": {"data": ESCAPE}}, "argument data must be a number or a plain word"),
        ({"arguments": {"data": {}}}, "argument data must be"),
        ({"arguments": {"lr": "fast"}}, "argument lr must be a number"),
        ({"curve": None}, "curve must be a table"),
        ({"curve": {"error": []}}, "it lacks step"),
        ({"curve": {"step": 1}}, "curve must hold lists"),
        ({"curve": {"step": [0], "error": [1.0, 2.0]}}, "lists of one length"),
        ({"curve": {"step": ["0"], "error": [1.0]}}, "whole numbers as steps"),
        ({"curve": {"step": [-5], "error": [1.0]}}, "whole numbers as steps"),
        ({"curve": {"step": [0], "error": ["x"]}}, "curve must hold numbers"),
        ({"final": {"error": "<b>"}}, "final must be a table of numbers"),
        ({"final": 1}, "final must be a table of numbers"),
        ({"versions": {"torch": 1}}, "versions must be a table of words"),
        ({"label": "\ud800"}, "label must be text"),
        ({"steps": 1.5}, "steps must be a whole number"),
        ({"seconds": "1"}, "seconds must be a number"),
        ({"wiring": "../wiring.npz"}, "wiring must be the name of a file in the folder"),
        ({"wiring": "/tmp/wiring.npz"}, "wiring must be the name of a file in the folder"),
        ({"wiring": 1}, "wiring must be the name of a file in the folder"),
    ],
)
def test_a_bad_record_is_refused_and_skipped(
    tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    path, bad = tmp_path / "toy.jsonl", make_record() | change
    assert re.search(why, problem_of(bad) or "")
    with pytest.raises(ValueError, match=why):
        append(path, bad)
    append(path, make_record("good"))
    with path.open("a") as file:
        file.write(json.dumps(bad) + "\n")
    found, (note,) = read_all(path)
    assert [record["key"] for record in found] == ["good"]
    assert re.search(rf"toy\.jsonl, line 2: skipped, .*{why}", note)


IDENTITY = {"size": 8, "steps": 10, "method": "sparse", "target": "identity", "values": "fixed"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, ""),
        ({"size": "8"}, "argument size must be a whole number"),
        ({"size": -8}, "argument size must be a whole number"),
        ({"method": 3}, "argument method must be a plain word"),
        ({"target": None}, "argument target must be a plain word"),
        ({"seeds": [0, 1]}, ""),
        ({"batch": [1]}, "argument batch must be a number"),
        ({"out": "../folder of mine"}, ""),
    ],
)
def test_arguments_of_known_experiments_are_checked(change: dict[str, Any], why: str) -> None:
    record = make_record(experiment="identity", arguments=IDENTITY | change)
    assert (problem_of(record) or "").startswith(why)
    assert bool(problem_of(record)) == bool(why)
    record["arguments"].pop("size")
    assert problem_of(record)


def test_a_curve_without_a_finite_error_is_valid_but_cannot_be_drawn() -> None:
    record = make_record(curve={"step": [0, 1], "error": [None, math.nan]}, final=None)
    assert problem_of(record) is None
    assert not has_errors(record)
    assert has_errors(make_record())
    assert aggregate([record]) == {}


def test_arrays_are_read_from_the_folder_of_the_records_only(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    for folder in (home, tmp_path):
        (folder / "wiring.npz").touch()
    (home / "link.npz").symlink_to(tmp_path / "wiring.npz")
    assert array_file(make_record(wiring="wiring.npz"), home) == home / "wiring.npz"
    for name in ("link.npz", "gone.npz", None):
        assert array_file(make_record(wiring=name), home) is None


def test_the_newest_of_one_run_counts_at_the_place_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "toy.jsonl"
    assert read(path) == []
    newest = [make_record("b"), make_record("a", 1), make_record("a")]
    for record in (make_record("b", status="diverged"), newest[1], newest[2], newest[0]):
        append(path, record)
    assert read(path) == newest
    assert len(path.read_text().splitlines()) == 4


def test_means_and_deviations_by_hand() -> None:
    """Of 1, 2 and 6: mean 3, squares 4 + 1 + 9 = 14, over n − 1 = 2 the root of 7."""
    group = [make_record(final={"error": x, "found": 1.0}) for x in (1.0, 2.0, 6.0)]
    found = aggregate(group)
    assert list(found) == ["error", "found"]
    assert found["error"] == (3.0, pytest.approx(math.sqrt(7)), 3)
    assert found["found"] == (1.0, 0.0, 3)
    assert str(found["error"]) == "3 ± 2.6"


@pytest.mark.parametrize(
    "numbers", [[0.25], [], [1.0, None], [1.0, math.nan], [1.0, math.inf], [None, 2.0]]
)
def test_without_two_numbers_there_is_no_deviation(numbers: list[float | None]) -> None:
    """The mean of one seed is its number; with a number missing there is no mean."""
    over = statistics_of(numbers)
    assert math.isnan(over.deviation)
    assert over.seeds == len(numbers)
    if numbers == [0.25]:
        assert (over.mean, str(over)) == (0.25, "0.25")
    else:
        assert math.isnan(over.mean)


def test_a_metric_that_one_seed_lacks_has_no_mean() -> None:
    means = aggregate([make_record(final={"error": 1.0}), make_record(final={"loss": 2.0})])
    assert math.isnan(means["error"].mean)
    assert math.isnan(means["loss"].mean)
