"""Several processes train what one process does."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsewire_lab.cli.main import main
from sparsewire_lab.train.checkpoints import read_checkpoint

WORDS = ["identity", "--size", "8", "--steps", "200", "--device", "cpu"]
WORDS += ["--no-figures", "--no-tensorboard"]
RUNS = {
    "sparse": ["--values", "normal", "--target", "permutation"],
    "rewire": ["--method", "rewire", "--rewire-every", "25", "--wirings", "2", "--accumulate", "2"],
}
# Sums over a batch are made in another order; 200 steps of Adam leave differences of this size.
TOLERANCE = 1e-5
# All commands in one start of the processes: importing torch takes longer than what they do. Each
# meets at a port of its own: the store of torchrun still holds the addresses of the last command.
SCRIPT = """
import json, os, sys
from sparsewire_lab.cli.main import main
os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
for port, words in json.loads(sys.argv[1]):
    os.environ["MASTER_PORT"] = str(port)
    status = main(words)
    if status:
        sys.exit(status)
"""


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("localhost", 0))
        return [each.getsockname()[1] for each in sockets]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with what two processes left, and what they printed."""
    folder = tmp_path_factory.mktemp("two")
    commands = [[*WORDS, *words, "--out", str(folder / name)] for name, words in RUNS.items()]
    commands.append([*WORDS, "--dry-run", "--out", str(folder / "dry")])
    ports = free_ports(len(commands))
    (folder / "script.py").write_text(SCRIPT)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [
            sys.executable,
            *torchrun,
            str(folder / "script.py"),
            json.dumps(list(zip(ports, commands, strict=True))),
        ],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def end_of(out: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    (last,) = out.rglob("last.pt")
    (line,) = (out / "identity.jsonl").read_text().splitlines()
    return read_checkpoint(last), json.loads(line)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", RUNS)
def test_two_processes_end_where_one_does(name: str, two: tuple[Path, str], tmp_path: Path) -> None:
    assert main([*WORDS, *RUNS[name], "--quiet", "--out", str(tmp_path)]) == 0
    (one, first), (other, second) = end_of(tmp_path), end_of(two[0] / name)
    assert (first["processes"], second["processes"]) == (1, 2)
    assert one["model"].keys() == other["model"].keys()
    apart = max(float((other["model"][k] - one["model"][k]).abs().max()) for k in one["model"])
    print(f"weights differ by {apart:.2g} at most")
    assert apart < TOLERANCE
    assert second["curve"]["step"] == first["curve"]["step"]
    losses = [torch.tensor(record["curve"]["loss"][1:]) for record in (first, second)]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)
    if one["extras"]:
        moves = [int(state["extras"]["rewire"]["moves"]) for state in (one, other)]
        assert moves[0] == moves[1] > 0


def test_the_first_process_alone_prints(two: tuple[Path, str]) -> None:
    folder, said = two
    assert said.count("after 200 steps") == len(RUNS)
    assert said.count("This was a dry run") == 1
    assert "processes    2, which share each batch" in said
    assert not (folder / "dry").exists()
