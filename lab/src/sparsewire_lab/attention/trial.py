"""Training and judging of models that look before they classify."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR

from sparsewire.nn.hyper import Mode
from sparsewire_lab.attention.build import make_model
from sparsewire_lab.attention.looking import look_at, see, watch
from sparsewire_lab.attention.models import GlimpseClassifier, ReinforceGlimpse, SpatialTransformer
from sparsewire_lab.attention.rates import parameter_groups
from sparsewire_lab.attention.settling import Settling
from sparsewire_lab.attention.spreading import Spreading
from sparsewire_lab.attention.zooming import Zooming
from sparsewire_lab.data import CANVASES, draw_batch, fixed_set
from sparsewire_lab.figures.pictures import draw_looks
from sparsewire_lab.train.schedules import rise_and_fall
from sparsewire_lab.train.trial import Share, Trial

if TYPE_CHECKING:
    from sparsewire_lab.attention.experiment import Attention

_DRAWS = 16
_WIDEST_WINDOW = 21
_JUDGED_PIXELS = 10_000_000  # at once
_DEVIATIONS = 3  # standard deviations to each side over which an expectation is taken
_SHOWN = 8  # images whose frames are kept for figures, and as many mistakes
_SHOWN_PIXELS = 200_000  # of canvases in a picture for TensorBoard
_SET_SEED = 2019  # of the canvases that errors are measured on, whatever the seed of a run


class AttentionTrial(Trial):
    """A model that looks, digits to train on, and canvases to judge it by."""

    def __init__(self, args: "Attention", seed: int, device: torch.device) -> None:
        self.args, self.seed, self.device = args, seed, device
        self.canvas = CANVASES[args.canvas or 100]
        self.digits = args.digits("all-train" if args.split == "test" else "train").to(device)
        held_out = args.digits(args.split).to(device)
        count = len(held_out.labels)
        self.images, self.labels = fixed_set(held_out, self.canvas, count, _SET_SEED)
        model = make_model(args).to(device)
        if device.type == "cuda":
            model = model.to(memory_format=torch.channels_last)  # pyright: ignore
        groups = parameter_groups(
            model,
            args.lr or 1e-3,
            source=1.0 if args.source_rate is None else args.source_rate,
            frames=1.0 if args.frame_rate is None else args.frame_rate,
        )
        optimizer = torch.optim.Adam(groups, lr=args.lr or 1e-3, fused=True)
        schedule = None
        if args.cosine:
            schedule = LambdaLR(optimizer, rise_and_fall(args.steps or 1))
        self.zooming = None
        if args.zoom and isinstance(model, GlimpseClassifier | SpatialTransformer):
            self.zooming = Zooming(args.zoom, self.canvas.size)
            looks = model.look if isinstance(model, GlimpseClassifier) else model
            looks.watch = self.zooming.watch
        extras: dict[str, Any] = {}
        self.settling = None
        if isinstance(model, GlimpseClassifier):
            falls = (args.hold or 0.0, args.settle) if args.settle else None
            rounds = None if args.straight == 1.0 else args.straight
            self.settling = Settling(model.look.layer, args.steps or 1, falls, rounds, device)
            extras["settling"] = self.settling
        self.spreading = None
        if args.spread:
            start = args.cover or 1.0
            self.spreading = Spreading(args.steps or 1, start, args.spread, device)
            extras["spreading"] = self.spreading
        self.clocks = [clock for clock in (self.settling, self.spreading) if clock is not None]
        super().__init__(model, optimizer, schedule, extras)

    def loss(self, model: Callable[..., Any], batch: int, share: Share) -> Tensor:
        """Return the cross-entropy on new canvases."""
        spread = None if self.spreading is None else self.spreading.share
        scene, labels = draw_batch(self.digits, batch, self.canvas, spread=spread)
        images, labels = share(scene.images), share(labels)
        if self.args.model != "reinforce":
            losses = cross_entropy(model(images).float(), labels, reduction="none")
            return _beside(losses.mean(), self.zooming and self.zooming.price(losses))
        scores, log_probability = model(images)
        loss = cross_entropy(scores.float(), labels)
        reward = (scores.argmax(1) == labels).float()
        # The mean reward as a baseline: what counts is to be better than the others.
        credit = ((reward.mean() - reward) * log_probability).mean()
        return _beside(loss, credit)

    def after_step(self) -> None:
        """Let variances fall, rounding begin, and digits spread."""
        for clock in self.clocks:
            clock.advance()

    def evaluate(self) -> dict[str, float]:
        """Return the share of held-out canvases that are classified wrongly; nothing is drawn."""
        return {"error": self.error()}

    def conclude(self) -> dict[str, float]:
        """Return the error by the other ways to evaluate, where a model has them."""
        errors = {}
        if isinstance(self.model, GlimpseClassifier):
            widest = self.model.look.wiring(self.images[:1].float() / 255).variances.max().sqrt()
            around = 2 * math.ceil(_DEVIATIONS * widest.item()) + 1
            self.model.look.layer.window = min(around, _WIDEST_WINDOW, self.canvas.size)
            errors["expected"] = self.error("expected")
        if isinstance(self.model, GlimpseClassifier | ReinforceGlimpse):
            devices = [self.device] if self.device.type == "cuda" else []
            with torch.random.fork_rng(devices):
                torch.manual_seed(self.seed)
                errors["sampled"] = self.error("sampled")
                errors["sampled16"] = self.error("sampled", _DRAWS)
        return errors

    def error(self, mode: Mode | None = None, draws: int = 1) -> float:
        """Return the share of held-out canvases that are classified wrongly.

        Args:
            mode: As in `HyperLayer.forward`.
            draws: Over how many passes the probabilities of classes are averaged.
        """
        wrong = torch.zeros((), dtype=torch.int64, device=self.device)
        parts = (t.split(self._chunk(mode)) for t in (self.images, self.labels))
        for images, labels in zip(*parts, strict=True):
            wrong += (self.classify(images, mode, draws) != labels).sum()
        return wrong.item() / len(self.labels)

    def classify(self, images: Tensor, mode: Mode | None = None, draws: int = 1) -> Tensor:
        """Return the likeliest class of images in uint8."""
        x = images.float() / 255
        options = {} if mode is None else {"mode": mode}
        scores: Any = [self.model(x, **options) for _ in range(draws)]
        if isinstance(self.model, ReinforceGlimpse):
            scores = [score for score, _ in scores]
        return torch.stack(scores).softmax(-1).mean(0).argmax(-1)

    def snapshot(self, step: int) -> dict[str, Tensor]:
        """Return the corners of the frames on some canvases."""
        del step
        return watch(self.model, self.images[:_SHOWN]) if self.args.keep_frames else {}

    def pictures(self, step: int, frame: dict[str, Tensor]) -> dict[str, Any]:
        """Draw some canvases with the frames of the glimpses on them, and what is read there."""
        del step, frame
        shown = self.images[: max(1, min(_SHOWN, _SHOWN_PIXELS // self.canvas.size**2))]
        seen = see(self.model, shown)
        return {} if seen is None else {"glimpses": draw_looks(shown, *seen)}

    def constants(self) -> dict[str, Tensor]:
        """Return some canvases and some mistakes, with what was read of them."""
        parts = self.images.split(self._chunk(None))
        predicted = torch.cat([self.classify(images) for images in parts])
        wrong = (predicted[_SHOWN:] != self.labels[_SHOWN:]).nonzero()[:_SHOWN, 0] + _SHOWN
        shown = torch.cat([torch.arange(_SHOWN, device=self.device), wrong])
        kept = self.images[shown]
        told = {"labels": self.labels[shown], "predicted": predicted[shown]}
        return told | look_at(self.model, kept, self.seed)

    def _chunk(self, mode: Mode | None) -> int:
        """How many canvases are judged at once: the expectation has a table for each."""
        most = max(1, _JUDGED_PIXELS // self.canvas.size**2)
        return most if mode != "expected" else max(1, most // 16)


def _beside(loss: Tensor, more: Tensor | None) -> Tensor:
    """Add the gradient of a second loss, but not its number."""
    return loss if more is None else loss + more - more.detach()
