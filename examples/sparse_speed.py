"""Time a sparse layer on the CPU, beside the dense one: least milliseconds of many passes.

python examples/sparse_speed.py --out speed.jsonl
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
from torch import Tensor, nn

import sparsewire as sw
from sparsewire_lab.provenance import clone, commit, describe, now

INS, OUTS, BATCH, FAN_IN = 784, 128, 64, 39  # 4,992 wires, 5 % of the matrix


def layers() -> dict[str, nn.Module]:
    wires = FAN_IN * OUTS
    linear = sw.SparseLinear(INS, OUTS, fan_in=FAN_IN)
    template = sw.fan_in((OUTS,), (INS,), FAN_IN)
    return {
        "nn.Linear": nn.Linear(INS, OUTS),
        "SparseLinear": linear,
        "SparseLinear, 28 × 28": sw.SparseLinear(INS, OUTS, fan_in=FAN_IN, in_shape=(28, 28)),
        "fan-in template": sw.SparseLayer((INS,), (OUTS,), template=template),
        "free, contexts of 64": sw.SparseLayer((INS,), (OUTS,), wires, context=64),
        "free": sw.SparseLayer((INS,), (OUTS,), wires),
        "frozen": linear.freeze(),
        "frozen, trainable": linear.freeze(trainable=True),
    }


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(1)
    x = torch.randn(BATCH, INS, requires_grad=True)
    origin = {"command": shlex.join(["python", *sys.argv]), "commit": commit(clone() or Path())}
    origin |= {"date": now(), **describe(torch.device("cpu"))}
    for name, layer in layers().items():
        row: dict[str, Any] = {"layer": name}
        row["ms_forward"] = least(lambda layer=layer: forward(layer, x), args.seconds)
        row["ms_forward_backward"] = least(lambda layer=layer: backward(layer, x), args.seconds)
        times = (
            f"{row['ms_forward']:8.3f} ms forward, {row['ms_forward_backward']:8.3f} with backward"
        )
        print(f"{name:22} {times}", flush=True)
        if args.out is not None:
            with args.out.open("a") as file:
                file.write(json.dumps(row | origin) + "\n")
    if args.out is not None:
        print(f"record: {args.out}")


@torch.no_grad()
def forward(layer: nn.Module, x: Tensor) -> None:
    layer.eval()(x)


def backward(layer: nn.Module, x: Tensor) -> None:
    layer.train()(x).square().sum().backward()


def least(call: Callable[[], None], seconds: float) -> float:
    """Return the least milliseconds of a call, after two to warm up."""
    call()
    call()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end or best == float("inf"):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each is repeated")
    parser.add_argument("--out", type=Path, help="file to add JSON lines to")
    return parser.parse_args()


if __name__ == "__main__":
    main()
