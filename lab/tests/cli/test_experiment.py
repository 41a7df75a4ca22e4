"""`sparsewire identity` as it is typed: what it refuses, and that nothing is lost when it ends."""

import dataclasses
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jaxtyping
import pytest
import torch
from lab.tests.train.toy import assert_identical, without_times

from sparsewire_lab.cli.main import main
from sparsewire_lab.identity.experiment import Identity
from sparsewire_lab.train.checkpoints import read_checkpoint

INTERVAL = 100
WORDS = ["--size", "8", "--values", "ones", "--steps", "1200", "--device", "cpu"]
WORDS += ["--evaluate-every", "70", "--checkpoint-every", str(INTERVAL)]
WORDS += ["--no-tensorboard", "--no-figures"]

# Ends itself in the middle of a run, as `kill -9` would, after a step that it is told.
KILLED = """
import os, signal, sys
from sparsewire_lab.cli.main import main
from sparsewire_lab.identity.experiment import IdentityTrial
left = int(sys.argv[1])

def after_step(trial):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

IdentityTrial.after_step = after_step
sys.exit(main(sys.argv[2:]))
"""


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def last_of(out: Path) -> Path:
    (folder,) = (out / "identity").glob("sparse-identity-8*/seed-0")
    return folder / "last.pt"


def assert_same_end(out: Path, whole: Path) -> None:
    got, want = (read_checkpoint(last_of(folder)) for folder in (out, whole))
    assert want["step"] == 1200
    assert_identical(without_times(got), without_times(want))
    (record,) = [json.loads(line) for line in (out / "identity.jsonl").read_text().splitlines()]
    assert (record["status"], record["steps"]) == ("finished", 1200)


def run_here(*words: str) -> int:
    """Run the command in this process as in its own: nothing checked, nothing deterministic."""
    jaxtyping.config.update("jaxtyping_disable", True)
    torch.use_deterministic_algorithms(False)
    try:
        return main(["identity", *words])
    finally:
        torch.use_deterministic_algorithms(True)
        jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    assert run_here(*WORDS, "--quiet", "--out", str(out)) == 0
    return out


def stopped(out: Path, number: int) -> tuple[int, str]:
    """Send a signal once a checkpoint is there; return the exit status and what was said."""
    process = start("-m", "sparsewire_lab", "identity", *WORDS, "--out", str(out))
    try:
        deadline = time.monotonic() + 60
        while not list(out.rglob("last.pt")) and time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()
            time.sleep(0.005)
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert INTERVAL <= read_checkpoint(last_of(out))["step"] < 1200
    assert not (out / "identity.jsonl").exists()
    return process.returncode, error


@pytest.mark.parametrize(
    ("number", "status", "name"),
    [(signal.SIGINT, 130, "Ctrl-C"), (signal.SIGTERM, 143, "SIGTERM")],
)
def test_a_signal_saves_and_the_printed_command_ends_as_if_nothing_had_been(
    number: int,
    status: int,
    name: str,
    whole: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "a folder, with 'quotes'"
    ended, error = stopped(out, number)
    assert ended == status
    _, answer, above, command = error.splitlines()
    assert answer == f"{name}: saving and stopping soon; Ctrl-C stops now, without saving"
    assert above.startswith(f"{name}: stopped and saved after step ")
    words = shlex.split(command.removeprefix("to continue: "))
    assert words[:2] == ["sparsewire", "identity"]
    if number == signal.SIGINT:  # as it is printed, in a process of its own
        process = start("-m", "sparsewire_lab", *words[1:])
        said, error = process.communicate(timeout=60)
        assert (process.returncode, error) == (0, "")
    else:
        assert run_here(*words[2:]) == 0
        said = capsys.readouterr().out
    assert "seed 0: goes on after step " in said
    assert_same_end(out, whole)


def test_kill_loses_one_interval_at_most_also_when_the_last_checkpoint_is_cut_off(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, damaged = tmp_path / "killed", tmp_path / "damaged"
    killed_at = 659
    process = start("-c", KILLED, str(killed_at), "identity", *WORDS, "--out", str(out))
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    step = read_checkpoint(last_of(out))["step"]
    assert killed_at - INTERVAL < step <= killed_at
    shutil.copytree(out, damaged)

    assert run_here(*WORDS, "--out", str(out)) == 1
    assert "holds an unfinished run; --resume continues it" in capsys.readouterr().err
    assert run_here(*WORDS, "--resume", "--out", str(out)) == 0
    said = capsys.readouterr()
    assert f"goes on after step {step}\n" in said.out
    assert said.err == ""
    assert_same_end(out, whole)

    last = last_of(damaged)
    last.write_bytes(last.read_bytes()[: last.stat().st_size // 2])
    assert run_here(*WORDS, "--resume", "--out", str(damaged)) == 0
    said = capsys.readouterr()
    assert str(last) in said.err
    assert said.err.endswith("the checkpoint before it is used\n")
    assert f"goes on after step {step - INTERVAL}\n" in said.out
    assert_same_end(damaged, whole)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--resume", "--again"], "resume continues a run and again starts it anew"),
        (["--sizes", "8"], "Unrecognized options: --sizes, 8; did you mean --size?"),
        (["--size=few"], "Error parsing --size: invalid literal for int() with base 10: 'few'"),
        (["--lr", "slow"], "--lr"),
        (["--seeds", "0", "one"], "--seeds"),
        (["--method", "magic"], "'magic' for argument '--method'. Expected one of ('sparse', 're"),
        (["--steps"], "Missing value for argument '--steps'. Expected 1 values."),
        (["--size", "8", "9"], "Unrecognized options: 9"),
        (["--capture", "yes"], "Unrecognized options: yes"),
        # Underscores, equals signs, None and negative numbers are read.
        (["--local_samples=None", "--values", "None", "--no-capture", "--lr", "-0.5"], "got -0.5"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_written(
    words: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["identity", *words]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("sparsewire identity: error: ")
    assert complaint in first
    assert second == "sparsewire identity --help says more"
    assert os.listdir(tmp_path) == []


def test_help_says_every_argument(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["identity", "--help"])
    assert ended.value.code == 0
    words = capsys.readouterr().out.replace(",", " ").split()
    for field in dataclasses.fields(Identity):
        assert f"--{field.name.replace('_', '-')}" in words
