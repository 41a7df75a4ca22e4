"""Every run behind the page on identity matrices; what is recorded already is not run again.

python benchmarks/identity.py --out results          all of it, for a GPU: some minutes
python benchmarks/identity.py --only paper rewire    parts of it
"""

import argparse
import sys
from pathlib import Path

from sparsewire.cli import main as sparsewire

SEEDS = "--seeds 0 1 2"
PARTS = {
    # The paper's figure; 32 is the size whose wires it shows.
    "paper": [f"--size {n} {SEEDS}" for n in (32, 8, 16, 64)],
    "free": [f"--size {n} --values {v} {SEEDS}" for n in (8, 16) for v in ("ones", "normal")],
    "reinforce-8": [f"--size 8 --method reinforce --sweep {SEEDS}"],
    "reinforce-16": [f"--size 16 --method reinforce --sweep {SEEDS}"],
    # Sizes at which it is lost: the two rates that are best at 16.
    "reinforce-larger": [
        f"--size {n} --method reinforce --lr {rate} --device cpu {SEEDS}"
        for n in (32, 64)
        for rate in (0.005, 0.01)
    ],
    "rewire": [
        *(f"--size {n} --method rewire {SEEDS}" for n in (64, 256, 1024, 4096, 16384)),
        *(f"--size {n} --method rewire --target permutation {SEEDS}" for n in (256, 1024)),
        f"--size 64 --method rewire --target band {SEEDS}",
    ],
    "largest": [
        f"--size 65536 --method rewire --steps 2000 --until 0.001 --evaluate-every 50 {SEEDS}",
    ],
    # What the plain method makes of the harder targets, and of sizes beyond the paper's.
    "plain": [
        f"--size 16 --target permutation {SEEDS}",
        f"--size 256 {SEEDS}",
    ],
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for the records")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="the parts")
    args = parser.parse_args()
    for part in args.only:
        for words in PARTS[part]:
            kept = "--keep-wiring" if words == PARTS["paper"][0] else "--no-keep-wiring"
            quiet = ["--no-tensorboard", "--no-figures", "--resume", kept, "--out", str(args.out)]
            if status := sparsewire(["identity", *words.split(), *quiet]):
                return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
