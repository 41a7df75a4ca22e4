"""Every run behind the page on sorting; what is recorded already is not run again.

python benchmarks/sorting.py --out results          all of it, for a GPU
python benchmarks/sorting.py --only main peers      parts of it
python benchmarks/sorting.py --at-once 3            three seeds share the GPU; never for speed
"""

import sys

from parts import run_parts

SEEDS = "--seeds 0 1 2"
# About as much time for each.
STEPS = {4: 30_000, 8: 25_000, 16: 20_000, 32: 12_000}
PEERS = ("odd_even", "bitonic", "neuralsort", "softsort", "sinkhorn", "exact")
SHORT = "--split validation --seeds 0 --no-keep-frames"
# The rate of the four-digit protocol, 10^-3.5.
PROTOCOL = "--places 4 --network wide --batch 100 --lr 0.00031622776601683794"
PARTS = {
    "main": [f"--size {n} --steps {steps} {SEEDS}" for n, steps in STEPS.items()],
    # Same network, data, augmentation and steps; another way to sort.
    "peers": [f"--method {method} --steps {STEPS[16]} {SEEDS}" for method in PEERS],
    # Its learning rate is too small to get anywhere in a quarter of an hour: ours is from "rates".
    "paper": [f"--preset paper --lr 0.0005 --size {n} --steps 20000 {SEEDS}" for n in (4, 8, 16)],
    "rates": [
        f"--preset paper --lr {rate} --size 4 --steps 5000 {SHORT}"
        for rate in (5e-5, 2e-4, 5e-4, 1e-3)
    ],
    "protocol": [
        f"{PROTOCOL} --size {n} --method {method} --steps 20000 {SEEDS}"
        for n in (3, 5, 7, 9, 15)
        for method in ("likelihood", "odd_even")
    ],
    # What keeps a network that has seen all training digits many times from knowing them by heart.
    "choices": [
        f"{how} --steps 6000 {SHORT}"
        for how in (
            "--jitter 0.0",
            "--jitter 1.0",
            "--jitter 2.0",
            "--jitter 1.0 --dropout 0.3",
            "--jitter 1.0 --decay 0.01",
            "--jitter 1.0 --lr 0.002",
            "--jitter 1.0 --temperature 0.5",
            # The peer to beat gets a search too.
            "--jitter 1.0 --method odd_even",
            "--jitter 1.0 --method odd_even --temperature 0.03",
            "--jitter 1.0 --method odd_even --temperature 0.3",
        )
    ],
    # The time of a step, one at a time.
    "speed": [
        f"--method {method} --steps 600 --evaluate-every 300 {SHORT}"
        for method in ("likelihood", "odd_even", "exact", "sampled")
    ],
}


def main() -> int:
    def more(words: str) -> list[str]:
        every = [] if "--evaluate-every" in words else ["--evaluate-every", "1000"]
        return ["--precision", "bf16", *every]

    return run_parts("sorting", PARTS, (__doc__ or "").partition("\n")[0], more)


if __name__ == "__main__":
    sys.exit(main())
