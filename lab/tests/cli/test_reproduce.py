"""`sparsewire reproduce`: its parts are commands that can be run, each once."""

import shlex
from pathlib import Path

import pytest

from sparsewire_lab import provenance
from sparsewire_lab.cli import main as commands
from sparsewire_lab.cli import reproduce
from sparsewire_lab.cli.main import COMMANDS, load, main
from sparsewire_lab.cli.parse import parse
from sparsewire_lab.report.summary_table import fill_summary
from sparsewire_lab.train import records

EXPERIMENTS = ("identity", "attention", "sorting")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_dry_run_prints_commands_that_can_be_run(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", name, "--dry-run", "--out", "some"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(set(lines)) == len(lines) > 20
    for line in lines:
        program, first, *words = shlex.split(line)
        assert (program, first) == ("sparsewire", name)
        experiment = parse(load(COMMANDS[name].arguments), words, name)
        experiment.check()
        assert experiment.resume
        assert experiment.out == Path("some")


def test_parts_are_listed_and_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "sorting", "--list", "--only", "main", "peer"]) == 0
    assert capsys.readouterr().out.splitlines() == ["main: 4 commands", "peer: 1 command"]
    assert main(["reproduce", "identity", "--only", "paper", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [shlex.split(line)[3] for line in lines] == ["32", "8", "16", "64"]
    assert ["--keep-wiring" in line for line in lines] == [True, False, False, False]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["identity", "--only", "tea"], "--only must be some of paper, free, "),
        (["identity", "--at-once", "0"], "--at-once must be at least 1; got 0"),
        (["readme", "--only", "paper"], "--only needs an experiment; got readme"),
        (["weave"], "'weave'"),
    ],
)
def test_bad_arguments_are_named(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", *words]) == 2
    assert complaint in capsys.readouterr().err


def test_runs_are_made_until_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[list[str]] = []

    def run(words: list[str]) -> int:
        made.append(words)
        return 3 if "16" in words else 0

    monkeypatch.setattr(commands, "main", run)
    arguments = reproduce.Arguments(page="identity", only=("paper",))
    assert reproduce.run(arguments, []) == 3
    assert [words[2] for words in made] == ["32", "8", "16"]


def test_the_readme_gets_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = provenance.clone()
    assert root is not None
    text, page = (root / "README.md").read_text(), tmp_path / "README.md"
    page.write_text(text)
    monkeypatch.setattr(provenance, "clone", lambda: tmp_path)
    assert main(["reproduce", "readme", "--out", str(root / "results")]) == 0
    results = {name: records.read(root / "results" / f"{name}.jsonl") for name in EXPERIMENTS}
    assert page.read_text() == fill_summary(text, results)
