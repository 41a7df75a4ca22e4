"""Every run behind the page on identity matrices; what is recorded already is not run again.

python benchmarks/identity.py --out results          all of it, for a GPU: some minutes
python benchmarks/identity.py --only paper rewire    parts of it
"""

import sys

from parts import run_parts

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
    def more(words: str) -> list[str]:
        return ["--keep-wiring" if words == PARTS["paper"][0] else "--no-keep-wiring"]

    return run_parts("identity", PARTS, (__doc__ or "").partition("\n")[0], more)


if __name__ == "__main__":
    sys.exit(main())
