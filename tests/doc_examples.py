"""Do the training loops of the pages do what they promise, with any seed and at usual rates?

    python tests/doc_examples.py --seeds 10 --rates 0.001 0.01 --out results/doc_examples.jsonl

Runs the code of README and documentation as printed, but for its seeds and learning rates. In the
last tenth of every loop that trains a layer of the library, the loss is computed once more as the
layer is evaluated, on the same data. Each loop is one line of JSON: where it is, the loss at the
start, at the end as trained and as evaluated, and whether the two are within five percent.
"""

import argparse
import ast
import contextlib
import io
import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import sparsewire as sw
from sparsewire_lab.provenance import clone, commit, describe, now

ROOT = Path(__file__).resolve().parents[1]
GUIDES = ("index", "sparse-layers", "layers", "tutorial", "rewiring", "constraints", "capture")
PAGES = ("README.md", *(f"docs/{name}.md" for name in GUIDES))
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
CLOSE, LEAST = 0.05, 1e-3  # relative; below the second, share of the first loss, a loss is zero


class Losses:
    """The losses of one loop, as trained and as evaluated."""

    def __init__(self) -> None:
        self.trained: list[float] = []
        self.evaluated: list[float] = []

    def __call__(self, loss: Tensor, again: Callable[[], Tensor], names: dict[str, Any]) -> None:
        """Note a loss; `again` computes it, from the variables `names`."""
        self.trained.append(float(loss.detach()))
        layers = [
            part
            for value in list(names.values())
            if isinstance(value, nn.Module)
            for part in value.modules()
            if isinstance(part, sw.HyperLayer)
        ]
        before = [(layer, layer.training) for layer in layers]
        with torch.no_grad():
            for layer in layers:
                # Only the sparse layer: batch norm and dropout stay as they are.
                layer.training = False
            self.evaluated.append(float(again()) if layers else float("nan"))
        for layer, training in before:
            layer.training = training


class Watched(ast.NodeTransformer):
    """Adds a call of `_watch` where a training loop computes its `loss`."""

    def visit_For(self, node: ast.For) -> ast.For:
        """Add the call, with the expression of the loss."""
        for part in node.body:
            if not isinstance(part, ast.Assign) or ast.unparse(part.targets[0]) != "loss":
                continue
            if "optimizer" in ast.unparse(node):
                text = f"_watch({node.lineno}, loss, lambda: {ast.unparse(part.value)}, locals())"
                # Before the optimiser changes the parameters.
                index = node.body.index(part) + 1
                node.body[index:index] = ast.parse(text).body
                break
        return node


def run(page: str, seed: int, rate: float) -> list[dict[str, Any]]:
    """Run the code of a page; return a row for each loop that trains."""
    names: dict[str, Any] = {"torch": torch, "__name__": "__page__"}
    rows = []
    for number, block in enumerate(BLOCK.findall((ROOT / page).read_text()), start=1):
        text = re.sub(r"\blr=[\d.e-]+", f"lr={rate}", block)
        text = re.sub(r"manual_seed\(\d+\)", f"manual_seed({seed})", text)
        text = re.sub(r"\bseed=\d+", f"seed={seed}", text)
        losses: dict[int, Losses] = {}
        tree = ast.fix_missing_locations(Watched().visit(ast.parse(text)))

        def watch(line: int, *noted: Any, losses: dict[int, Losses] = losses) -> None:
            losses.setdefault(line, Losses())(*noted)

        names["_watch"] = watch
        torch.manual_seed(seed)
        failure = None
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                exec(compile(tree, f"{page}, block {number}", "exec"), names)
            except AssertionError as error:  # of the page, which promises what it prints
                failure = f"{error or 'an assertion of the page'}"
        for line, found in losses.items():
            last = max(1, len(found.trained) // 10)
            first, trained = found.trained[0], sum(found.trained[-last:]) / last
            evaluated = sum(found.evaluated[-last:]) / last
            if evaluated == evaluated:
                close = abs(evaluated - trained) <= CLOSE * trained + LEAST * first
                rows.append({"page": page, "block": number, "line": line, "steps": len(
                    found.trained), "seed": seed, "rate": rate, "first": first, "trained": trained,
                    "evaluated": evaluated, "close": close, "failure": failure})  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--pages", nargs="+", default=PAGES, choices=PAGES)
    parser.add_argument("--seeds", type=int, default=10, help="how many")
    parser.add_argument("--rates", nargs="+", type=float, default=[1e-3, 1e-2])
    parser.add_argument("--out", type=Path, help="file to add JSON lines to")
    args = parser.parse_args()
    torch.set_num_threads(1)
    origin = {"command": shlex.join(["python", *sys.argv]), "commit": commit(clone() or ROOT)}
    origin |= {"date": now(), **describe(torch.device("cpu"))}
    for page in args.pages:
        for rate in args.rates:
            for seed in range(args.seeds):
                for row in run(page, seed, rate):
                    print(" ".join(f"{key}={value}" for key, value in row.items()), flush=True)
                    if args.out is not None:
                        with args.out.open("a") as file:
                            file.write(json.dumps(row | origin) + "\n")


if __name__ == "__main__":
    main()
