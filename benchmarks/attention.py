"""Every run behind the page on glimpses; what is recorded already is not run again.

python benchmarks/attention.py --out results          all of it, for a GPU
python benchmarks/attention.py --only main speed      parts of it
"""

import sys

from parts import run_parts

SEEDS = "--seeds 0 1 2"
LOOKS = ("--glimpses 1", "--glimpses 8")
PARTS = {
    "main": [*LOOKS, "--model convnet"],
    "baselines": ["--model transformer", "--model reinforce"],
    "paper": ["--preset paper --model convnet", *(f"--preset paper {look}" for look in LOOKS)],
    # Time of a step, side by side.
    "speed": [
        f"--preset paper {model} --steps 1000 --evaluate-every 250 --split validation"
        for model in ("--model convnet", *LOOKS)
    ],
    # What closes the gap between sampled training and rounded evaluation, on validation digits.
    "settling": [
        f"{look} {how} --split validation"
        for look in LOOKS
        for how in ("--settle 0.0", "--straight 0.7", "--settle 0.0 --straight 0.7", "")
    ],
}


def main() -> int:
    def more(words: str) -> list[str]:
        return [
            *SEEDS.split(),
            "--precision",
            "bf16",
            *([] if "--evaluate-every" in words else ["--evaluate-every", "1000"]),
        ]

    return run_parts("attention", PARTS, (__doc__ or "").partition("\n")[0], more)


if __name__ == "__main__":
    sys.exit(main())
