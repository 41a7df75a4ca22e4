"""What the experiments on digits share: their arguments, and where their digits come from."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from sparsewire_lab.data.digits import load_digits
from sparsewire_lab.data.idx import Digits, Split
from sparsewire_lab.data.mnist import OPTIONS, load_mnist, mnist_to_fetch
from sparsewire_lab.train.options import Experiment

Preset = Literal["ours", "paper"]
Data = Literal["mnist", "digits"]


@dataclass(frozen=True, kw_only=True)
class DigitsExperiment(Experiment):
    """An experiment on MNIST or on small digits, whose open arguments a preset fills in."""

    preset: Preset = "ours"
    """Where the arguments come from that are left open: our choice, or the paper's appendix."""
    data: Data = "mnist"
    """Digits: MNIST, or the small ones of scikit-learn, for which nothing is fetched."""
    mnist: Path | None = None
    """Folder of MNIST; None takes the cache, and fetches the files if they are not there."""
    split: Literal["test", "validation"] = "test"
    """test: train on all training digits and measure on test digits; validation: train without
    10,000 of the training digits and measure on those, to compare settings."""

    bookkeeping: ClassVar[frozenset[str]] = Experiment.bookkeeping | {"mnist", "keep_frames"}

    def check(self) -> None:
        """Raise an error for arguments that cannot be, or would have no effect."""
        super().check()
        if self.split == "test" and self.until is not None:
            raise ValueError("until would choose by the test digits when to stop; use validation")
        if self.mnist is not None and self.data != "mnist":
            raise ValueError(f"mnist is a folder for --data mnist; got {self.data}")

    def filled(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """Return the chosen values, but for the arguments that are given."""
        given = {name: getattr(self, name) for name in chosen}
        return {n: chosen[n] if value is None else value for n, value in given.items()}

    def digits(self, split: Split) -> Digits:
        """Return the digits of a split."""
        if self.data == "digits":
            return load_digits(split)
        return load_mnist(split, self.mnist, advice=OPTIONS)

    def fetches(self) -> str | None:
        """Say that MNIST would be fetched, if it would be."""
        return mnist_to_fetch(self.mnist) if self.data == "mnist" else None
