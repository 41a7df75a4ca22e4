"""Several processes train what one process does: the same weights, but for rounding."""

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
from torch import Tensor

from sparsewire_lab.attention.experiment import Attention
from sparsewire_lab.cli.main import main
from sparsewire_lab.identity.experiment import Identity
from sparsewire_lab.sorting.experiment import Sorting
from sparsewire_lab.sorting.trial import SortingTrial
from sparsewire_lab.train.checkpoints import read_checkpoint
from sparsewire_lab.train.loop import Training
from sparsewire_lab.train.options import Experiment
from sparsewire_lab.train.runs import make_fabric


class DoubleSorting(Sorting):
    """The experiment in float64: in float32 its network magnifies rounding within a few steps."""

    def build(self, seed: int, device: torch.device) -> SortingTrial:
        trial = super().build(seed, device)
        trial.model.double().register_forward_pre_hook(lambda _, inputs: (inputs[0].double(),))
        return trial


TWO = {"device": "cpu", "accumulate": 2}
NUMBERS: dict[str, Any] = {"data": "digits", "size": 4, "places": 1, "batch": 4, "network": "paper"}
CANVASES: dict[str, Any] = {"data": "digits", "batch": 8, "device": "cpu"}
RUNS: dict[str, Experiment] = {
    "sparse": Identity(size=8, values="normal", target="permutation", device="cpu"),
    # A wiring for each instance, and fewer wirings than instances in a process.
    "reinforce": Identity(method="reinforce", size=8, batch=16, **TWO),
    "groups": Identity(method="reinforce", size=8, batch=16, wirings=2, device="cpu"),
    "pairs": Identity(method="reinforce", size=8, batch=16, wirings=8, device="cpu"),
    # Augmentation, batch normalisation and dropout; sampled half-permutations; noise.
    "likelihood": DoubleSorting(**NUMBERS, dropout=0.5, device="cpu"),
    "sampled": DoubleSorting(**NUMBERS, method="sampled", jitter=0.0, device="cpu"),
    "sinkhorn": DoubleSorting(**NUMBERS, method="sinkhorn", **TWO),
    # Sampled tuples, normalisation and dropout in the head; a normal deviate for each place.
    "glimpse": Attention(**CANVASES),
    "places": Attention(**CANVASES, model="reinforce"),
}
STEPS, TOLERANCE = 3, 1e-5
# A whole run, and what is said of it before.
COMMAND = ["identity", "--size", "8", "--steps", "200", "--device", "cpu", "--accumulate", "2"]
COMMAND += ["--method", "rewire", "--rewire-every", "25", "--wirings", "2", "--no-tensorboard"]
COMMANDS = [COMMAND, [*COMMAND, "--dry-run"]]


def train(name: str) -> dict[str, Tensor]:
    """Return the state of a model after some steps, in as many processes as there are.

    With plain gradients: Adam makes whole steps of those that are zero but for rounding.
    """
    RUNS[name].check()
    experiment = RUNS[name].resolved()
    training = Training(experiment, 1, fabric := make_fabric(experiment), Path())
    before = [p.detach().clone() for p in training.trial.model.parameters()]
    optimizer = torch.optim.SGD(training.trial.model.parameters(), lr=0.005)
    training.optimizer = fabric.setup_optimizers(optimizer)
    for _ in range(STEPS):
        training.advance()
        training.trial.after_step()
    pairs = zip(training.trial.model.parameters(), before, strict=True)
    assert max(float((p.detach() - old).abs().max()) for p, old in pairs) > 20 * TOLERANCE, name
    return training.trial.model.state_dict()


def free_ports(count: int) -> list[str]:
    """Ports that nobody listens at."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("localhost", 0))
        return [str(each.getsockname()[1]) for each in sockets]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with what two processes left, and what they printed; all in one start of them."""
    folder = tmp_path_factory.mktemp("two")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [__file__, str(folder), *free_ports(1 + len(COMMANDS))]
    done = subprocess.run(
        [sys.executable, *torchrun, *words],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.usefixtures("unchecked")
def test_two_processes_train_the_weights_of_one(name: str, two: tuple[Path, str]) -> None:
    of_one, of_two = train(name), torch.load(two[0] / "states.pt")[name]
    assert of_one.keys() == of_two.keys()
    apart = {key: float((of_two[key] - of_one[key]).abs().max()) for key in of_one}
    assert max(apart.values()) < TOLERANCE, apart


def end_of(out: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    (last,) = out.rglob("last.pt")
    (line,) = (out / "identity.jsonl").read_text().splitlines()
    return read_checkpoint(last), json.loads(line)


@pytest.mark.usefixtures("unchecked")
def test_two_processes_end_and_record_as_one_does(two: tuple[Path, str], tmp_path: Path) -> None:
    assert main([*COMMAND, "--no-figures", "--quiet", "--out", str(tmp_path)]) == 0
    (one, first), (other, second) = end_of(tmp_path), end_of(two[0] / "out")
    assert (first["processes"], second["processes"]) == (1, 2)
    assert one["model"].keys() == other["model"].keys()
    apart = max(float((other["model"][k] - one["model"][k]).abs().max()) for k in one["model"])
    assert apart < TOLERANCE  # after 200 steps of Adam
    assert second["curve"]["step"] == first["curve"]["step"]
    losses = [torch.tensor(record["curve"]["loss"][1:]) for record in (first, second)]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)
    moves = [int(state["extras"]["rewire"]["layers"][0]["moves"]) for state in (one, other)]
    assert moves[0] == moves[1] > 0


def test_the_first_process_alone_prints(two: tuple[Path, str]) -> None:
    folder, said = two
    assert said.count("after 200 steps") == 1
    assert said.count("This was a dry run") == 1
    assert "processes    2, which share each batch" in said
    assert sorted(path.name for path in folder.iterdir()) == ["out", "states.pt"]


if __name__ == "__main__":
    torch.set_num_threads(1)
    # Each meets at a port of its own: the store of torchrun still holds the addresses of the last.
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
    folder, (os.environ["MASTER_PORT"], *ports) = Path(sys.argv[1]), sys.argv[2:]
    states = {name: train(name) for name in RUNS}
    if os.environ["RANK"] == "0":
        torch.save(states, folder / "states.pt")
    torch.distributed.destroy_process_group()
    for port, words, out in zip(ports, COMMANDS, ("out", "dry"), strict=True):
        os.environ["MASTER_PORT"] = port
        assert main([*words, "--no-figures", "--out", str(folder / out)]) == 0
