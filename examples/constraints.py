"""Learn four planted sparse matrices, each under the constraint that fits it, and draw them.

A constraint is a source that can only describe matrices of a certain kind. The layer sees random
inputs and what the planted matrix makes of them, and has to find the places of its elements.

    python examples/constraints.py --steps 1500
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import matplotlib
import torch
from torch import Tensor
from torch.nn.functional import conv2d, mse_loss

import sparsewire as sw

matplotlib.use("Agg")
from matplotlib import pyplot as plt


class Task(NamedTuple):
    name: str
    source: sw.FreeTuples
    in_shape: tuple[int, ...]
    out_shape: tuple[int, ...]
    target: Callable[[Tensor], Tensor]
    planted: Tensor


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # the tensors are small: more threads only wait for each other
    pictures = []
    for task in tasks(args.seed):
        layer = sw.HyperLayer(task.source, task.in_shape, task.out_shape, wirings=4)
        before = picture(layer, task)
        start = time.perf_counter()
        train(layer, task, args.steps)
        seconds, error = time.perf_counter() - start, evaluate(layer, task)
        print(f"{task.name:15s} rounded error on new inputs {error:.2g}   {seconds:.1f} s")
        pictures.append((task.name, before, picture(layer, task), task.planted))
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "constraints.png"
    draw(pictures, args.steps, path)
    print(f"picture: {path}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--steps", type=int, default=1_500, help="training steps for each")
    parser.add_argument("--seed", type=int, default=0, help="seed of the start and of the data")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the results")
    return parser.parse_args()


def tasks(seed: int) -> list[Task]:
    """Four constraints, with a matrix of that kind to be found."""
    n = 16
    shifted = torch.ones(n - 1).diag(-1)
    flipped = torch.block_diag(*[torch.eye(4).flip(0)] * 4)
    kernel = torch.zeros(1, 1, 9, 9)
    kernel[0, 0, [1, 7, 4], [2, 7, 8]] = 1
    # Where values are fixed and inputs have nothing in common, the paper's wide samples find most.
    fixed = {"values": 1.0, "learn_values": False, "schedule": None, "seed": seed}
    matrices = [
        ("LowerTriangular", sw.LowerTriangular(n - 1, **fixed), shifted),
        ("Banded", sw.Banded(2, 2, n - 1, **fixed), shifted),
        ("BlockDiagonal", sw.BlockDiagonal(4, 4, **fixed), flipped),
    ]
    image = (1, 12, 12)
    return [
        *(Task(name, source, (n,), (n,), _times(w), w) for name, source, w in matrices),
        Task(
            "Convolution",
            sw.Convolution((9, 9), 3, **fixed),
            image,
            image,
            lambda x: conv2d(x, kernel, padding=4),
            kernel[0, 0],
        ),
    ]


def _times(matrix: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: x @ matrix.T


def train(layer: sw.HyperLayer, task: Task, steps: int) -> None:
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02, fused=True)
    for _ in range(steps):
        x = torch.randn(16, *task.in_shape)
        loss = mse_loss(layer(x), task.target(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def evaluate(layer: sw.HyperLayer, task: Task) -> float:
    x = torch.randn(1_000, *task.in_shape)
    return mse_loss(layer(x, mode="rounded"), task.target(x)).item()


@torch.no_grad()
def picture(layer: sw.HyperLayer, task: Task) -> Tensor:
    """The matrix, or the kernel of a convolution, with every value at its nearest place."""
    if task.name != "Convolution":
        return layer.freeze().dense()
    indices, values = layer.sample(mode="rounded")
    places = indices.flatten(0, -2)[:, 2:].unbind(-1)
    return torch.zeros(task.planted.shape).index_put(places, values.flatten(), accumulate=True)


def draw(pictures: list[tuple[str, Tensor, Tensor, Tensor]], steps: int, path: Path) -> None:
    figure, axes = plt.subplots(3, len(pictures), figsize=(11, 8), layout="constrained")
    for column, (name, *matrices) in zip(axes.T, pictures, strict=True):
        for axis, matrix in zip(column, matrices, strict=True):
            axis.imshow(matrix.numpy(), cmap="RdBu", vmin=-2, vmax=2)
            axis.set(xticks=[], yticks=[])
        column[0].set_title(name)
    for axis, label in zip(axes[:, 0], ("start", f"after {steps:,} steps", "planted"), strict=True):
        axis.set_ylabel(label)
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
