"""Folders → records: what is found, what is left out and why, what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab.tests.figures.samples import fill, for_report, write, write_bench

from sparsewire_lab.report.entries import by_task, entries_of
from sparsewire_lab.report.load import load
from sparsewire_lab.report.missing import missing_parts
from sparsewire_lab.report.wiring import wirings
from sparsewire_lab.train.record_checks import problem_of


def test_records_of_all_files_are_found_with_their_arrays(tmp_path: Path) -> None:
    fill(tmp_path)
    write(tmp_path / "film" / "identity.jsonl", for_report("identity", key="film", size=16))
    (tmp_path / "clutter.jsonl").write_text('{"ms": 1}\n')
    found = load([tmp_path])
    assert len(found.of("identity")) == 7
    assert (len(found.of("attention")), len(found.of("sorting"))) == (3, 2)
    files = [record["file"] for record in found.records if record["file"]]
    assert sorted(file.name for file in files) == ["attention.npz", "sorting.npz", "wiring.npz"]
    assert found.notes == []


def test_of_a_run_in_two_folders_the_newest_counts(tmp_path: Path) -> None:
    """A film of one seed does not stand for more."""
    old = write(tmp_path / "old.jsonl", for_report("identity", date="2026-01-01", commit="old"))
    new = write(tmp_path / "new.jsonl", for_report("identity", date="2026-02-01", commit="new"))
    for places in ([old, new], [new, old]):
        (record,) = load(places).records
        assert record["commit"] == "new"
    film = for_report("identity", key="film", steps=9999, final={"error": 0.0, "found": 1.0})
    runs = [film, for_report("identity", 0), for_report("identity", 1)]
    found = load([write(tmp_path / "x.jsonl", *runs)])
    (entry,) = entries_of("identity", found.of("identity"))
    assert len(entry.runs) == 2


def test_places_without_records_are_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("{}\nnot json\n")
    for place, why in ((tmp_path / "nowhere", "does not exist"), (empty, "none in it")):
        with pytest.raises(ValueError, match=why):
            load([place])
    assert load([empty], strict=False).records == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"experiment": "knitting"}, "is not known"),
        ({"arguments": {"size": 8}}, "argument steps must be a whole number"),
        ({"curve": {"step": [0], "error": [None]}}, "no error"),
        ({"wiring": "../wiring.npz"}, "a file in the folder of the records"),
    ],
)
def test_records_that_cannot_be_shown_are_left_out(
    tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    good = [for_report(name) for name in ("identity", "attention", "sorting")]
    assert [problem_of(record) for record in good] == [None] * 3
    bad = for_report("identity", key="bad") | change
    found = load([write(tmp_path / "x.jsonl", good[0], bad)])
    assert len(found.records) == 1
    assert why in found.notes[0]


def test_files_of_arrays_run_no_code(tmp_path: Path) -> None:
    """A pickled array is not loaded, and the page says which file it was."""
    np.savez(tmp_path / "evil.npz", step=np.array([print], dtype=object))
    found = load([write(tmp_path / "identity.jsonl", for_report("identity", wiring="evil.npz"))])
    notes: list[str] = []
    assert wirings(found.of("identity"), notes) == []
    assert "evil.npz" in notes[0]


def test_settings_are_compared_by_task(tmp_path: Path) -> None:
    found = load([fill(tmp_path)])
    tasks = by_task(entries_of("identity", found.of("identity")))
    assert list(tasks) == ["identity matrix, n\u00a0=\u00a08", "identity matrix, n\u00a0=\u00a032"]
    ours, peer = tasks["identity matrix, n\u00a0=\u00a032"]
    assert (ours.name, ours.ours, ours.paper) == ("sparse layer", True, "converges")
    assert (peer.name, peer.ours) == ("REINFORCE", False)
    assert ours.command == "sparsewire identity --seeds 0 1"


def test_what_is_missing_is_named_with_its_command(tmp_path: Path) -> None:
    nothing: dict[str, list[Any]] = {"wiring": [], "glimpses": [], "sorting": []}
    found = load([write(tmp_path / "x.jsonl", for_report("identity"))])
    commands = [item.command.split()[1] for item in missing_parts(found, nothing)]
    assert commands == ["identity", "attention", "sorting", "bench"]
    full = load([fill(tmp_path)], write_bench(tmp_path / "results.csv"))
    there = {"wiring": [1], "glimpses": [1], "sorting": [{"levels": 2}]}
    assert missing_parts(full, there) == []
