"""Learn an identity matrix from random vectors, and draw its wires before and after.

A sparse layer of n wires sees vectors x and is asked to return them. It is told neither which
inputs to connect to which outputs, nor that the answer is a diagonal.

    python examples/identity.py --size 16 --steps 6000
"""

import argparse
import time
from pathlib import Path

import matplotlib
import torch
from torch.nn.functional import mse_loss

import sparsewire as sw

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Ellipse


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # the tensors are tiny: more threads only wait for each other
    layer = sw.SparseLayer(
        in_shape=(args.size,),
        out_shape=(args.size,),
        tuples=args.size,
        local_samples=args.local_samples,
        global_samples=args.global_samples,
        values=1.0,
        learn_values=False,
        seed=args.seed,
    )
    print(layer)
    before = snapshot(layer)
    train(layer, args)
    after = snapshot(layer)

    frozen = layer.eval().freeze()
    error = evaluate(layer, args.size)
    on_diagonal = int((frozen.rows == frozen.cols).sum())
    print(f"\nThe learned matrix, {len(frozen.values)} of {args.size**2} elements nonzero:")
    print(frozen.dense())
    print(f"{on_diagonal} of {args.size} places on the diagonal found; ", end="")
    print(f"error of the rounded layer on 10,000 new vectors: {error:.2g}")

    args.out.mkdir(parents=True, exist_ok=True)
    picture = args.out / "identity.png"
    draw(before, after, frozen.dense(), args, picture)
    weights = args.out / "identity.pt"
    torch.save(frozen.state_dict(), weights)
    print(f"picture: {picture}\nweights: {weights}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--size", type=int, default=16, help="size of the vectors")
    parser.add_argument("--steps", type=int, default=6_000, help="training steps")
    parser.add_argument("--batch", type=int, default=64, help="vectors in a step")
    parser.add_argument("--local-samples", type=int, default=2, help="places tried near a wire")
    parser.add_argument("--global-samples", type=int, default=2, help="places tried anywhere")
    parser.add_argument("--lr", type=float, default=0.005, help="learning rate of Adam")
    parser.add_argument("--seed", type=int, default=0, help="seed of the start and of the data")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the results")
    args = parser.parse_args()
    for name in ("size", "steps", "batch"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be at least 1; got {getattr(args, name)}")
    return args


def train(layer: sw.SparseLayer, args: argparse.Namespace) -> None:
    optimizer = torch.optim.Adam(layer.parameters(), lr=args.lr, fused=True)
    start, shown = time.perf_counter(), max(args.steps // 10, 1)
    for step in range(1, args.steps + 1):
        x = torch.randn(args.batch, args.size)
        loss = mse_loss(layer(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % shown == 0 or step == args.steps:
            seconds = time.perf_counter() - start
            error = evaluate(layer, args.size)
            print(
                f"step {step:6d}   loss {loss.item():.4f}   rounded {error:.4f}   {seconds:.1f} s"
            )


@torch.no_grad()
def evaluate(layer: sw.SparseLayer, size: int) -> float:
    """Mean squared error of the rounded layer, on vectors drawn apart from the training's."""
    x = torch.randn(10_000, size, generator=torch.Generator().manual_seed(1))
    return mse_loss(layer(x, mode="rounded"), x).item()


@torch.no_grad()
def snapshot(layer: sw.SparseLayer) -> tuple[sw.Wiring, sw.Draw]:
    generator = torch.Generator().manual_seed(0)
    return layer.wiring(), layer.draw(mode="sampled", generator=generator)


def draw(
    before: tuple[sw.Wiring, sw.Draw],
    after: tuple[sw.Wiring, sw.Draw],
    matrix: torch.Tensor,
    args: argparse.Namespace,
    path: Path,
) -> None:
    figure, axes = plt.subplots(1, 3, figsize=(13, 4.6), layout="constrained")
    draw_tuples(axes[0], *before, args.size, "before training")
    draw_tuples(axes[1], *after, args.size, f"after {args.steps:,} steps")
    image = axes[2].imshow(matrix.numpy(), cmap="RdBu", vmin=-1, vmax=1)
    axes[2].set(title="the rounded matrix", xlabel="input", ylabel="output")
    figure.colorbar(image, ax=axes[2], shrink=0.8)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def draw_tuples(axis: Axes, wiring: sw.Wiring, drawn: sw.Draw, size: int, title: str) -> None:
    """Means as points with a circle of one standard deviation, integer tuples as diamonds."""
    spots = drawn.indices.flatten(0, -2).unique(dim=0)
    axis.scatter(
        spots[:, 1], spots[:, 0], marker="D", s=22, color="0.8", label="integer tuples of one pass"
    )
    for (row, col), (high, wide) in zip(
        wiring.means.tolist(), wiring.variances.sqrt().tolist(), strict=True
    ):
        circle = Ellipse((col, row), 2 * wide, 2 * high, color="tab:blue", alpha=0.12, lw=0)
        axis.add_patch(circle)
    axis.scatter(
        wiring.means[:, 1],
        wiring.means[:, 0],
        s=28,
        color="tab:blue",
        zorder=3,
        label="means ± one standard deviation",
    )
    axis.set(title=title, xlabel="input", ylabel="output", aspect="equal")
    axis.set(xlim=(-0.5, size - 0.5), ylim=(size - 0.5, -0.5))


if __name__ == "__main__":
    main()
