"""Every run behind the page on sorting, by part; for a GPU."""

from collections.abc import Sequence

_SEEDS = "--seeds 0 1 2"
_STEPS = {16: 12_000, 4: 20_000, 8: 15_000, 32: 4_000}
# Of the peer to beat, as many as take the same time.
_PEER_STEPS = 6_600
_SHORT = "--split validation --seeds 0 --no-keep-frames"
# The four-digit protocol: a constant rate of 10^-3.5, pictures as they are.
_PROTOCOL = (
    "--places 4 --network wide --batch 100 --lr 0.00031622776601683794 --cosine False "
    "--jitter 0.0 --decay 0.0"
)
_FEW_CHOICES = (
    *(f"--temperature {one} --reach 1" for one in (0.01, 0.003)),
    *(f"--method odd_even --temperature {one}" for one in (0.01, 0.003)),
)
_PROTOCOL_CHOICES = {
    9: (
        *(
            f"{one} {bend}"
            for one in ("", *(f"--temperature {one}" for one in (0.1, 0.03, 0.01)))
            for bend in ("", "--bend 0.0")
        ),
        "--temperature 0.01 --bend 0.25",
        "--temperature 0.003",
        "--temperature 0.03 --reach 1",
        *(f"--temperature 0.01 --reach 1 --bend {bend}" for bend in (0.25, 1.0)),
        *(f"--temperature {one} --reach 2" for one in (0.01, 0.003)),
        "--method odd_even",
        "--method odd_even --temperature 0.03",
        *_FEW_CHOICES,
    ),
    3: _FEW_CHOICES,
    15: _FEW_CHOICES,
}
# For each size of a set, the steps of ours and of the peer, which take the same time, and the
# temperature of the peer. Both are measured after the same number of steps too: the learning rate
# is constant.
_PROTOCOL_RUNS = {
    3: (6000, 4500, 0.01),
    5: (7500, 4500, 0.01),
    7: (7500, 4500, 0.01),
    9: (9000, 4500, 0.01),
    15: (10_500, 4500, 0.003),
}
PARTS = {
    "main": [f"--size {n} --steps {steps} {_SEEDS}" for n, steps in _STEPS.items()],
    # The same network, data and augmentation, and as much time.
    "peer": [f"--method odd_even --steps {_PEER_STEPS} {_SEEDS}"],
    # All peers, with the same number of steps.
    "field": [f"--peers --steps 2000 {_SEEDS}"],
    # A search for the temperatures of the peers.
    "temperatures": [
        f"--method {method} --temperature {one} --steps 1000 {_SHORT}"
        for methods, temperatures in (
            (("exact", "bitonic"), (0.03, 0.1, 0.3, 1.0)),
            (("neuralsort", "softsort", "sinkhorn"), (0.1, 1.0, 10.0)),
            (("projection",), (0.01, 0.1, 1.0, 10.0)),
        )
        for method in methods
        for one in temperatures
    ],
    # The paper's learning rate is too small for a few minutes: this one is from "rates".
    "paper": [
        f"--preset paper --lr 0.001 --size {n} --steps {steps} {_SEEDS}"
        for n, steps in ((4, 10_000), (8, 8_000), (16, 6_000))
    ],
    "rates": [
        f"--preset paper --lr {rate} --size {n} --steps {steps} {_SHORT}"
        for n, steps, rates in (
            (4, 5000, (5e-5, 2e-4, 5e-4, 1e-3)),
            (16, 2500, (2e-4, 5e-4, 1e-3)),
        )
        for rate in rates
    ],
    "protocol": [
        f"{_PROTOCOL} --size {n} {how} --evaluate-every 1500 {_SEEDS}"
        for n, (steps, peer_steps, temperature) in _PROTOCOL_RUNS.items()
        for how in (
            f"--temperature 0.003 --reach 1 --steps {steps}",
            f"--method odd_even --temperature {temperature} --steps {peer_steps}",
        )
    ],
    # The choices of our preset, undone one by one.
    "choices": [
        f"{how} --steps 4000 {_SHORT}"
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
        f"{_PROTOCOL} --size {n} {how} --steps 3000 {_SHORT}"
        for n, hows in _PROTOCOL_CHOICES.items()
        for how in hows
    ],
    # The time of a step; run alone.
    "speed": [
        f"--method {method} --steps 600 --evaluate-every 300 {_SHORT}"
        for method in ("likelihood", "odd_even", "exact", "sampled")
    ],
}


def more(words: str) -> Sequence[str]:
    """Return further arguments of a command."""
    every = [] if "--evaluate-every" in words else ["--evaluate-every", "1000"]
    return ["--precision", "bf16", *every]
