"""How a network that chooses where to look starts, and how fast each part of a model learns."""

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from sparsewire.layers.convnet import ConvNet
from sparsewire.models import GlimpseClassifier, ReinforceGlimpse, SpatialTransformer
from sparsewire.models.attention import BothHeads

_SMALL_END = 0.01  # factor of the last layer's weights
_FEW_INPUTS = 512
# Between which shares of the steps learning rates rise, where they fall later: of most parts, and
# of the convolutions beside a linear head, which wait until frames have been found.
_RISE, _LATE_RISE = (0.0, 0.02), (0.25, 0.35)


def start_well(net: ConvNet) -> None:
    """Draw the weights of a source after He et al., with a last layer near zero.

    With torch's own start signals shrink from layer to layer, and all images get the same frame
    for a long time.
    """
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(cast(Tensor, layer.bias))
    with torch.no_grad():
        cast(Tensor, net.head[-1].weight).mul_(_SMALL_END)


def parameter_groups(
    model: nn.Module, rate: float, source: float, frames: float, by_inputs: bool
) -> list[dict[str, Any]]:
    """Return the parameters of a model with their learning rates, and when these rise.

    Args:
        model: A model that looks, or a plain network, which has one rate.
        rate: Learning rate of the head.
        source: Factor of it for the network that chooses.
        frames: Factor of it for that network's last layer.
        by_inputs: Whether the rate of the source's widest layer falls with its inputs: a step of
            Adam changes what a layer returns by as much as it has inputs.
    """
    kinds: dict[int, Any] = {}
    if isinstance(model, GlimpseClassifier | SpatialTransformer | ReinforceGlimpse):
        net = next(part for part in model.modules() if isinstance(part, ConvNet))
        kinds = {id(p): (rate * source, _RISE) for p in net.parameters()}
        if by_inputs:
            wide = cast(nn.Linear, net.head[0])
            few = min(1.0, _FEW_INPUTS / wide.in_features)
            kinds[id(wide.weight)] = (rate * source * few, _RISE)
        kinds |= {id(p): (rate * frames, _RISE) for p in net.head[-1].parameters()}
    for part in model.modules():
        if isinstance(part, BothHeads):
            kinds |= {id(p): (rate, _LATE_RISE) for p in part.conv.parameters()}
    groups: dict[Any, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        groups.setdefault(kinds.get(id(parameter), (rate, _RISE)), []).append(parameter)
    return [{"params": params, "lr": lr, "rise": rise} for (lr, rise), params in groups.items()]


def rise_and_fall(steps: int, rise: tuple[float, float]) -> Callable[[int], float]:
    """Return a rise between two shares of the steps, times a cosine from 1 to 0 over all of them.

    Examples:
        >>> factor = rise_and_fall(100, (0.0, 0.02))
        >>> [round(factor(step), 2) for step in (0, 1, 50, 100)]
        [0.5, 1.0, 0.5, 0.0]
    """
    begin, end = (share * steps for share in rise)

    def factor(step: int) -> float:
        risen = min(1.0, max(0.0, (step + 1 - begin) / max(1.0, end - begin)))
        return risen * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))

    return factor
