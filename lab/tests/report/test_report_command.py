"""`sparsewire report`: where it looks, what it prints, and what it refuses."""

import webbrowser
from pathlib import Path

import pytest
from lab.tests.figures.samples import fill, for_report, write, write_bench

from sparsewire_lab.cli.main import main


def test_it_writes_a_page_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = write_bench(tmp_path / "results.csv")
    out = tmp_path / "pages" / "r.html"
    words = ["report", str(fill(tmp_path / "runs")), "--out", str(out), "--bench", str(bench)]
    assert main([*words, "--title", "All & more"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"report: {out} (")
    assert said.endswith(" MB)\n")
    assert "<h1>All &amp; more</h1>" in out.read_text()


def test_folders_that_are_here_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").mkdir()  # without records: no error, since nobody named it
    write(
        tmp_path / "out" / "identity.jsonl",
        for_report("identity"),
        for_report("identity", key="x", curve=None),
    )
    assert main(["report"]) == 0
    said = capsys.readouterr()
    assert "missing: the sorting experiment" in said.out
    assert "to make it: sparsewire sorting --data digits" in said.out
    assert "left out: out/identity.jsonl, line 2: skipped, curve must be" in said.err
    assert (tmp_path / "report.html").is_file()


def test_it_opens_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    runs, out = write(tmp_path / "x.jsonl", for_report("identity")), tmp_path / "r.html"
    assert main(["report", str(runs), "--out", str(out), "--open"]) == 0
    assert opened == [out.as_uri()]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "no records in folders results and out"),
        (["nowhere"], "nowhere must be a folder or a file of records"),
        (["empty.jsonl"], "must hold records"),
        (["good.jsonl", "--bench", "nowhere.csv"], "must be a record of sparsewire bench"),
        (["good.jsonl", "--out", "good.jsonl/r.html"], "could not be written"),
    ],
)
def test_it_says_what_is_wrong(
    words: list[str],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.jsonl").write_text("\n")
    write(tmp_path / "good.jsonl", for_report("identity"))
    assert main(["report", *words]) == 2
    assert why in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()
