"""The bar: what it shows in a terminal, and that it is silent elsewhere."""

import io
import sys
from pathlib import Path

import pytest
from lab.tests.train.toy import Toy, finished

from sparsewire_lab.train import progress
from sparsewire_lab.train.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def make_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal in place of standard error, and a bar that shows every step.

    Made within tests: pytest puts its own standard error back after the fixtures.
    """
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN", 0.0)
    monkeypatch.setenv("COLUMNS", "200")
    return terminal


def walk(quiet: bool = False) -> list[int]:
    """Make steps 11 to 20 of 40; return those whose loss was asked for."""
    asked: list[int] = []
    with Progress("toy, seed 0", 10, 40, quiet) as bar:
        bar.evaluated({"error": 0.0625, "found": 1.0})
        for step in range(11, 21):
            bar.advance(step, lambda step=step: asked.append(step) or 0.125)
        bar.finish(20)
    return asked


def test_a_terminal_shows_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = make_terminal(monkeypatch)
    asked = walk()
    assert asked
    last = terminal.getvalue().split("\r")[-1]
    for words in ("toy, seed 0: ", "50%", "20/40", "steps/s", "loss 0.125", "error 0.0625"):
        assert words in last
    assert "found 1" in last
    assert "<" in last.split("[")[1]  # time gone < time left


def test_the_loss_is_read_now_and_then_only(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = make_terminal(monkeypatch)
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN", 1000.0)
    assert walk() == []
    assert "20/40" in terminal.getvalue().split("\r")[-1]


def test_nothing_is_written_without_a_terminal_and_when_quiet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert walk() == []
    assert capsys.readouterr() == ("", "")
    terminal = make_terminal(monkeypatch)
    assert walk(quiet=True) == []
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("quiet", [False, True])
def test_a_run_shows_where_it_is(
    quiet: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    terminal = make_terminal(monkeypatch)
    finished(Toy(quiet=quiet), tmp_path)
    shown = ("toy: sum, seed 0: ", "12/12", "loss ", "error ")
    assert [words in terminal.getvalue() for words in shown] == [not quiet] * 4
