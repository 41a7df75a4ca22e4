"""The command `sparsewire`: overview, version, and how it ends when it cannot do something."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

import sparsewire
from sparsewire_lab.cli import main as cli
from sparsewire_lab.cli.main import Command, main
from sparsewire_lab.errors import DEBUG_VARIABLE

FAULT = "the same command with --debug shows where it happened\n"


@dataclass
class Loom:
    """Weave."""

    fast: bool = False
    """Faster."""


Weave = Callable[[Callable[[Loom, list[str]], int]], None]


@pytest.fixture
def weave(monkeypatch: pytest.MonkeyPatch) -> Weave:
    """Add a command `weave` that runs a function."""

    def add(does: Callable[[Loom, list[str]], int]) -> None:
        module = ModuleType("woven")
        module.__dict__.update(run=does, Loom=Loom)
        monkeypatch.setitem(sys.modules, "woven", module)
        monkeypatch.setitem(cli.COMMANDS, "weave", Command("weaves", "woven:Loom", "woven:run"))

    return add


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_the_overview_has_every_command_and_examples(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 0
    said = capsys.readouterr()
    assert said.err == ""
    lines = [" ".join(line.split()) for line in said.out.splitlines()]
    for name, command in cli.COMMANDS.items():
        assert f"{name} {command.summary}" in lines
    for example, what in cli.EXAMPLES.items():
        assert example.split()[1] in cli.COMMANDS
        assert f"{example} # {what}" in lines
    assert max(map(len, said.out.splitlines())) <= 100
    assert "docs" in lines[-1]


def test_the_overview_names_the_documentation_of_a_clone_or_of_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Path(cli.where_docs_are().split(" (")[0]).is_file()
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "src" / "sparsewire" / "cli.py"))
    assert cli.where_docs_are().startswith("the folder docs of the source")


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([name, "--help"], ["help", name], *([["data"]] if name == "data" else [])):
        with pytest.raises(SystemExit) as stopped:
            main(words)
        assert stopped.value.code == 0
        assert f"usage: sparsewire {name}" in capsys.readouterr().out


def test_the_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"sparsewire {sparsewire.__version__}\n"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["knit"], "unknown command knit"),
        (["--knit"], "unknown option --knit"),
        (["--knit", "bench"], "unknown option --knit"),
        (["identiy", "--size", "8"], "unknown command identiy; did you mean identity?"),
        (["figure"], "unknown command figure; did you mean figures?"),
        (["help", "atention"], "unknown command atention; did you mean attention?"),
        # The shell passes them on, and nothing could print or record them.
        (["identity", os.fsdecode(b"out\xff")], r"arguments must be UTF-8; got 'out\udcff'"),
    ],
)
def test_unknown_words_are_refused(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    program = "sparsewire identity" if words[0] == "identity" else "sparsewire"
    told = f"{program}: error: {complaint}\n{program} --help says more\n"
    assert capsys.readouterr() == ("", told)


def test_of_several_processes_the_first_says_what_is_wrong_with_arguments(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    assert main(["identity", "--size", "few"]) == main(["knit"]) == 2
    assert capsys.readouterr().err == ""


class TornError(RuntimeError):
    """An error of a stranger's library."""


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("threads must be at least 1; got 0"), "threads must be at least 1; got 0"),
        (FileNotFoundError(2, "No such file", "loom"), "[Errno 2] No such file: 'loom'"),
        (RuntimeError("MNIST is nowhere\n  not here"), "MNIST is nowhere\n  not here"),
        (KeyError("warp"), "KeyError: 'warp'"),
        (TornError("a thread broke\nmore about it"), "TornError: a thread broke"),
        (ZeroDivisionError(), "ZeroDivisionError"),
    ],
)
def test_what_fails_is_told_in_a_line_and_with_debug_where(
    error: Exception,
    told: str,
    weave: Weave,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(arguments: Loom, words: list[str]) -> int:
        assert arguments.fast
        assert words == ["--fast"]
        raise error

    weave(fail)
    monkeypatch.delenv(DEBUG_VARIABLE, raising=False)
    want = f"sparsewire weave: error: {told}\n"
    assert main(["weave", "--fast"]) == 1
    assert capsys.readouterr().err == want + FAULT
    for words in (["--debug", "weave", "--fast"], ["weave", "--debug", "--fast"]):
        assert main(words) == 1
        shown = capsys.readouterr().err
        assert shown.startswith("Traceback (most recent call last):")
        assert "in fail" in shown
        assert shown.endswith(want)
    assert DEBUG_VARIABLE not in os.environ
    monkeypatch.setenv(DEBUG_VARIABLE, "1")
    assert main(["weave", "--fast"]) == 1
    assert "in fail" in capsys.readouterr().err
    monkeypatch.setenv(DEBUG_VARIABLE, "0")
    assert main(["weave", "--fast"]) == 1
    assert capsys.readouterr().err == want + FAULT


def test_debug_reaches_the_processes_that_a_command_starts(weave: Weave) -> None:
    seen = []
    weave(lambda *_: seen.append(os.environ.get(DEBUG_VARIABLE)) or 0)
    assert main(["weave"]) == main(["weave", "--debug"]) == main(["weave"]) == 0
    assert seen == [None, "1", None]


def test_an_interrupt_ends_with_130(weave: Weave, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    weave(interrupt)
    assert main(["weave"]) == 130
    assert capsys.readouterr().err == "\ninterrupted\n"
    assert main(["weave", "--debug"]) == 130
    assert "in interrupt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        *(([name, "--colour", "red"], "") for name in cli.COMMANDS),
        (["data", "fetch"], "Unrecognized options: fetch; available subcommands: mnist, show"),
        (["data", "show", "--canvas", "50"], "invalid choice '50' for argument '--canvas'."),
        (["report", "--opne"], "Unrecognized options: --opne; did you mean --open?"),
        (["figures"], "records"),
        (["bench", "weaving"], "invalid choice 'weaving'"),
    ],
)
def test_wrong_arguments_are_answered_in_two_lines(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"sparsewire {words[0]}: error: ")
    assert told in first
    assert second == f"sparsewire {words[0]} --help says more"


# Processes


@pytest.mark.parametrize("words", [[], ["--version"], ["figures", "--help"]])
def test_a_reader_that_is_gone_ends_it_quietly(words: list[str]) -> None:
    """As `sparsewire … | head -0`."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "sparsewire_lab", *words]
    with subprocess.Popen(command, stdout=write, stderr=subprocess.PIPE, text=True) as process:
        os.close(write)
        assert process.communicate(timeout=60) == (None, "")
    assert process.returncode == 141


def test_it_needs_the_standard_library_only_until_a_command_is_called() -> None:
    """As a module; its overview, its version and its refusals import nothing that is slow."""
    script = (
        "import sys, runpy\n"
        "from sparsewire_lab.cli.main import main\n"
        "print(main(['--help']), main(['--version']), main(['identiy']))\n"
        "slow = {'numpy', 'torch', 'tyro', 'matplotlib', 'sparsewire'}\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules} & slow))\n"
        "sys.argv = ['sparsewire', '--version']\n"
        "runpy.run_module('sparsewire_lab', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stderr == (
        "sparsewire: error: unknown command identiy; did you mean identity?\n"
        "sparsewire --help says more\n"
    )
    version = f"sparsewire {sparsewire.__version__}"
    assert done.stdout.splitlines()[-4:] == [version, "0 0 2", "", version]
