"""Completion: scripts for shells, made by tyro from the arguments of all commands."""

import shutil
import subprocess
from pathlib import Path

import pytest

from sparsewire_lab.cli.main import COMMANDS, main


def completed(script: Path, *words: str) -> set[str]:
    """What bash offers for the last word."""
    line = (
        f"source {script}; COMP_WORDS=({' '.join(map(repr, words))}); "
        f"COMP_CWORD={len(words) - 1}; _tyro_sparsewire; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    return {word.strip() for word in done.stdout.splitlines()}


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_options_and_values(tmp_path: Path) -> None:
    bash = tmp_path / "sparsewire"
    assert main(["--tyro-write-completion", "bash", str(bash)]) == 0
    assert completed(bash, "sparsewire", "") >= set(COMMANDS)
    assert completed(bash, "sparsewire", "iden") == {"identity"}
    assert {"--size", "--steps", "--dry-run"} <= completed(bash, "sparsewire", "identity", "--")
    offered = completed(bash, "sparsewire", "identity", "--method", "")
    assert offered >= {"sparse", "reinforce", "rewire"}
    assert {"mnist", "show"} <= completed(bash, "sparsewire", "data", "")


def test_the_script_is_printed_for_other_shells(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--tyro-print-completion", "zsh"]) == 0
    script = capsys.readouterr().out
    assert all(name in script for name in COMMANDS)


@pytest.mark.parametrize(
    "words",
    [
        ["--tyro-print-completion"],
        ["--tyro-print-completion", "tcsh"],
        ["--tyro-write-completion", "bash"],
        ["--tyro-print-completion", "bash", "file"],
    ],
)
def test_a_shell_must_be_given(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    first, _ = capsys.readouterr().err.splitlines()
    assert f"{words[0]} must be followed by bash, zsh or fish" in first
