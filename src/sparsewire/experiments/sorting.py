"""Learning to sort numbers written in digits, from their order alone: section 3.3 of the paper."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy
from torch.optim.lr_scheduler import LambdaLR

from sparsewire.data import Digits, load_digits, load_mnist
from sparsewire.data.augment import jitter
from sparsewire.data.idx import Split
from sparsewire.data.numbers import LONGEST, draw_numbers, pictures, shelve
from sparsewire.experiments.fetching import mnist_to_fetch
from sparsewire.experiments.pictures import draw_order, draw_points
from sparsewire.experiments.rates import rise_and_fall
from sparsewire.layers.sort import QuickSort
from sparsewire.models.keys import KeyNetwork, WideKeyNetwork
from sparsewire.models.sorters import (
    network_sort,
    neural_sort,
    projected_ranks,
    sinkhorn_sort,
    soft_sort_matrix,
)
from sparsewire.ops._checks import check_count, check_range
from sparsewire.ops.likelihood import order_loss
from sparsewire.training.command import run_command
from sparsewire.training.options import Experiment
from sparsewire.training.trial import Share, Trial, generator

Method = Literal[
    "likelihood",
    "exact",
    "sampled",
    "neuralsort",
    "softsort",
    "sinkhorn",
    "projection",
    "odd_even",
    "bitonic",
]
Loss = Literal["order", "ranks", "permutation", "pixels", "steps"]
Preset = Literal["ours", "paper"]

PRESETS: dict[str, dict[str, Any]] = {
    # Section 3.3 and the appendix: sampled half-permutations, as many as there are numbers.
    "paper": {
        "method": "sampled",
        "loss": "steps",
        "lr": 5e-5,
        "bend": 0.0,
        "tanh": False,
        "jitter": 0.0,
        "dropout": 0.0,
        "decay": 0.0,
        "cosine": False,
    },
    "ours": {
        "method": "likelihood",
        "lr": 1e-3,
        "bend": 0.5,
        "tanh": True,
        "jitter": 1.0,
        "dropout": 0.0,
        "decay": 0.0,
        "cosine": True,
    },
}
# What learns more of small digits in few steps, for those who want to see it on a CPU.
_ON_DIGITS = {"lr": 2e-3, "jitter": 0.3}
# What each method is trained by if that is not said, and its temperature.
_LOSSES: dict[str, Loss] = {"likelihood": "order", "projection": "ranks", "sampled": "steps"}
_WARM = ("likelihood", "neuralsort", "softsort", "sinkhorn", "projection")  # at 1
_PAPERS_TEMPERATURE = 0.1  # its C is 10; that of the others
_STEPS = 12_000
_SET_SEED = 2019  # of the sets that errors are measured on, whatever the seed of a run
_AT_ONCE = {"cpu": 2_000, "cuda": 50_000}  # digits that are read at once in evaluation
_WATCHED = 300  # numbers whose keys are kept for figures
_DRAWN = 64  # numbers in a picture for TensorBoard
_MOST_SHOWN = 32  # numbers of a set whose sort is kept: of more, nobody would see them


@dataclass(frozen=True, kw_only=True)
class Sorting(Experiment):
    """Learn a key for numbers written in digits, such that sorting by it puts them in order.

    The paper's third experiment. A network reads each number and returns a key; a differentiable
    sort by the keys is compared with the right order. Errors are measured on 10,000 sets that stay
    the same, of digits that were not trained on: the share of sets that are not in order.
    """

    size: int = 16
    """Numbers in a set; the paper has 4, 8 and 16."""
    places: int = 3
    """Digits of a number, 1 to 6."""
    method: Method | None = None
    """How keys are sorted in training. likelihood: that quicksort finds the right order; exact and
    sampled: quicksort by expected half-permutations, or by sampled ones as in the paper; the
    others are peers: NeuralSort, SoftSort, Gumbel-Sinkhorn, ranks by projection as in torchsort,
    differentiable sorting networks."""
    loss: Loss | None = None
    """What is compared. order: the likelihood; ranks: with the right ones, squared; permutation:
    cross-entropy of where each number goes; pixels: of the sorted pictures; steps: of the pictures
    at each step of quicksort, the paper's intermediate loss."""
    preset: Preset = "ours"
    """Where the arguments come from that are left open: our choice, or the paper's."""
    network: Literal["paper", "wide"] | None = None
    """The key network: the paper's, or that of the four-digit protocol, which is much smaller; None
    takes the paper's, and the small one for the small digits."""
    data: Literal["mnist", "digits"] = "mnist"
    """Digits: MNIST, or the small ones of scikit-learn, for which nothing is fetched."""
    mnist: Path | None = None
    """Folder of MNIST; None takes the cache, and fetches the files if they are not there."""
    split: Literal["test", "validation"] = "test"
    """test: train on all training digits and measure on test digits; validation: train without
    10,000 of the training digits and measure on those, to compare settings."""
    temperature: float | None = None
    """Distance of keys at which their order becomes doubtful; None takes the method's own."""
    samples: int | None = None
    """Vectors drawn for a sampled half-permutation, a; None takes as many as there are numbers."""
    bend: float | None = None
    """Loss of a cut from where on more of it counts less, with method likelihood; 0: never."""
    reach: int | None = None
    """Numbers on each side of a cut that take part in it, with method likelihood; None: all."""
    tanh: bool | None = None
    """Let the features of a digit pass through tanh, with network paper (True or False)."""
    jitter: float | None = None
    """How much pictures are turned, scaled and shifted in training; 0 leaves them as they are."""
    dropout: float | None = None
    """Share of the key network's last hidden layer that is dropped in training."""
    decay: float | None = None
    """Weight decay, as in AdamW."""
    cosine: bool | None = None
    """Let the learning rate fall to zero along a cosine, after a short rise (True or False)."""
    sets: int | None = None
    """Sets that errors are measured on; None takes 10,000, and 300 of the small digits."""
    keep_frames: bool = True
    """Keep the keys of some numbers, and how one set is sorted by them, for figures."""

    name: ClassVar[str] = "sorting"
    bookkeeping: ClassVar[frozenset[str]] = Experiment.bookkeeping | {"mnist", "keep_frames"}
    later: ClassVar[frozenset[str]] = frozenset({"reach"})

    def check(self) -> None:
        """Refuse what cannot be, or would have no effect."""
        super().check()
        check_count("size", self.size, least=2)
        if self.sets is not None:
            check_count("sets", self.sets, least=1)
        if check_count("places", self.places, least=1) > LONGEST:
            raise ValueError(f"places must be 1 to {LONGEST}; got {self.places}")
        for name in ("samples", "reach"):
            if (number := getattr(self, name)) is not None:
                check_count(name, number, least=1)
        for name, most in (
            ("temperature", 1e6),
            ("jitter", 10.0),
            ("dropout", 1.0),
            ("decay", 1.0),
            ("bend", 1e6),
        ):
            if (number := getattr(self, name)) is not None:
                check_range(name, number, 1e-9 if name == "temperature" else 0.0, most)
        if self.split == "test" and self.until is not None:
            raise ValueError("until would choose by the test digits when to stop; use validation")
        for name in ("dropout", "tanh"):
            if getattr(self, name) and self.network == "wide":
                raise ValueError(
                    f"{name} has a meaning with network paper only; got {self.network}"
                )
        if self.mnist is not None and self.data != "mnist":
            raise ValueError(f"mnist is a folder for --data mnist; got {self.data}")

    def resolved(self) -> "Sorting":
        """Fill in the numbers of the preset."""
        chosen = PRESETS[self.preset]
        if (self.preset, self.data) == ("ours", "digits"):
            chosen = chosen | _ON_DIGITS
        filled = {n: chosen.get(n) if (v := getattr(self, n)) is None else v for n in chosen}
        method = str(filled["method"])
        theirs = chosen.get("loss") if method in ("exact", "sampled") else None
        loss = self.loss or theirs or _LOSSES.get(method, "permutation")
        for one, whose in (("order", "likelihood"), ("ranks", "projection")):
            if (loss == one) != (method == whose):
                raise ValueError(f"loss {one} belongs to method {whose}; got {loss} with {method}")
        if loss == "steps" and method not in ("exact", "sampled"):
            raise ValueError(f"loss steps needs method exact or sampled; got {method}")
        if self.samples is not None and method != "sampled":
            raise ValueError(f"samples has a meaning with method sampled only; got {method}")
        if method == "bitonic" and self.size & (self.size - 1):
            raise ValueError(f"size must be a power of two for method bitonic; got {self.size}")
        for name in ("bend", "reach"):
            if getattr(self, name) and method != "likelihood":
                raise ValueError(f"{name} has a meaning with method likelihood only; got {method}")
        small = self.data == "digits" and not self.dropout and not self.tanh
        network = self.network or ("wide" if small else "paper")
        # What has no meaning is not told apart.
        filled["bend"] = filled["bend"] if method == "likelihood" else 0.0
        filled["tanh"] = filled["tanh"] and network == "paper"
        return dataclasses.replace(
            self,
            **self.shared_defaults(_STEPS if self.data == "mnist" else 500),
            **(filled | {"loss": loss}),
            temperature=self.temperature or (1.0 if method in _WARM else _PAPERS_TEMPERATURE),
            samples=(self.samples or self.size) if method == "sampled" else None,
            network=network,
            sets=self.sets or (10_000 if self.data == "mnist" else 300),
        )

    def label(self) -> str:
        """Name method, loss and sizes."""
        parts = [self.method or "", "" if self.loss == "order" else self.loss or ""]
        return " ".join([*filter(None, parts), f"{self.size}x{self.places}", self.preset])

    def digits(self, split: Split) -> Digits:
        """Return the digits of a split."""
        return load_digits(split) if self.data == "digits" else load_mnist(split, self.mnist)

    def fetches(self) -> str | None:
        """Say that MNIST would be fetched, if it would be."""
        return mnist_to_fetch(self.mnist) if self.data == "mnist" else None

    def build(self, seed: int, device: torch.device) -> "SortingTrial":
        """Make network, digits and optimiser."""
        del seed
        return SortingTrial(self, device)


class SortingTrial(Trial):
    """A key network, digits to train on, and sets to judge it by."""

    def __init__(self, args: Sorting, device: torch.device) -> None:
        self.args, self.device = args, device
        self.shelf = shelve(
            args.digits("all-train" if args.split == "test" else "train").to(device)
        )
        self.judged = shelve(args.digits(args.split).to(device))
        drawn = generator(_SET_SEED, device)
        self.sets = draw_numbers(self.judged, args.sets or 1, args.size, args.places, drawn)
        if args.network == "wide":
            model: Any = WideKeyNetwork(args.places)
        else:
            model = KeyNetwork(args.places, dropout=args.dropout or 0.0, tanh=bool(args.tanh))
        model = model.to(device)
        if device.type == "cuda":
            model = model.to(memory_format=torch.channels_last)
        kind = torch.optim.AdamW if args.decay else torch.optim.Adam
        optimizer = kind(
            model.parameters(), lr=args.lr or 1e-3, fused=True, weight_decay=args.decay or 0.0
        )
        steps = args.steps or 1
        schedule = LambdaLR(optimizer, rise_and_fall(steps)) if args.cosine else None
        method: Any = args.method if args.method in ("exact", "sampled") else "exact"
        heat = args.temperature or _PAPERS_TEMPERATURE
        self.sort = QuickSort(method, samples=args.samples, temperature=heat)
        super().__init__(model, optimizer, schedule)

    def loss(self, model: Callable[..., Any], batch: int, share: Share) -> Tensor:
        """Return the loss on new sets."""
        drawn = draw_numbers(self.shelf, batch, self.args.size, self.args.places)
        which, values = share(drawn.which), share(drawn.values)
        x = pictures(self.shelf, which)
        if self.args.jitter:
            flat = jitter(x.flatten(0, 2).unsqueeze(1), self.args.jitter)
            x = flat.view(x.shape)
        keys = model(x).float()
        if self.args.loss == "order":
            loss = order_loss(
                keys,
                values,
                temperature=self.args.temperature or 1.0,
                bend=self.args.bend or math.inf,
                reach=self.args.reach,
            )
            return loss / keys.shape[1]
        if self.args.loss == "steps":
            return self._steps_loss(keys, x, values)
        if self.args.loss == "ranks":
            return rank_loss(projected_ranks(keys, self.args.temperature or 1.0), values)
        matrix = self.matrix(keys)
        if self.args.loss == "permutation":
            return permutation_loss(matrix, values)
        pixels = x.flatten(2)
        target = pixels.gather(1, _order(values).unsqueeze(-1).expand_as(pixels))
        return _pixel_loss(matrix @ pixels, target)

    def matrix(self, keys: Tensor) -> Tensor:
        """Return the soft permutation that sorts keys, by the method of the run."""
        method, heat = self.args.method, self.args.temperature or 1.0
        if method in ("exact", "sampled"):
            matrix = torch.eye(keys.shape[-1], device=keys.device).expand(len(keys), -1, -1)
            for half in self.sort.halves(keys):
                matrix = half @ matrix
            return matrix
        if method == "neuralsort":
            return neural_sort(keys, heat)
        if method == "softsort":
            return soft_sort_matrix(keys, heat)
        if method == "sinkhorn":
            return sinkhorn_sort(keys, heat, noise=1.0)
        return network_sort(keys, 1 / heat, "bitonic" if method == "bitonic" else "odd_even")

    def _steps_loss(self, keys: Tensor, x: Tensor, values: Tensor) -> Tensor:
        """Compare pictures with those of the right order, after every half-permutation."""
        pixels = x.flatten(2)
        target = pixels.gather(1, _order(values).unsqueeze(-1).expand_as(pixels))
        steps = self.sort.steps(keys, pixels, target)
        pairs = list(zip(steps.values, steps.targets, strict=True))[1:]
        return sum((_pixel_loss(x, t) for x, t in pairs), start=keys.new_zeros(()))

    def evaluate(self) -> dict[str, float]:
        """Return the share of sets whose order is wrong, with ties in any order, and strictly."""
        keys = self.keys()
        values = self.sets.values
        order = keys.argsort(dim=-1, stable=True)
        wrong = (values.gather(1, order) != values.sort(dim=-1).values).any(-1)
        misplaced = order != _order(values)
        return {
            "error": wrong.float().mean().item(),
            "strict": misplaced.any(-1).float().mean().item(),
            "elements": misplaced.float().mean().item(),
        }

    def keys(self) -> Tensor:
        """Return the keys of all sets."""
        return self._read(self.sets.which)

    def snapshot(self, step: int) -> dict[str, Tensor]:
        """Return the keys of some numbers, and the half-permutations that sort the first set."""
        if not self.args.keep_frames:
            return {}
        keys = self._read(self.sets.which[: self._watched_sets()])
        kept = {"keys": keys.flatten()[:_WATCHED]}
        if self._shows_steps():
            halves = self.sort.halves(keys[0], generator=generator(step, self.device))
            kept["halves"] = torch.stack(halves).half()
        return kept

    def pictures(self, step: int, frame: dict[str, Tensor]) -> dict[str, Any]:
        """Draw some sets in the order of their keys, and the keys over the numbers."""
        del step
        sets = max(1, _DRAWN // self.args.size)
        which, values = self.sets.which[:sets], self.sets.values[:sets]
        keys = frame.get("keys")  # of the first numbers
        if keys is None or len(keys) < values.numel():
            keys = self._read(which).flatten()
        order = keys[: values.numel()].view_as(values).argsort(dim=-1, stable=True)
        numbers = self.sets.values.flatten()[: len(keys)]
        return {
            "order": draw_order(self.judged.images[which], order, values),
            "keys": draw_points(numbers, keys),
        }

    def constants(self) -> dict[str, Tensor]:
        """Return the numbers whose keys are kept, and the pictures of the first set."""
        values = self.sets.values[: self._watched_sets()].flatten()[:_WATCHED]
        kept = {"values": values.int()}
        if self._shows_steps():
            kept["images"] = self.judged.images[self.sets.which[0]]
        return kept

    def _read(self, which: Tensor) -> Tensor:
        """The keys of sets, as many at once as fit."""
        most = _AT_ONCE.get(self.device.type, _AT_ONCE["cpu"])
        if isinstance(self.model, KeyNetwork) and which.numel() > len(self.judged.images):
            # Each picture occurs many times, and is read once.
            every = torch.arange(len(self.judged.images), device=self.device).split(most)
            known = torch.cat([self.model.digits(pictures(self.judged, some)) for some in every])
            return self.model.judge(known[which]).float()
        chunk = max(1, most // (self.args.size * self.args.places))
        found = [self.model(pictures(self.judged, some)) for some in which.split(chunk)]
        return torch.cat(found).float()

    def _watched_sets(self) -> int:
        return -(-_WATCHED // self.args.size)

    def _shows_steps(self) -> bool:
        """Whether keys are sorted in steps; the likelihood is that of such a sort."""
        stepwise = self.args.method in ("likelihood", "exact", "sampled")
        return stepwise and self.args.size <= _MOST_SHOWN


def permutation_loss(matrix: Tensor, values: Tensor) -> Tensor:
    """Return the cross-entropy of where each element goes; equal ones may change places."""
    inorder = values.sort(dim=-1).values
    right = inorder.unsqueeze(-1) == values.unsqueeze(-2)
    chance = (matrix * right).sum(-2)
    return -chance.clamp(min=1e-20).log().mean()


def rank_loss(ranks: Tensor, values: Tensor) -> Tensor:
    """Return the squared error of ranks from 0; equal elements share the middle of theirs."""
    below = values.unsqueeze(-1) - values.unsqueeze(-2)
    right = (below.sign().float().sum(-1) + ranks.shape[-1] - 1) / 2
    return (ranks - right).square().mean()


def _order(values: Tensor) -> Tensor:
    return values.argsort(dim=-1, stable=True)


def _pixel_loss(found: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy, clamped as in the paper."""
    with torch.autocast(found.device.type, enabled=False):
        found, target = (t.float().clamp(0, 1) for t in (found, target))
        return binary_cross_entropy(found.clamp(1e-6, 1 - 1e-6), target)


def main(words: Sequence[str]) -> int:
    """Run `sparsewire sorting`."""
    return run_command(Sorting, words)
