"""Several processes train what one process does: the same weights, but for rounding."""

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
from sparsewire_lab.identity.experiment import Identity
from sparsewire_lab.sorting.experiment import Sorting
from sparsewire_lab.sorting.trial import SortingTrial
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


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Tensor]]:
    """What two processes train, all runs one after the other."""
    out = tmp_path_factory.mktemp("two") / "states.pt"
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    shared |= {"TORCHELASTIC_RUN_ID": "test", "OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "2"}
    workers = [
        subprocess.Popen(
            [sys.executable, __file__, str(out)],
            env={**os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    errors = [worker.communicate(timeout=300)[1] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], "\n".join(errors)
    return torch.load(out)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.usefixtures("unchecked")
def test_two_processes_train_the_weights_of_one(
    name: str, of_two: dict[str, dict[str, Tensor]]
) -> None:
    one, two = train(name), of_two[name]
    assert one.keys() == two.keys()
    apart = {key: float((two[key] - one[key]).abs().max()) for key in one}
    assert max(apart.values()) < TOLERANCE, apart


if __name__ == "__main__":
    torch.set_num_threads(1)
    states = {name: train(name) for name in RUNS}
    if os.environ["RANK"] == "0":
        torch.save(states, sys.argv[1])
