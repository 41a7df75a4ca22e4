"""Small trials of the attention experiment, and one step of them."""

from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from sparsewire_lab.attention.convnet import ConvNet
from sparsewire_lab.attention.experiment import Attention, Model
from sparsewire_lab.attention.finder import Finder
from sparsewire_lab.attention.models import GlimpseClassifier
from sparsewire_lab.attention.trial import AttentionTrial

CPU = torch.device("cpu")
MODELS: tuple[Model, ...] = get_args(Model)
LOOKING: tuple[Model, ...] = ("glimpse", "transformer", "reinforce")

of_every_model = pytest.mark.parametrize("model", MODELS)
of_every_looking_model = pytest.mark.parametrize("model", LOOKING)


def small(model: Model = "glimpse", **options: Any) -> Attention:
    """A setting that takes no time: 60 × 60 pixels, glimpses of 6 × 6 points, few samples.

    What the small digits have of their own is as for MNIST.
    """
    given: dict[str, Any] = {"data": "digits", "device": "cpu", "batch": 8, "steps": 10}
    given["spread"] = 0.0
    if model != "convnet":
        given |= {"size": 6, "source_rate": 0.1, "frame_rate": 0.3}
    if model in ("glimpse", "transformer"):
        given["cover"] = 0.8
    if model == "glimpse":
        given |= {"local_samples": 4, "global_samples": 2}
    return Attention(model=model, **{**given, **options})


def checked(args: Attention) -> Attention:
    """As the command does it."""
    args.check()
    return args.resolved()


def build(model: Model = "glimpse", seed: int = 0, **options: Any) -> AttentionTrial:
    args = checked(small(model, **options))
    torch.manual_seed(seed)
    return args.build(seed, CPU)


def everything(x: Tensor) -> Tensor:
    return x


def step(trial: AttentionTrial, batch: int = 8) -> Tensor:
    trial.optimizer.zero_grad()
    loss = trial.loss(trial.model, batch, everything)
    loss.backward()
    trial.optimizer.step()
    trial.after_step()
    return loss.detach()


def net_of(model: nn.Module) -> Any:
    """The network that looks at the whole canvas."""
    (net,) = (part for part in model.modules() if isinstance(part, ConvNet | Finder))
    return net


def looks_of(model: nn.Module) -> Any:
    """The part that can be watched."""
    return model.look if isinstance(model, GlimpseClassifier) else model


class Given(nn.Module):
    """A source that answers with numbers of its own, one row for each image."""

    def __init__(self, numbers: Tensor) -> None:
        super().__init__()
        self.numbers = nn.Parameter(numbers)

    def forward(self, x: Tensor) -> Tensor:
        return self.numbers.expand(len(x), -1)
