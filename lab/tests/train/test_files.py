"""Files are the old one or the new one, whole, whatever goes wrong while they are written."""

import os
from contextlib import nullcontext
from pathlib import Path

import pytest
from lab.tests.train.toy import full_disk

from sparsewire_lab.files import DiskError, append_line, write_whole


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_written_and_replaced_and_what_comes_before_sees_the_old_one(
    tmp_path: Path,
) -> None:
    path, seen = tmp_path / "new" / "folder" / "file", []
    write_whole(path, b"old")
    write_whole(path, b"new", before=lambda: seen.append(path.read_bytes()))
    assert seen == [b"old"]
    assert path.read_bytes() == b"new"
    assert names(path.parent) == ["file"]


def fail(*_: object) -> None:
    raise OSError(5, "Input/output error")


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("cause", ["before", "fsync", "replace", "Ctrl-C", "full", "nearly full"])
def test_whatever_fails_leaves_the_old_file_and_nothing_else(
    cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, limit = tmp_path / "file", {"full": 0, "nearly full": 5000}.get(cause)
    path.write_bytes(b"old")
    if cause in ("fsync", "replace"):
        monkeypatch.setattr(os, cause, fail)
    before = {"before": fail, "Ctrl-C": interrupt}.get(cause)
    why = "" if limit is not None else "Input/output error"
    error = KeyboardInterrupt if before is interrupt else DiskError
    match = None if before is interrupt else f"file could not be written, 20,000 bytes: {why}"
    with nullcontext() if limit is None else full_disk(limit), pytest.raises(error, match=match):
        write_whole(path, b"x" * 20_000, before=before)
    monkeypatch.undo()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(DiskError, match=r"file.inside could not be written"):
        write_whole(tmp_path / "file" / "inside", b"x")
    with pytest.raises(DiskError, match=r"file.inside could not be added to"):
        append_line(tmp_path / "file" / "inside", "x")
    assert (tmp_path / "file").read_bytes() == b"old"


def test_lines_are_added_also_after_one_that_a_full_disk_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lines"
    append_line(path, "one")
    append_line(path, "zwei ± 2")
    assert path.read_bytes() == "one\nzwei ± 2\n".encode()
    path.write_bytes(b"one\n")
    with full_disk(6), pytest.raises(DiskError, match="lines could not be added to"):
        append_line(path, "two and more")
    append_line(path, "three")
    append_line(path, "four")
    assert path.read_bytes() == b"one\ntw\nthree\nfour\n"
