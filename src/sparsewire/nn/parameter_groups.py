"""Parameters of a model in groups, with the learning rates that their units ask for."""

from typing import Any

from torch import nn

from sparsewire.checks import check_range
from sparsewire.nn.hyper import HyperLayer
from sparsewire.nn.sources import FreeTuples

# Places that a raw mean without a schedule moves while another parameter changes by 1.
_PLACES = 30.0


def parameter_groups(
    model: nn.Module, lr: float = 1e-3, *, weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Return the parameters of a model in groups, for any optimiser of `torch.optim`.

    Means and variances of free layers have no weight decay: it would pull wires to one place. With
    a schedule they move by places at every rate, and have the rate of all others. Without one
    (`schedule=None`), the rate of means is such that a step of Adam moves them by up to 30 · lr
    places, whatever the length of their axes.

    Args:
        model: Any module.
        lr: Learning rate of all other parameters.
        weight_decay: Their weight decay.

    Examples:
        >>> import sparsewire as sw
        >>> model = nn.Sequential(sw.SparseLinear(64, 30, fan_in=3), nn.Linear(30, 10))
        >>> groups = sw.parameter_groups(model, lr=0.01, weight_decay=0.1)
        >>> [(len(group["params"]), group["lr"], group["weight_decay"]) for group in groups]
        [(4, 0.01, 0.1), (2, 0.01, 0.0)]
        >>> optimizer = torch.optim.AdamW(groups)
    """
    check_range("lr", lr, 0.0, 1e6)
    check_range("weight_decay", weight_decay, 0.0, 1e6)
    free: dict[int, nn.Parameter] = {}
    means: list[dict[str, Any]] = []
    for layer in model.modules():
        if not isinstance(layer, HyperLayer) or not isinstance(layer.source, FreeTuples):
            continue
        source = layer.source
        own = [source.raw_means, source.raw_variances]
        if source.pace is None and id(source.raw_means) not in free:
            # A sigmoid moves by at most a quarter of its axis; the longest axis decides.
            span = max(layer.space()) / (4 if layer.edge == "sigmoid" else 1)
            rate = lr * _PLACES / span
            means.append({"params": [own[0]], "lr": rate, "weight_decay": 0.0})
        free |= {id(parameter): parameter for parameter in own}
    others = [p for p in model.parameters() if id(p) not in free]
    for group in means:
        del free[id(group["params"][0])]
    rest = list(free.values())
    groups = [
        {"params": others, "lr": lr, "weight_decay": weight_decay},
        {"params": rest, "lr": lr, "weight_decay": 0.0},
        *means,
    ]
    return [group for group in groups if group["params"]]
