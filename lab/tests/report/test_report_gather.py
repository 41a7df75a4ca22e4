"""Folders → records: what is found, what is left out and why, what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab.tests.report.report_runs import attention, fill, identity, sorting, write, write_bench

from sparsewire_lab.report.absent import absences
from sparsewire_lab.report.gather import gather
from sparsewire_lab.report.lines import by_task, lines_of
from sparsewire_lab.report.wiring import viewer
from sparsewire_lab.train.record_checks import problem_of


def test_records_of_all_files_are_found_with_their_arrays(tmp_path: Path) -> None:
    fill(tmp_path)
    write(tmp_path / "film" / "identity.jsonl", identity(key="film", size=16))
    (tmp_path / "clutter.jsonl").write_text('{"ms": 1}\n')
    found = gather([tmp_path])
    assert len(found.of("identity")) == 7
    assert (len(found.of("attention")), len(found.of("sorting"))) == (3, 2)
    files = [record["file"] for record in found.records if record["file"]]
    assert sorted(file.name for file in files) == ["attention.npz", "sorting.npz", "wiring.npz"]
    assert found.notes == []


def test_of_a_run_in_two_folders_the_newest_counts(tmp_path: Path) -> None:
    old = write(tmp_path / "old.jsonl", identity(date="2026-01-01", commit="old"))
    new = write(tmp_path / "new.jsonl", identity(date="2026-02-01", commit="new"))
    for places in ([old, new], [new, old]):
        (record,) = gather(places).records
        assert record["commit"] == "new"


def test_places_without_records_are_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("{}\nnot json\n")
    for place, why in ((tmp_path / "nowhere", "is not there"), (empty, "none in it")):
        with pytest.raises(ValueError, match=why):
            gather([place])
    assert gather([empty], strict=False).records == []


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
    bad = identity(key="bad") | change
    found = gather([write(tmp_path / "x.jsonl", identity(), bad)])
    assert len(found.records) == 1
    assert why in found.notes[0]


def test_records_of_every_experiment_are_valid() -> None:
    assert [problem_of(record) for record in (identity(), attention(), sorting())] == [None] * 3


def test_files_of_arrays_run_no_code(tmp_path: Path) -> None:
    """A pickled array is not loaded, and the page says which file it was."""
    np.savez(tmp_path / "evil.npz", step=np.array([print], dtype=object))
    found = gather([write(tmp_path / "identity.jsonl", identity(wiring="evil.npz"))])
    notes: list[str] = []
    assert viewer(found.of("identity"), notes) == []
    assert "evil.npz" in notes[0]


def test_settings_are_compared_by_task(tmp_path: Path) -> None:
    found = gather([fill(tmp_path)])
    tasks = by_task(lines_of("identity", found.of("identity")))
    assert list(tasks) == ["identity matrix, n\u00a0=\u00a08", "identity matrix, n\u00a0=\u00a032"]
    ours, peer = tasks["identity matrix, n\u00a0=\u00a032"]
    assert (ours.name, ours.ours, ours.paper) == ("sparse layer", True, "converges")
    assert (peer.name, peer.ours) == ("REINFORCE", False)
    assert ours.command == "sparsewire identity --seeds 0 1"


def test_a_film_of_one_seed_does_not_stand_for_three(tmp_path: Path) -> None:
    film = identity(key="film", steps=9999, final={"error": 0.0, "found": 1.0})
    found = gather([write(tmp_path / "x.jsonl", film, identity(0), identity(1))])
    (line,) = lines_of("identity", found.of("identity"))
    assert len(line.runs) == 2


def test_what_is_absent_is_named_with_its_command(tmp_path: Path) -> None:
    nothing: dict[str, list[Any]] = {"wiring": [], "glimpses": [], "sorting": []}
    found = gather([write(tmp_path / "x.jsonl", identity())])
    commands = [item.command.split()[1] for item in absences(found, nothing)]
    assert commands == ["identity", "attention", "sorting", "bench"]
    full = gather([fill(tmp_path)], write_bench(tmp_path / "results.csv"))
    there = {"wiring": [1], "glimpses": [1], "sorting": [{"levels": 2}]}
    assert absences(full, there) == []
