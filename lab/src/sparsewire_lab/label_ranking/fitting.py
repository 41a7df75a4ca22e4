"""Training of many small models at once: one for each fold and each setting, in batched products.

Axes: `f` folds, `g` settings, `i` instances, `d` features, `h` hidden units, `n` labels.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sparsewire.annotations import Float, Int
from sparsewire_lab.label_ranking.data import DataSet
from sparsewire_lab.label_ranking.methods import Method
from sparsewire_lab.label_ranking.metrics import kendall, spearman

TEMPERATURES = (0.1, 0.3, 1.0)
RATES = (0.01, 0.05)
DECAYS = (0.0, 0.1)
_HELD_OUT, _MOST_HELD_OUT = 0.2, 1000  # of the training instances, to choose a setting
_BETAS, _EPSILON = (0.9, 0.99), 1e-8
_ROWS = 2**22  # numbers of a prediction in memory at once


class Setting(NamedTuple):
    """What is chosen for each method, data set and fold."""

    temperature: float
    lr: float
    decay: float


class Plan(NamedTuple):
    """How long models are trained, and how large they are."""

    steps: int
    """Of the chosen setting; settings are compared after half as many."""
    batch: int
    hidden: int
    """Hidden units; 0 for a linear model."""
    folds: int


class Scores(NamedTuple):
    """Coefficients of the test instances of each fold, and the settings that were chosen."""

    kendall: list[float]
    spearman: list[float]
    settings: list[Setting]


def settings_of(method: Method) -> list[Setting]:
    """Return the settings that are tried for a method."""
    heats = TEMPERATURES if method.has_temperature else (1.0,)
    return [Setting(*each) for each in itertools.product(heats, RATES, DECAYS)]


def cross_validate(data: DataSet, method: Method, plan: Plan, seed: int) -> Scores:
    """Train and test a method on each fold, with settings chosen inside its training instances.

    A fifth of the training instances of a fold is held out, all settings are trained on the others,
    and the one with the best Kendall's coefficient on what was held out is trained on all of them.
    The folds, the instances that are held out, the first weights and the batches depend on the seed
    alone, not on the method.
    """
    source = torch.Generator().manual_seed(seed)
    folds = torch.randperm(len(data.ranks), generator=source).tensor_split(plan.folds)
    train = [torch.cat([*folds[:i], *folds[i + 1 :]]) for i in range(plan.folds)]
    train = [rows[torch.randperm(len(rows), generator=source)] for rows in train]
    held = [max(1, min(_MOST_HELD_OUT, int(_HELD_OUT * len(rows)))) for rows in train]
    tried = settings_of(method)
    inner = [rows[count:] for rows, count in zip(train, held, strict=True)]
    shorter = plan._replace(steps=-(-plan.steps // 2))
    models = Models(data, inner, [tried] * plan.folds, method, shorter, seed)
    outer = [rows[:count] for rows, count in zip(train, held, strict=True)]
    found = torch.stack([kendall(s, t).mean(-1) for s, t in models.predict(outer)])
    chosen = [tried[i] for i in found.argmax(-1).tolist()]
    models = Models(data, train, [[setting] for setting in chosen], method, plan, seed)
    tested = list(models.predict(folds))
    return Scores(
        [kendall(s, t).mean().item() for s, t in tested],
        [spearman(s, t).mean().item() for s, t in tested],
        chosen,
    )


class Models:
    """Linear models or networks with one hidden layer, trained when they are made.

    Each is trained by Adam with decoupled weight decay and a rate that falls to zero, on batches
    that are shared by all settings of a fold.

    Args:
        data: The whole data set.
        rows: The training instances of each fold.
        settings: Of each fold, as many in all of them.
        method: Gives the loss.
        plan: Steps, batch and size.
        seed: Decides the first weights and the batches.
    """

    def __init__(
        self,
        data: DataSet,
        rows: Sequence[Int[Tensor, " _"]],
        settings: Sequence[Sequence[Setting]],
        method: Method,
        plan: Plan,
        seed: int,
    ) -> None:
        self.data = data
        inside = [data.features[r] for r in rows]
        self.mean = torch.stack([x.mean(0, keepdim=True) for x in inside])
        deviation = torch.stack([x.std(0, keepdim=True) for x in inside])
        self.deviation = torch.where(deviation > 1e-6, deviation, 1.0)
        self.settings = torch.tensor([list(map(list, each)) for each in settings])  # f g 3
        self.goal = data.ranks.shape[1] - 1 - data.ranks  # a high score is a preferred label
        self.source = torch.Generator().manual_seed(seed)
        self.parameters = self._begin(plan.hidden)
        self._train(rows, method, plan)

    def predict(
        self, rows: Sequence[Int[Tensor, " _"]]
    ) -> list[tuple[Float[Tensor, "g i n"], Float[Tensor, "i n"]]]:
        """Return, for each fold, the scores of its instances and what their ranks should be."""
        size = max(1, _ROWS // (self.settings.shape[1] * self.parameters[0].shape[-1]))
        found = []
        for fold, mine in enumerate(rows):
            only = slice(fold, fold + 1)
            with torch.no_grad():
                parts = [self._scores(part.unsqueeze(0), only) for part in mine.split(size)]
            found.append((torch.cat(parts, -2).squeeze(0), self.goal[mine]))
        return found

    def _begin(self, hidden: int) -> list[Tensor]:
        """Small weights, the same for all folds and settings, and biases of zero."""
        (f, g, _), (d, n) = self.settings.shape, (self.data.features.shape[1], self.goal.shape[1])
        sizes = [d, hidden, n] if hidden else [d, n]
        layers: list[Tensor] = []
        for fan_in, fan_out in itertools.pairwise(sizes):
            scale = (1.0 if fan_out == hidden else 0.1) / fan_in**0.5
            weight = scale * torch.randn(fan_in, fan_out, generator=self.source)
            layers += [weight.repeat(f, g, 1, 1), torch.zeros(f, g, 1, fan_out)]
        return [layer.requires_grad_() for layer in layers]

    def _scores(self, rows: Int[Tensor, "f i"], only: slice) -> Float[Tensor, "f g i n"]:
        x = (self.data.features[rows] - self.mean[only]) / self.deviation[only]
        weight, bias, *rest = (p[only] for p in self.parameters)
        f, g, d, h = weight.shape
        # One product for all settings of a fold.
        flat = x @ weight.transpose(1, 2).reshape(f, d, g * h)
        y = flat.unflatten(-1, (g, h)).transpose(1, 2) + bias
        return y.relu() @ rest[0] + rest[1] if rest else y

    def _train(self, rows: Sequence[Tensor], method: Method, plan: Plan) -> None:
        heat, lr, decay = (s[..., None, None] for s in self.settings.unbind(-1))
        state = [(torch.zeros_like(p), torch.zeros_like(p)) for p in self.parameters]
        size = min(plan.batch, *map(len, rows))
        for step in range(1, plan.steps + 1):
            taken = [r[torch.randint(len(r), (size,), generator=self.source)] for r in rows]
            batch = torch.stack(taken)
            scores = self._scores(batch, slice(None)) / heat
            goal = self.goal[batch].unsqueeze(1).expand_as(scores)
            loss = method.loss(scores, goal).mean(-1).sum()
            slopes = torch.autograd.grad(loss, self.parameters)
            rate = lr * (1 - (step - 1) / plan.steps)
            with torch.no_grad():
                for number, (p, slope) in enumerate(zip(self.parameters, slopes, strict=True)):
                    if number % 2 == 0:  # biases do not decay
                        p.mul_(1 - rate * decay)
                    p.sub_(rate * _adam(slope, *state[number], step))


def _adam(slope: Tensor, mean: Tensor, square: Tensor, step: int) -> Tensor:
    """Update the running means of a gradient in place, and return Adam's direction."""
    mean.lerp_(slope, 1 - _BETAS[0])
    square.lerp_(slope.square(), 1 - _BETAS[1])
    mean_now, square_now = mean / (1 - _BETAS[0] ** step), square / (1 - _BETAS[1] ** step)
    return mean_now / (square_now.sqrt() + _EPSILON)
