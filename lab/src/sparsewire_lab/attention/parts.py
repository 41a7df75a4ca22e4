"""Every run behind the page on glimpses, by part; for a GPU."""

from collections.abc import Sequence

_LOOKS = ("--glimpses 1", "--glimpses 8")
_SHORT = "--split validation --steps 6000 --seeds 0"
PARTS = {
    "main": [*_LOOKS, "--model convnet"],
    "baselines": ["--model transformer", "--model reinforce"],
    "paper": [f"--preset paper {look}" for look in _LOOKS],
    # The time of a step; run alone.
    "speed": [
        f"--preset paper {model} --steps 1000 --evaluate-every 250 --split validation"
        for model in ("--model convnet", *_LOOKS)
    ],
    # The gap between sampled training and rounded evaluation, on validation digits.
    "settling": [
        f"{look} {how} {_SHORT}"
        for look in _LOOKS
        for how in ("--settle 0.0 --straight 1.0", "--settle 0.0", "--straight 1.0", "")
    ],
    # The choices of our preset, undone one by one.
    "choices": [
        f"{how} {_SHORT}"
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
    # As much time for each method, and the ConvNet at two resolutions.
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


def more(words: str) -> Sequence[str]:
    """Return further arguments of a command."""
    given = ["--precision", "bf16"]
    for name, value in (("--seeds", ["0", "1", "2"]), ("--evaluate-every", ["1000"])):
        given += [] if name in words else [name, *value]
    given += ["--no-keep-frames"] if "validation" in words else []  # no figure shows them
    return given
