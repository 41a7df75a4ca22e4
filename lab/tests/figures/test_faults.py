"""Damaged and hostile records and arrays: figures stay in their folder, one bad file stops none."""

import copy
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lab.tests.figures.samples import (
    fill,
    make_attention,
    make_identity,
    make_sorting,
    save_frames,
    save_keys,
    save_wiring,
    write,
)

from sparsewire_lab.cli.figures import draw_all
from sparsewire_lab.cli.main import main
from sparsewire_lab.figures.album import Album, file_name
from sparsewire_lab.figures.save import blank
from sparsewire_lab.report.load import load
from sparsewire_lab.report.page import build_page
from sparsewire_lab.train import records

FALLING = [0.9, 0.1]


@pytest.mark.parametrize(
    "words", ["../owned", "x/../../../escaped/owned", "/owned", "..", ".hidden", "a\0b", "ü" * 300]
)
def test_figures_stay_in_their_folder(words: str, tmp_path: Path) -> None:
    """Whatever a record holds: in the record itself such words are refused, too."""
    album = Album(tmp_path / "r.jsonl", tmp_path / "figures")
    album.add(f"sorting-errors-{words}", lambda: blank(1.0, 1.0))
    album.add(words, lambda: blank(1.0, 1.0))
    assert album.notes == []
    assert {path.parent for path in album.drawn} == {tmp_path / "figures"}
    assert len(set(album.drawn)) == len(list((tmp_path / "figures").iterdir())) == 2
    bad = [make_sorting(FALLING, key="b", data=words), make_identity(FALLING, target=words)]
    bad += [make_attention(FALLING, model=words), make_identity(FALLING, other={"wiring": words})]
    file = write(tmp_path / "r.jsonl", *bad, make_sorting(FALLING))
    album = draw_all(file, tmp_path / "new")
    assert {path.parent for path in album.drawn} == {tmp_path / "new"}
    everything = {path.relative_to(tmp_path).parts[0] for path in tmp_path.rglob("*")}
    assert everything == {"r.jsonl", "figures", "new"}


def test_names_that_are_made_safe_stay_different() -> None:
    names = ["a/b", "a_b", "a b", "", ".", "..", "x" * 200, "y" * 200]
    assert len({file_name(name) for name in names}) == len(names)
    assert all(Path(file_name(name)).name == file_name(name) for name in names)


def test_a_figure_that_cannot_be_drawn_stops_no_other(tmp_path: Path) -> None:
    def fail() -> Any:
        raise OverflowError("too large")

    album = Album(tmp_path / "r.jsonl", tmp_path)
    album.add("bad", fail)
    album.add("good", lambda: blank(1.0, 1.0))
    assert [path.name for path in album.drawn] == ["good.png"]
    assert album.notes == [f"{tmp_path / 'r.jsonl'}, figure bad.png: too large"]


def damage(path: Path, seed: int) -> None:
    """Change 20 bytes after the first header of the archive."""
    data, rng = bytearray(path.read_bytes()), random.Random(seed)
    for _ in range(20):
        data[rng.randrange(200, len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("make", "save"),
    [(make_identity, save_wiring), (make_attention, save_frames), (make_sorting, save_keys)],
)
def test_damaged_arrays_are_left_out_with_one_note(
    make: Callable[..., dict], save: Callable[[Path], Path], tmp_path: Path
) -> None:
    np.savez_compressed(tmp_path / "a.npz", **dict(np.load(save(tmp_path / "a.npz"))))
    file = write(tmp_path / "r.jsonl", make(FALLING, other={"wiring": "a.npz"}))
    whole = (tmp_path / "a.npz").read_bytes()
    for seed in range(5):
        (tmp_path / "a.npz").write_bytes(whole)
        damage(tmp_path / "a.npz", seed)
        album, page = draw_all(file, tmp_path, animation=False), build_page(load([file]), "")
        assert [path.stem.split("-")[1] for path in album.drawn] == ["errors"]
        for (note,) in (album.notes, page.notes):
            assert note.startswith(f"{tmp_path / 'a.npz'} must be a file of ")


STRANGE = [None, True, "", "x", "../x", "<b>", "\ud800", -1, 0, 2**70, 10**400, 1e308, 0.5]
STRANGE += [math.nan, math.inf, [], [[1]], [None], {}, {"a": {"b": []}}, [1e308] * 3]


def mutated(record: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """A record in which a value, anywhere, is missing or something else."""
    record = copy.deepcopy(record)
    for _ in range(rng.choice([1, 1, 2])):
        part: Any = record
        while True:
            name = rng.choice(list(part) if isinstance(part, dict) else range(len(part)))
            inner = part[name]
            if not isinstance(inner, dict | list) or not inner or rng.random() < 0.3:
                break
            part = inner
        if rng.random() < 0.2:
            del part[name]
        else:
            part[name] = rng.choice(STRANGE)
        if not record or not part:
            break
    return record


@pytest.mark.parametrize("seed", range(12))
def test_mutated_records_end_in_no_traceback(
    seed: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Sixty in all: in figures, tables, report, and where records are read before a resumed run."""
    rng = random.Random(seed)
    monkeypatch.setattr("sparsewire_lab.figures.album.save", lambda figure, path: path)
    make = (make_identity, make_attention, make_sorting)[seed % 3]
    bad = [mutated(make(FALLING, key=f"bad{number}"), rng) for number in range(5)]
    good = [make(FALLING, key="good")] if seed >= 6 else []
    file = write(tmp_path / "r.jsonl", *bad, *good)
    page = tmp_path / "page.md"
    page.write_text("<!-- table: begin -->\n<!-- table: end -->\n")
    status = main(["figures", str(file), "--no-animation", "--page", str(page)])
    status_of_report = main(["report", str(file), "--out", str(tmp_path / "r.html")])
    # A table is of one experiment: a mutated name makes it refuse the page.
    assert status in ((0, 2) if good else (0, 1, 2))
    assert status_of_report in ((0,) if good else (0, 2))
    said = capsys.readouterr().err
    assert "Traceback" not in said
    assert all(str(file) in line for line in said.splitlines() if "left out" in line)
    found, notes = records.read_all(file)
    assert all(note.startswith(f"{file}, line ") for note in notes)
    assert len(found) + len(notes) >= len(good)


def test_a_damaged_file_leaves_all_other_figures_and_viewers(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "attention.npz").write_bytes(b"PK\x03\x04 torn")
    page = build_page(load([tmp_path]), "")
    (note,) = page.notes
    assert note.startswith(f"{tmp_path / 'attention.npz'} must be a file of glimpse frames")
    assert 'data-from="wiring"' in page.html
    assert 'data-viewer="sorting"' in page.html
    assert 'data-viewer="glimpses"' not in page.html
