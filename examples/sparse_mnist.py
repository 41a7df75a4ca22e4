"""Train an MLP on MNIST whose first layer is sparse: 784 → 1,000 → 10, a few wires for each unit.

Each run is one line of JSON: settings, accuracy, and the loss on training digits with the layer as
it was trained and as it is evaluated. On a GPU a training step is captured.

    python examples/sparse_mnist.py --methods ours --seeds 0 1 2 --part test --out mnist.jsonl
"""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sparse_mlp import RandomMask
from torch import Tensor, nn
from torch.nn import functional as F

import sparsewire as sw
from sparsewire_lab.data import load_mnist
from sparsewire_lab.provenance import clone, commit, describe, now

INS, HIDDEN, BATCH = 784, 1000, 256

METHODS: dict[str, Callable[[int], Any]] = {
    "ours": lambda wires: sw.SparseLinear(INS, HIDDEN, fan_in=wires, in_shape=(28, 28)),
    "ours, in a row": lambda wires: sw.SparseLinear(INS, HIDDEN, fan_in=wires),
    "not moved": lambda wires: sw.SparseLinear(
        INS, HIDDEN, fan_in=wires, in_shape=(28, 28), schedule=sw.Schedule(speed=0.0)
    ),
    "random mask": lambda wires: RandomMask(INS, HIDDEN, wires),
    "dense": lambda _: nn.Linear(INS, HIDDEN),
}


def main() -> None:
    args = parse_arguments()
    device = torch.device(args.device)
    data = digits(args.part, device)
    origin = {"command": shlex.join(["python", *sys.argv]), "commit": commit(clone() or Path())}
    origin |= {"date": now(), **describe(device)}
    for method in args.methods:
        for seed in args.seeds:
            settings = {"method": method, "wires": args.wires, "rate": args.rate, "seed": seed}
            settings |= {"steps": args.steps, "part": args.part}
            measures = run(METHODS[method], args.wires, data, args.rate, seed, args.steps)
            line = json.dumps(settings | measures | origin)
            print(line if args.out is None else f"{method}, seed {seed}: {show(measures)}")
            if args.out is not None:
                with args.out.open("a") as file:
                    file.write(line + "\n")
    if args.out is not None:
        print(f"record: {args.out}")


def run(
    first: Callable[[int], Any], wires: int, data: list[Tensor], rate: float, seed: int, steps: int
) -> dict[str, float]:
    """Train one model; return its measures."""
    x, y, other_x, other_y = data
    torch.manual_seed(seed)
    layers = [first(wires), nn.BatchNorm1d(HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10)]
    model = nn.Sequential(*layers).to(x.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)

    def step() -> Tensor:
        optimizer.zero_grad()
        some = torch.randint(len(x), (BATCH,), device=x.device)
        loss = F.cross_entropy(model(x[some]), y[some])
        loss.backward()
        optimizer.step()
        return loss

    step = sw.capture(step, optimizer=optimizer, device=x.device)
    start = time.perf_counter()
    for _ in range(steps - 1):
        step()
    final = step().item()  # waits for the device
    seconds = time.perf_counter() - start
    losses = {}
    with torch.no_grad():
        for name, training in (("trained", True), ("evaluated", False)):
            # Batch norm as in evaluation both times: only the sparse layer differs.
            layers[0].train(training)
            for layer in layers[1:]:
                layer.eval()
            losses[f"{name}_loss"] = F.cross_entropy(in_parts(model, x), y).item()
        right = (in_parts(model, other_x).argmax(1) == other_y).float().mean().item()
    return {"accuracy": right, "final_loss": final, **losses, "seconds": seconds}


def in_parts(model: nn.Module, x: Tensor) -> Tensor:
    return torch.cat([model(part) for part in x.split(2000)])


def digits(part: str, device: torch.device) -> list[Tensor]:
    """Return digits and classes to train on, and those of the part to judge by."""
    mine = load_mnist("train" if part == "validation" else "all-train")
    other = load_mnist("validation" if part == "validation" else "test")
    pairs = [(some.images.flatten(1).float() / 255, some.labels.long()) for some in (mine, other)]
    return [tensor.to(device) for pair in pairs for tensor in pair]


def show(measures: dict[str, float]) -> str:
    """Return the measures of a run in one line."""
    return (
        f"{measures['accuracy']:.2%}, loss {measures['trained_loss']:.4f} as trained, "
        f"{measures['evaluated_loss']:.4f} evaluated, {measures['seconds']:.1f} s"
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--wires", type=int, default=8, help="wires of each unit")
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate of Adam")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=15_000)
    parser.add_argument("--part", choices=["validation", "test"], default="validation")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="file to add JSON lines to; printed if not given")
    return parser.parse_args()


if __name__ == "__main__":
    main()
