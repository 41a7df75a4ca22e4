"""Train an MLP with a sparse first layer on small digits, beside other ways to make it sparse.

Each run is one line of JSON: settings, accuracy on digits that were not trained on, and the loss on
the digits of the training, with the layer as it was trained and as it is evaluated.

    python examples/sparse_mlp.py --steps 3000 --seeds 0 1 2
"""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import sparsewire as sw
from sparsewire_lab.provenance import clone, commit, describe, now

HIDDEN, DENSITY, BATCH = 128, 0.05, 128
TRAINED, VALIDATION = 1080, 360  # digits; the other 357 are for tests

Layer = Callable[[int], Any]  # a module, made for a run of so many steps


class RandomMask(nn.Linear):
    """A linear layer whose outputs read random inputs, as many as `SparseLinear` has wires."""

    mask: Tensor

    def __init__(self, ins: int, outs: int, wires: int) -> None:
        super().__init__(ins, outs)
        mask = torch.zeros(outs, ins)
        mask.scatter_(1, torch.rand(outs, ins).argsort(1)[:, :wires], 1.0)
        self.register_buffer("mask", mask)
        limit = wires**-0.5
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -limit, limit)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight * self.mask, self.bias)


def sparse(**options: Any) -> Layer:
    return lambda steps: sw.SparseLinear(64, HIDDEN, density=DENSITY, **options)


METHODS: dict[str, Layer] = {
    "dense": lambda _: nn.Linear(64, HIDDEN),
    "random mask": lambda _: RandomMask(64, HIDDEN, round(DENSITY * 64)),
    "ours": sparse(),
    "ours, 8 × 8": sparse(in_shape=(8, 8)),
    "not moved": sparse(schedule=sw.Schedule(speed=0.0)),
    # Ways to settle, for comparison.
    "known end": lambda steps: sparse(schedule=sw.Schedule(end=steps))(steps),
    "sampled, own steps": sparse(train_mode="sampled"),
    "sampled, known end": lambda steps: sparse(
        train_mode="sampled", schedule=sw.Schedule(end=steps)
    )(steps),
    "sampled, mixed": sparse(train_mode="sampled"),
    "sampled, price": sparse(train_mode="sampled", schedule=sw.Schedule(steps=10**9)),
    "rounded from the start": sparse(schedule=sw.Schedule(steps=10**9)),
    "paper": sparse(schedule=None),
}
WAYS = list(METHODS)[5:]


def main() -> None:
    args = parse_arguments()
    if args.table is not None:
        rows = [json.loads(line) for line in args.table.read_text().splitlines()]
        print("\n\n".join("\n".join(lines) for lines in (rates_table(rows), ways_table(rows))))
        return
    torch.set_num_threads(1)  # the tensors are small: more threads only wait for each other
    home = clone() or Path()
    origin = {"command": shlex.join(["python", *sys.argv]), "commit": commit(home), "date": now()}
    origin |= describe(torch.device("cpu"))
    for method in args.methods or list(METHODS)[:5]:
        for rate in args.rates:
            for seed in args.seeds:
                row = run(method, rate, seed, args.steps, args.part) | origin
                line = json.dumps(row)
                print(line if args.out is None else show(row), flush=True)
                if args.out is not None:
                    with args.out.open("a") as file:
                        file.write(line + "\n")
    if args.out is not None:
        print(f"record: {args.out}")


def run(method: str, rate: float, seed: int, steps: int, part: str) -> dict[str, Any]:
    """Train one model; return its settings and measures."""
    (x, y), (other_x, other_y) = digits(part)
    torch.manual_seed(seed)
    first = METHODS[method](steps)
    if isinstance(first, sw.SparseLayer):
        first.warns = False  # how far evaluation is from training is recorded
    model = nn.Sequential(first, nn.ReLU(), nn.Linear(HIDDEN, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    start = time.perf_counter()
    for step in range(steps):
        some = torch.randint(len(x), (BATCH,))
        if method == "sampled, mixed":
            first.train_mode = ("sampled", "rounded")[step % 2]
        loss = F.cross_entropy(model(x[some]), y[some])
        if method == "sampled, price":
            loss = loss + 0.03 * first.wiring().variances.log().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    seconds = time.perf_counter() - start
    if method == "sampled, mixed":
        first.train_mode = "sampled"
    with torch.no_grad():
        trained = F.cross_entropy(model(x), y).item()
        model.eval()
        evaluated = F.cross_entropy(model(x), y).item()
        right = (model(other_x).argmax(1) == other_y).float().mean().item()
    settings = {"method": method, "rate": rate, "seed": seed, "steps": steps, "part": part}
    measures = {"trained_loss": trained, "evaluated_loss": evaluated, "seconds": seconds}
    return settings | {"accuracy": right} | measures


def digits(part: str) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return digits and classes to train on, and those of the part to judge by."""
    data: Any = load_digits()
    x, y = torch.tensor(data.data).float() / 16, torch.tensor(data.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    some, validation, test = order.tensor_split([TRAINED, TRAINED + VALIDATION])
    if part == "test":
        some, validation = torch.cat([some, validation]), test
    return (x[some], y[some]), (x[validation], y[validation])


def show(row: dict[str, Any]) -> str:
    """Return a run in one line."""
    return (
        f"{row['method']:24} lr {row['rate']:<7g} seed {row['seed']} {row['steps']:6} steps: "
        f"{row['accuracy']:.2%}, loss {row['trained_loss']:.4f} as trained, "
        f"{row['evaluated_loss']:.4f} evaluated, {row['seconds']:.1f} s"
    )


def rates_table(rows: list[dict[str, Any]]) -> list[str]:
    """Return test accuracies by method and rate, in Markdown."""
    rows = [row for row in rows if row["part"] == "test"]
    rates = sorted({row["rate"] for row in rows})
    lines = [f"| first layer | seeds | {' | '.join(f'lr {rate:g}' for rate in rates)} |"]
    lines.append("|---|---|" + "---|" * len(rates))
    for method in dict.fromkeys(row["method"] for row in rows):
        by_rate = [[r for r in rows if (r["method"], r["rate"]) == (method, x)] for x in rates]
        cells = [spread_of(some) for some in by_rate]
        lines.append(f"| {method} | {len(by_rate[0])} | {' | '.join(cells)} |")
    return lines


def ways_table(rows: list[dict[str, Any]]) -> list[str]:
    """Return validation accuracies and gaps by method and length, in Markdown."""
    rows = [row for row in rows if row["part"] == "validation"]
    lengths = sorted({row["steps"] for row in rows})
    lines = [f"| | {' | '.join(f'{n:,} steps: best, worst, gap' for n in lengths)} |"]
    lines.append("|---|" + "---|" * len(lengths))
    for method in dict.fromkeys(row["method"] for row in rows):
        cells = []
        for length in lengths:
            some = [r for r in rows if (r["method"], r["steps"]) == (method, length)]
            rates = {row["rate"] for row in some}
            by_rate = [mean_of([r for r in some if r["rate"] == rate]) for rate in rates]
            gap = max(abs(r["evaluated_loss"] - r["trained_loss"]) for r in some)
            cells.append(f"{max(by_rate)} %, {min(by_rate)} %, {gap:.3f}")
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return lines


def spread_of(rows: list[dict[str, Any]]) -> str:
    apart = f" ± {100 * pstdev(accuracies(rows)):.2f}" if len(rows) > 1 else ""
    return f"{mean_of(rows)}{apart} %"


def accuracies(rows: list[dict[str, Any]]) -> list[float]:
    return [row["accuracy"] for row in rows]


def mean_of(rows: list[dict[str, Any]]) -> str:
    return f"{100 * fmean(accuracies(rows)):.2f}"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--methods", nargs="+", choices=METHODS, help="default: the first five")
    parser.add_argument("--rates", nargs="+", type=float, default=[1e-3, 1e-2])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--part", choices=["validation", "test"], default="validation")
    parser.add_argument("--out", type=Path, help="file to add JSON lines to; printed if not given")
    parser.add_argument("--table", type=Path, help="only print tables of this record, in Markdown")
    return parser.parse_args()


if __name__ == "__main__":
    main()
