"""The record keeps what it is given, in files of any age."""

from pathlib import Path

import pytest
from lab.tests.bench.rows import make_record, make_row

from sparsewire_lab.bench.record import COLUMNS, append, complete, merge, read


def test_rows_come_back_as_they_went_in(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "results.csv"
    rows = make_record()
    append(path, rows[:2])
    append(path, rows[2:])
    back = read(path)
    written, came = ([{k: v or None for k, v in row.items()} for row in r] for r in (rows, back))
    assert came == written
    assert path.read_text().count("date,commit") == 1
    assert isinstance(back[-1]["n"], int)


def test_an_older_file_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_text("engine,date,device,case,n\nauto,2029,a machine,spread,64\n")
    row = make_row(n=128)
    append(path, [row])
    lines = path.read_text().splitlines()
    assert tuple(lines[0].split(",")) == COLUMNS
    old, new = read(path)
    assert (old["date"], old["n"], old["ms_forward"], old["note"]) == ("2029", 64, None, "")
    assert {c: new[c] or None for c in COLUMNS} == {c: v or None for c, v in row.items()}
    assert [p.name for p in tmp_path.iterdir()] == ["results.csv"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a,b\n1,2\n", "must be a record of sparsewire bench; it has no column case, date"),
        ("", "it is missing or empty"),
        ("date,device,case,engine,colour\n", "does not know: colour; name another file with --rec"),
    ],
)
def test_other_files_are_refused_and_left_alone(text: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=complaint):
        read(path)
    if text:
        with pytest.raises(ValueError, match=complaint):
            append(path, [make_row()])
        assert path.read_text() == text


def test_merging_twice_adds_once(tmp_path: Path) -> None:
    here, there = tmp_path / "here.csv", tmp_path / "there.csv"
    append(here, [make_row()])
    append(there, [make_row(), make_row(device="another")])
    assert merge(here, there) == 1
    assert merge(here, there) == 0
    assert [row["device"] for row in read(here)] == ["a machine", "another"]
    assert merge(tmp_path / "new.csv", there) == 2


def test_unknown_columns_are_refused() -> None:
    with pytest.raises(ValueError, match=r"known columns; got \['colour'\]"):
        complete({"colour": "red"})
