"""A trial of the sorting experiment: the key network, its data, losses and errors."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy
from torch.optim.lr_scheduler import LambdaLR

from sparsewire.sorting import QuickSort, order_loss
from sparsewire_lab.data.augment import augment, sample_changes
from sparsewire_lab.data.numbers import group_by_label, pictures, sample_numbers
from sparsewire_lab.figures.pictures import draw_order, draw_points
from sparsewire_lab.sorting.networks import KeyNetwork, WideKeyNetwork
from sparsewire_lab.sorting.peers import (
    network_sort,
    neural_sort,
    projected_ranks,
    sinkhorn_sort,
    soft_sort_matrix,
)
from sparsewire_lab.train.distributed import whole_batch
from sparsewire_lab.train.schedules import rise_and_fall
from sparsewire_lab.train.trial import Share, Trial, generator

if TYPE_CHECKING:
    from sparsewire_lab.sorting.experiment import Sorting

_SET_SEED = 2019  # of the sets for evaluation, for all seeds of a run
_AT_ONCE = {"cpu": 2_000, "cuda": 50_000}  # digits in a batch of an evaluation
_TRACKED = 300  # numbers whose keys are recorded for figures
_PICTURED = 64  # numbers in a picture for TensorBoard
_MOST_SHOWN = 32  # numbers of a set whose sort is recorded: a figure shows no more


class SortingTrial(Trial):
    """A key network, digits to train on, and sets to evaluate it on."""

    def __init__(self, args: "Sorting", device: torch.device) -> None:
        self.args, self.device = args, device
        self.groups = group_by_label(
            args.digits("all-train" if args.split == "test" else "train").to(device)
        )
        self.judged = group_by_label(args.digits(args.split).to(device))
        source = generator(_SET_SEED, device)
        self.sets = sample_numbers(self.judged, args.sets or 1, args.size, args.places, source)
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
        heat = args.temperature or 1.0
        self.sort = QuickSort(method, samples=args.samples, temperature=heat)
        super().__init__(model, optimizer, schedule)

    def loss(self, model: Callable[..., Any], batch: int, share: Share) -> Tensor:
        """Return the loss on new sets."""
        drawn = sample_numbers(self.groups, batch, self.args.size, self.args.places)
        which, values = share(drawn.which), share(drawn.values)
        x = pictures(self.groups, which)
        if self.args.jitter:
            changes = sample_changes(drawn.which.numel(), self.args.jitter, self.device)
            changes = share(changes.view(*drawn.which.shape, -1)).flatten(0, 2)
            x = augment(x.flatten(0, 2).unsqueeze(1), changes).view(x.shape)
        with whole_batch(batch, share):
            keys = model(x).float()
            return self._loss(keys, x, values)

    def _loss(self, keys: Tensor, x: Tensor, values: Tensor) -> Tensor:
        """Compare how keys sort pictures, or themselves, with the right order."""
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
        keys = self._read(self.sets.which[: self._tracked_sets()])
        arrays = {"keys": keys.flatten()[:_TRACKED]}
        if self._shows_steps():
            halves = self.sort.halves(keys[0], generator=generator(step, self.device))
            arrays["halves"] = torch.stack(halves).half()
        return arrays

    def pictures(self, step: int, frame: dict[str, Tensor]) -> dict[str, Any]:
        """Draw some sets in the order of their keys, and the keys over the numbers."""
        del step
        sets = max(1, _PICTURED // self.args.size)
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
        """Return the numbers whose keys are recorded, and the pictures of the first set."""
        values = self.sets.values[: self._tracked_sets()].flatten()[:_TRACKED]
        arrays = {"values": values.int()}
        if self._shows_steps():
            arrays["images"] = self.judged.images[self.sets.which[0]]
        return arrays

    def _read(self, which: Tensor) -> Tensor:
        """Return the keys of sets, in batches."""
        most = _AT_ONCE.get(self.device.type, _AT_ONCE["cpu"])
        if isinstance(self.model, KeyNetwork) and which.numel() > len(self.judged.images):
            # Each picture occurs many times; its features are computed once.
            every = torch.arange(len(self.judged.images), device=self.device).split(most)
            known = torch.cat(
                [self.model.digits(pictures(self.judged, some)) for some in self.batches(every)]
            )
            return self.model.judge(known[which]).float()
        chunk = max(1, most // (self.args.size * self.args.places))
        keys = [
            self.model(pictures(self.judged, some)) for some in self.batches(which.split(chunk))
        ]
        return torch.cat(keys).float()

    def _tracked_sets(self) -> int:
        return -(-_TRACKED // self.args.size)

    def _shows_steps(self) -> bool:
        """Whether keys are sorted in steps, as methods of quicksort do, and a figure shows them."""
        stepwise = self.args.method in ("likelihood", "exact", "sampled")
        return stepwise and self.args.size <= _MOST_SHOWN


def permutation_loss(matrix: Tensor, values: Tensor) -> Tensor:
    """Return the cross-entropy of the place of each element; equal ones may change places."""
    inorder = values.sort(dim=-1).values
    right = inorder.unsqueeze(-1) == values.unsqueeze(-2)
    chance = (matrix * right).sum(-2)
    return -chance.clamp(min=1e-20).log().mean()


def rank_loss(ranks: Tensor, values: Tensor) -> Tensor:
    """Return the squared error of ranks from 0; equal elements share the mean of theirs."""
    below = values.unsqueeze(-1) - values.unsqueeze(-2)
    right = (below.sign().float().sum(-1) + ranks.shape[-1] - 1) / 2
    return (ranks - right).square().mean()


def _order(values: Tensor) -> Tensor:
    return values.argsort(dim=-1, stable=True)


def _pixel_loss(sorted_pixels: Tensor, target: Tensor) -> Tensor:
    """Binary cross-entropy, clamped as in the paper."""
    with torch.autocast(sorted_pixels.device.type, enabled=False):
        x, target = (t.float().clamp(0, 1) for t in (sorted_pixels, target))
        return binary_cross_entropy(x.clamp(1e-6, 1 - 1e-6), target)
