"""How fast each part of a model that looks learns."""

import math
from collections.abc import Callable
from typing import Any

from torch import nn

from sparsewire.layers.convnet import ConvNet
from sparsewire.layers.finder import Finder
from sparsewire.models import GlimpseClassifier, ReinforceGlimpse, SpatialTransformer

_RISE = 0.02  # share of the steps in which learning rates rise, where they fall later


def parameter_groups(
    model: nn.Module, rate: float, source: float, frames: float
) -> list[dict[str, Any]]:
    """Return the parameters of a model with their learning rates.

    Args:
        model: A model that looks, or a plain network, which has one rate.
        rate: Learning rate of the head.
        source: Factor of it for the network that chooses.
        frames: Factor of it for what that network tells frames by.
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


def rise_and_fall(steps: int) -> Callable[[int], float]:
    """Return a short rise, times a cosine from 1 to 0 over all steps.

    Examples:
        >>> factor = rise_and_fall(100)
        >>> [round(factor(step), 2) for step in (0, 1, 50, 100)]
        [0.5, 1.0, 0.5, 0.0]
    """

    def factor(step: int) -> float:
        risen = min(1.0, (step + 1) / max(1.0, _RISE * steps))
        return risen * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))

    return factor
