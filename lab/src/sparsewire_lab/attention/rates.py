"""How fast each part of a model that looks learns."""

from typing import Any

from torch import nn

from sparsewire_lab.attention.convnet import ConvNet
from sparsewire_lab.attention.finder import Finder
from sparsewire_lab.attention.models import GlimpseClassifier, ReinforceGlimpse, SpatialTransformer


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
