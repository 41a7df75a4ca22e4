"""Every run behind the page on sorting; what is recorded already is not run again.

python benchmarks/sorting.py --out results          all of it, for a GPU
python benchmarks/sorting.py --only main peer       parts of it
python benchmarks/sorting.py --at-once 3            three seeds share the GPU; never for speed
"""

import sys

from parts import run_parts

SEEDS = "--seeds 0 1 2"
STEPS = {16: 12_000, 4: 20_000, 8: 15_000, 32: 4_000}
# Of the peer to beat, as many as take as long: its network of layers costs time too.
PEER_STEPS = 6_600
SHORT = "--split validation --seeds 0 --no-keep-frames"
# The four-digit protocol: a rate of 10^-3.5 that stays, pictures as they are.
PROTOCOL = (
    "--places 4 --network wide --batch 100 --lr 0.00031622776601683794 --cosine False "
    "--jitter 0.0 --decay 0.0"
)
PROTOCOL_CHOICES = {
    9: (
        "",
        "--bend 0.0",
        "--temperature 0.1",
        "--temperature 0.1 --bend 0.0",
        "--temperature 0.03",
        "--temperature 0.03 --bend 0.0",
        "--temperature 0.01",
        "--temperature 0.01 --bend 0.0",
        "--temperature 0.01 --bend 0.25",
        "--temperature 0.003",
        "--temperature 0.03 --reach 1",
        "--temperature 0.01 --reach 1",
        "--temperature 0.01 --reach 1 --bend 0.25",
        "--temperature 0.01 --reach 1 --bend 1.0",
        "--temperature 0.003 --reach 1",
        "--temperature 0.01 --reach 2",
        "--temperature 0.003 --reach 2",
        "--method odd_even",
        "--method odd_even --temperature 0.03",
        "--method odd_even --temperature 0.01",
        "--method odd_even --temperature 0.003",
    ),
    3: (
        "--temperature 0.01 --reach 1",
        "--temperature 0.003 --reach 1",
        "--method odd_even --temperature 0.01",
        "--method odd_even --temperature 0.003",
    ),
    15: (
        "--temperature 0.01 --reach 1",
        "--temperature 0.003 --reach 1",
        "--method odd_even --temperature 0.01",
        "--method odd_even --temperature 0.003",
    ),
}
# For each number of things in a set, the steps of ours and the peer's, which take as long; and the
# temperature of the peer. Both are measured after as many steps too: the learning rate stays.
PROTOCOL_RUNS = {
    3: (6000, 4500, 0.01),
    5: (7500, 4500, 0.01),
    7: (7500, 4500, 0.01),
    9: (9000, 4500, 0.01),
    15: (10_500, 4500, 0.003),
}
PARTS = {
    "main": [f"--size {n} --steps {steps} {SEEDS}" for n, steps in STEPS.items()],
    # Same network, data and augmentation, and as much time.
    "peer": [f"--method odd_even --steps {PEER_STEPS} {SEEDS}"],
    # All of them, with as many steps.
    "field": [f"--peers --steps 2000 {SEEDS}"],
    # Peers get a search too.
    "temperatures": [
        f"--method {method} --temperature {one} --steps 1000 {SHORT}"
        for methods, temperatures in (
            (("exact", "bitonic"), (0.03, 0.1, 0.3, 1.0)),
            (("neuralsort", "softsort", "sinkhorn"), (0.1, 1.0, 10.0)),
            (("projection",), (0.01, 0.1, 1.0, 10.0)),
        )
        for method in methods
        for one in temperatures
    ],
    # Its learning rate is too small to get anywhere in a few minutes: ours is from "rates".
    "paper": [
        f"--preset paper --lr 0.001 --size {n} --steps {steps} {SEEDS}"
        for n, steps in ((4, 10_000), (8, 8_000), (16, 6_000))
    ],
    "rates": [
        f"--preset paper --lr {rate} --size {n} --steps {steps} {SHORT}"
        for n, steps, rates in (
            (4, 5000, (5e-5, 2e-4, 5e-4, 1e-3)),
            (16, 2500, (2e-4, 5e-4, 1e-3)),
        )
        for rate in rates
    ],
    "protocol": [
        f"{PROTOCOL} --size {n} {how} --evaluate-every 1500 {SEEDS}"
        for n, (steps, peer_steps, temperature) in PROTOCOL_RUNS.items()
        for how in (
            f"--temperature 0.003 --reach 1 --steps {steps}",
            f"--method odd_even --temperature {temperature} --steps {peer_steps}",
        )
    ],
    # What of our preset matters, taken back one by one.
    "choices": [
        f"{how} --steps 4000 {SHORT}"
        for how in (
            "--lr 0.001",
            "--lr 0.0005",
            "--lr 0.002",
            "--lr 0.004",
            "--lr 0.001 --bend 0.25",
            "--lr 0.001 --jitter 0.7",
            "--lr 0.001 --decay 0.1",
            "--lr 0.002 --decay 0.01",
            "--lr 0.002 --bend 0.0",
            "--lr 0.002 --tanh False",
            "--lr 0.002 --bend 0.0 --tanh False",
            "--lr 0.002 --jitter 0.0",
            # The peer to beat.
            "--method odd_even --lr 0.001",
            "--method odd_even --lr 0.002",
            "--method odd_even --lr 0.002 --temperature 0.03",
            "--method odd_even --lr 0.002 --temperature 0.3",
        )
    ]
    + [
        f"{PROTOCOL} --size {n} {how} --steps 3000 {SHORT}"
        for n, hows in PROTOCOL_CHOICES.items()
        for how in hows
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
