"""Training and judging of models that look before they classify."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR

from sparsewire.nn.frames import COUNTS
from sparsewire.nn.glimpse import Glimpse
from sparsewire.nn.hyper import Mode
from sparsewire.nn.source_network import grid_for
from sparsewire_lab.attention.convnet import ConvNet
from sparsewire_lab.attention.finder import Finder
from sparsewire_lab.attention.looking import frame_corners, observe, read_in_frames
from sparsewire_lab.attention.models import GlimpseClassifier, ReinforceGlimpse, SpatialTransformer
from sparsewire_lab.attention.resolution import ResolutionPenalty
from sparsewire_lab.attention.schedules import Annealing, Placement
from sparsewire_lab.data import CANVASES, fixed_set, sample_canvases
from sparsewire_lab.figures.pictures import draw_frames
from sparsewire_lab.train.distributed import mean_of_all, whole_batch
from sparsewire_lab.train.schedules import rise_and_fall
from sparsewire_lab.train.trial import Share, Trial

if TYPE_CHECKING:
    from sparsewire_lab.attention.experiment import Attention

_PASSES = 16
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
        self.penalty = None
        if args.zoom and isinstance(model, GlimpseClassifier | SpatialTransformer):
            self.penalty = ResolutionPenalty(args.zoom, self.canvas.size)
            looks = model.look if isinstance(model, GlimpseClassifier) else model
            looks.on_points = self.penalty.on_points
        self.clocks: dict[str, Any] = {}
        if isinstance(model, GlimpseClassifier):
            falls = (args.hold or 0.0, args.settle) if args.settle else None
            rounds = None if args.straight == 1.0 else args.straight
            layer = model.look.layer
            self.clocks["annealing"] = Annealing(layer, args.steps or 1, falls, rounds, device)
        self.share: Tensor | None = None  # of the canvas in which digits are placed
        if args.spread:
            placement = Placement(args.steps or 1, args.cover or 1.0, args.spread, device)
            self.clocks["placement"], self.share = placement, placement.share
        super().__init__(model, optimizer, schedule, self.clocks)

    def loss(self, model: Callable[..., Any], batch: int, share: Share) -> Tensor:
        """Return the cross-entropy on new canvases."""
        scene, labels = sample_canvases(self.digits, batch, self.canvas, central=self.share)
        images, labels = share(scene.images), share(labels)
        with whole_batch(batch, share):
            outputs = model(images)
        if self.args.model != "reinforce":
            losses = cross_entropy(outputs.float(), labels, reduction="none")
            return _add_gradient(losses.mean(), self.penalty and self.penalty.loss(losses))
        scores, log_probability = outputs
        loss = cross_entropy(scores.float(), labels)
        reward = (scores.argmax(1) == labels).float()
        # The mean reward is the baseline of REINFORCE.
        credit = ((mean_of_all(reward.mean()) - reward) * log_probability).mean()
        return _add_gradient(loss, credit)

    def after_step(self) -> None:
        """Advance the schedules of the variances and of the digits' places."""
        for clock in self.clocks.values():
            clock.advance()

    def evaluate(self) -> dict[str, float]:
        """Return the share of held-out canvases that are classified wrongly, without sampling."""
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
                errors["sampled16"] = self.error("sampled", _PASSES)
        return errors

    def error(self, mode: Mode | None = None, passes: int = 1) -> float:
        """Return the share of held-out canvases that are classified wrongly.

        Args:
            mode: As in `HyperLayer.forward`.
            passes: Number of passes over which the probabilities of classes are averaged.
        """
        wrong = torch.zeros((), dtype=torch.int64, device=self.device)
        parts = (t.split(self._chunk(mode)) for t in (self.images, self.labels))
        for images, labels in self.batches(zip(*parts, strict=True)):
            wrong += (self.classify(images, mode, passes) != labels).sum()
        return wrong.item() / len(self.labels)

    def classify(self, images: Tensor, mode: Mode | None = None, passes: int = 1) -> Tensor:
        """Return the likeliest class of images in uint8."""
        x = images.float() / 255
        options = {} if mode is None else {"mode": mode}
        scores: Any = [self.model(x, **options) for _ in self.batches(range(passes))]
        if isinstance(self.model, ReinforceGlimpse):
            scores = [score for score, _ in scores]
        return torch.stack(scores).softmax(-1).mean(0).argmax(-1)

    def snapshot(self, step: int) -> dict[str, Tensor]:
        """Return the corners of the frames on some canvases."""
        del step
        return frame_corners(self.model, self.images[:_SHOWN]) if self.args.keep_frames else {}

    def pictures(self, step: int, frame: dict[str, Tensor]) -> dict[str, Any]:
        """Draw some canvases with the frames of the glimpses on them, and what is read there."""
        del step, frame
        shown = self.images[: max(1, min(_SHOWN, _SHOWN_PIXELS // self.canvas.size**2))]
        seen = read_in_frames(self.model, shown)
        return {} if seen is None else {"glimpses": draw_frames(shown, *seen)}

    def constants(self) -> dict[str, Tensor]:
        """Return some canvases and some mistakes, with what was read of them."""
        parts = self.images.split(self._chunk(None))
        predicted = torch.cat([self.classify(images) for images in parts])
        wrong = (predicted[_SHOWN:] != self.labels[_SHOWN:]).nonzero()[:_SHOWN, 0] + _SHOWN
        shown = torch.cat([torch.arange(_SHOWN, device=self.device), wrong])
        classes = {"labels": self.labels[shown], "predicted": predicted[shown]}
        return classes | observe(self.model, self.images[shown], self.seed)

    def _chunk(self, mode: Mode | None) -> int:
        """How many canvases are judged at once: the expectation has a table for each."""
        most = max(1, _JUDGED_PIXELS // self.canvas.size**2)
        return most if mode != "expected" else max(1, most // 16)


def make_model(args: "Attention") -> nn.Module:
    """Return the model that the arguments describe, resolved, before training."""
    side, factor = args.canvas or 100, args.reduce or 1
    image, size = (1, side, side), args.size or 32

    def source(outputs: int, cover: float | None = args.cover or 0.8) -> nn.Module:
        """Return the network that sees the whole canvas, perhaps reduced."""
        if args.source == "finder" and args.model != "convnet":
            net: nn.Module = Finder(1, args.glimpses, cover=cover)
        else:
            net = ConvNet(1, outputs, grid_for([side // factor] * 2))
        return nn.Sequential(nn.AvgPool2d(factor), net) if factor > 1 else net

    if args.model == "convnet":
        return source(10)
    head: dict[str, Any] = {"head": args.head, "dropout": args.dropout, "width": args.width}
    if args.model == "reinforce":
        head |= {"deviation": args.deviation, "bounded": args.source != "finder"}
        chosen = source(2 * args.glimpses, cover=None)
        return ReinforceGlimpse(image, size, args.glimpses, source=chosen, **head)
    frame: dict[str, Any] = {
        "frame": args.frame,
        "bound": args.squash,
        "cover": args.cover or 0.8,
        "source": source(args.glimpses * COUNTS[args.frame]),
    }
    if args.model == "transformer":
        return SpatialTransformer(image, size, **frame, **head)
    look = Glimpse(
        image,
        size,
        args.glimpses,
        **frame,
        local_samples=32 if args.local_samples is None else args.local_samples,
        global_samples=16 if args.global_samples is None else args.global_samples,
        region=min(args.region or 8, side),
        variance_scale=0.1 if args.scale is None else args.scale,
        variance_floor=0.1 if args.floor is None else args.floor,
    )
    return GlimpseClassifier(look, **head)


def parameter_groups(
    model: nn.Module, rate: float, source: float, frames: float
) -> list[dict[str, Any]]:
    """Return the parameters of a model with their learning rates.

    Args:
        model: A model that looks, or a plain network, which has one rate.
        rate: Learning rate of the head.
        source: Factor of it for the network that chooses where to look.
        frames: Factor of it for the last layer of that network.
    """
    kinds: dict[int, float] = {}
    if isinstance(model, GlimpseClassifier | SpatialTransformer | ReinforceGlimpse):
        net = next(part for part in model.modules() if isinstance(part, ConvNet | Finder))
        last = [net.head[-1]] if isinstance(net, ConvNet) else [net.scores, net.norm, net.boxes]
        kinds = {id(p): rate * source for p in net.parameters()}
        kinds |= {id(p): rate * frames for part in last for p in part.parameters()}
    groups: dict[float, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        groups.setdefault(kinds.get(id(parameter), rate), []).append(parameter)
    return [{"params": params, "lr": lr} for lr, params in groups.items()]


def _add_gradient(loss: Tensor, more: Tensor | None) -> Tensor:
    """Add the gradient of a second loss, but not its value."""
    return loss if more is None else loss + more - more.detach()
