"""Every run behind the page on glimpses; what is recorded already is not run again.

python benchmarks/attention.py --out results          all of it, for a GPU
python benchmarks/attention.py --only main speed      parts of it
python benchmarks/attention.py --at-once 3            three seeds share the GPU; never for speed
"""

import sys

from parts import run_parts

LOOKS = ("--glimpses 1", "--glimpses 8")
SHORT = "--split validation --steps 6000 --seeds 0"
PARTS = {
    "main": [*LOOKS, "--model convnet"],
    "baselines": ["--model transformer", "--model reinforce"],
    "paper": [f"--preset paper {look}" for look in LOOKS],
    # Time of a step, side by side.
    "speed": [
        f"--preset paper {model} --steps 1000 --evaluate-every 250 --split validation"
        for model in ("--model convnet", *LOOKS)
    ],
    # What closes the gap between sampled training and rounded evaluation, on validation digits.
    "settling": [
        f"{look} {how} {SHORT}"
        for look in LOOKS
        for how in ("--settle 0.0 --straight 1.0", "--settle 0.0", "--straight 1.0", "")
    ],
    # What it takes to find the digit: the choices of our preset, taken back one by one.
    "choices": [
        f"{how} {SHORT}"
        for how in (
            "--source convnet",
            "--head mlp",
            "--zoom 0.0",
            "--source-rate 1.0 --frame-rate 1.0",
            "--scale 0.1 --region 20",
            "--width 64",
            "--glimpses 8 --width 32",
        )
    ],
    # Where a plain network suffers: as much time for each, and the ConvNet at two resolutions.
    "large": [
        f"--canvas 400 {how}"
        for how in (
            "--steps 12000 --evaluate-every 2000",
            "--model convnet --steps 20000 --evaluate-every 4000",
            "--model convnet --reduce 1 --steps 4000 --evaluate-every 1000 --seeds 0",
            "--model transformer --steps 12000 --evaluate-every 2000 --seeds 0",
            "--model reinforce --steps 12000 --evaluate-every 2000 --seeds 0",
        )
    ],
}


def main() -> int:
    def more(words: str) -> list[str]:
        given = ["--precision", "bf16"]
        for name, value in (("--seeds", ["0", "1", "2"]), ("--evaluate-every", ["1000"])):
            given += [] if name in words else [name, *value]
        given += ["--no-keep-frames"] if "validation" in words else []  # no figure shows them
        return given

    return run_parts("attention", PARTS, (__doc__ or "").partition("\n")[0], more)


if __name__ == "__main__":
    sys.exit(main())
