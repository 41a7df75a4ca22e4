"""Time of making the canvases of a training step, on a GPU as part of a captured step."""

import argparse
import json
import sys
from pathlib import Path

import torch

from sparsewire_lab import provenance
from sparsewire_lab.bench.measure import captured, meter_for
from sparsewire_lab.data import CANVASES, draw_batch, load_mnist
from sparsewire_lab.files import append_line

BATCH = 128


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for the records")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    device = torch.device(args.device)
    digits, meter = load_mnist("all-train").to(device), meter_for(device, 0.5)
    path = args.out / "clutter.jsonl"
    for side, canvas in CANVASES.items():

        def draw(canvas=canvas) -> None:  # type: ignore[no-untyped-def]
            draw_batch(digits, BATCH, canvas)

        call = captured(draw) if device.type == "cuda" else draw
        ms = meter.time(call).ms
        row = {"command": "python benchmarks/clutter.py", "canvas": side, "batch": BATCH}
        row |= {"ms": round(ms, 5), "date": provenance.now()}
        row |= provenance.describe(device) | {"commit": provenance.commit(Path(__file__).parent)}
        append_line(path, json.dumps(row))
        print(f"{side} × {side} pixels, {BATCH} canvases: {ms:.3g} ms")
    print(f"record: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
