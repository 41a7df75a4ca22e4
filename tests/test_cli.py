"""The command `sparsewire`: help, the version, and what it says when it cannot do something."""

import subprocess
import sys

import pytest

import sparsewire
from sparsewire import cli
from sparsewire.cli import Command, main


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    bare = capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == bare
    lines = [line.split(maxsplit=1) for line in bare.splitlines()]
    for name, command in cli.COMMANDS.items():
        assert [name, command.summary] in lines


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name in cli.COMMANDS:
        with pytest.raises(SystemExit) as stopped:
            main([name, "--help"])
        assert stopped.value.code == 0
        assert f"usage: sparsewire {name}" in capsys.readouterr().out


def test_the_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"sparsewire {sparsewire.__version__}\n"


@pytest.mark.parametrize("words", [["knit"], ["--knit"], ["--knit", "bench"]])
def test_unknown_words_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert "knit" in capsys.readouterr().err


def test_a_command_without_its_packages_says_which_extra_brings_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    packages = ("numpy", "no_such_package", "nor_this")
    command = Command("no_such_module", "weaves", "weaving", packages)
    monkeypatch.setitem(cli.COMMANDS, "weave", command)
    assert main(["weave"]) == 2
    assert capsys.readouterr().err == (
        "sparsewire weave: error: needs no_such_package, nor_this, which the extra 'weaving' "
        "brings: pip install 'sparsewire[weaving]' (in a clone: pip install -e '.[weaving]')\n"
    )


def test_it_runs_as_a_module_and_loads_nothing_that_it_does_not_need() -> None:
    script = (
        "import sys; sys.argv = ['sparsewire', '--version']\n"
        "import atexit, runpy\n"
        "late = ('matplotlib', 'pykeops', 'tyro', 'sparsewire.bench.command')\n"
        "atexit.register(lambda: print([name for name in late if name in sys.modules]))\n"
        "runpy.run_module('sparsewire', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"sparsewire {sparsewire.__version__}\n[]\n"
