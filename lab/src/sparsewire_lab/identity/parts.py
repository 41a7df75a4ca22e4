"""Every run behind the page on identity matrices, by part."""

from collections.abc import Sequence

_SEEDS = "--seeds 0 1 2"
PARTS = {
    # The paper's figure; 32 is the size whose wires it shows.
    "paper": [f"--size {n} {_SEEDS}" for n in (32, 8, 16, 64)],
    "free": [f"--size {n} --values {v} {_SEEDS}" for n in (8, 16) for v in ("ones", "normal")],
    "reinforce-8": [f"--size 8 --method reinforce --sweep {_SEEDS}"],
    "reinforce-16": [f"--size 16 --method reinforce --sweep {_SEEDS}"],
    # Sizes that it does not learn: the two rates that are best at 16.
    "reinforce-larger": [
        f"--size {n} --method reinforce --lr {rate} --device cpu {_SEEDS}"
        for n in (32, 64)
        for rate in (0.005, 0.01)
    ],
    "rewire": [
        *(f"--size {n} --method rewire {_SEEDS}" for n in (64, 256, 1024, 4096, 16384)),
        *(f"--size {n} --method rewire --target permutation {_SEEDS}" for n in (256, 1024)),
        f"--size 64 --method rewire --target band {_SEEDS}",
    ],
    "largest": [
        f"--size 65536 --method rewire --steps 2000 --until 0.001 --evaluate-every 50 {_SEEDS}",
    ],
    # The plain method on the harder targets, and on sizes beyond the paper's.
    "plain": [
        f"--size 16 --target permutation {_SEEDS}",
        f"--size 256 {_SEEDS}",
    ],
}


def more(words: str) -> Sequence[str]:
    """Return further arguments of a command."""
    return ["--keep-wiring" if words == PARTS["paper"][0] else "--no-keep-wiring"]
