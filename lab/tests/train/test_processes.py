"""Several processes train what one process does."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsewire_lab.cli.main import main
from sparsewire_lab.train.checkpoints import read_checkpoint

WORDS = ["--size", "8", "--steps", "200", "--device", "cpu", "--no-figures", "--no-tensorboard"]
# Sums over a batch are made in another order; 200 steps of Adam leave differences of this size.
TOLERANCE = 1e-5


def end_of(out: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    (last,) = out.rglob("last.pt")
    (line,) = (out / "identity.jsonl").read_text().splitlines()
    return read_checkpoint(last), json.loads(line)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "words",
    [
        ["--values", "normal", "--target", "permutation"],
        ["--method", "rewire", "--rewire-every", "25", "--wirings", "2", "--accumulate", "2"],
    ],
    ids=["sparse", "rewire"],
)
def test_two_processes_end_where_one_does(words: list[str], tmp_path: Path) -> None:
    assert main(["identity", *WORDS, *words, "--quiet", "--out", str(tmp_path / "one")]) == 0
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run = ["-m", "sparsewire_lab", "identity", *WORDS, *words, "--out", str(tmp_path / "two")]
    done = subprocess.run(
        [sys.executable, *torchrun, *run],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("after 200 steps") == 1
    (one, first), (two, second) = (end_of(tmp_path / name) for name in ("one", "two"))
    assert (first["processes"], second["processes"]) == (1, 2)
    assert one["model"].keys() == two["model"].keys()
    apart = max(float((two["model"][k] - one["model"][k]).abs().max()) for k in one["model"])
    print(f"weights differ by {apart:.2g} at most")
    assert apart < TOLERANCE
    assert second["curve"]["step"] == first["curve"]["step"]
    losses = [torch.tensor(record["curve"]["loss"][1:]) for record in (first, second)]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)
    if one["extras"]:
        moves = [int(state["extras"]["rewire"]["moves"]) for state in (one, two)]
        assert moves[0] == moves[1] > 0
