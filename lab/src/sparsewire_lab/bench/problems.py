"""The inputs of the cases: the same for every engine, drawn from fixed seeds."""

import inspect
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import sparsewire as sw
from sparsewire import ops
from sparsewire_lab.bench.cases import (
    ALL_PAIRS,
    FLOOR_VARIANCES,
    GLIMPSES,
    IMAGE,
    Case,
    samples_of,
)

# What softplus makes of it vanishes beside the floor of the variances.
_NO_SPREAD = -30.0


@dataclass(frozen=True)
class SpreadProblem:
    """Inputs of `spread` as a free layer has them at its start, and a gradient for its output."""

    means: Tensor
    variances: Tensor
    values: Tensor
    indices: Tensor
    excluded: Tensor
    weight: Tensor

    @property
    def leaves(self) -> tuple[Tensor, Tensor, Tensor]:
        """What gradients are asked for."""
        return self.means, self.variances, self.values


def spread_problem(n: int, samples: tuple[int, int], device: torch.device) -> SpreadProblem:
    """Draw k = n tuples in an n × n matrix, and their integer tuples."""
    generator = torch.Generator().manual_seed(n)
    shape, span = (n, n), max(1, round(math.log2(n)))
    means = ops.bound_means(torch.randn(n, 2, generator=generator), shape)
    variances = ops.bound_variances(torch.randn(n, generator=generator), shape)
    values = torch.randn(n, generator=generator)
    indices = ops.sample(means, shape, (span, span), *samples, generator)
    excluded = ops.mark_repeats(indices, shape)
    weight = torch.randn(len(indices), generator=generator)
    leaves = (t.to(device).requires_grad_() for t in (means, variances, values))
    return SpreadProblem(*leaves, *(t.to(device) for t in (indices, excluded, weight)))


class FixedTuples(nn.Module):
    """A source that has a wiring of its own for each instance, as a network would give it."""

    adaptive = True

    def __init__(self, batch: int, tuples: int) -> None:
        super().__init__()
        self.raw_means = nn.Parameter(torch.randn(batch, tuples, 2))
        self.raw_variances = nn.Parameter(torch.randn(batch, tuples))
        self.values = nn.Parameter(torch.randn(batch, tuples))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the parameters, whatever the input."""
        return self.raw_means, self.raw_variances, self.values


@dataclass(frozen=True)
class LayerProblem:
    """A layer and its input; a gradient reaches the input of a glimpse, not that of a step."""

    layer: sw.HyperLayer
    x: Tensor
    note: str = ""

    @property
    def leaves(self) -> list[Tensor]:
        """What gradients are asked for."""
        inputs = [self.x] if self.x.requires_grad else []
        return [*inputs, *self.layer.parameters()]


def layer_problem(case: Case, device: torch.device) -> LayerProblem:
    """Build the layer and the input of a `step` or a `glimpse`."""
    torch.manual_seed(case.n)
    return _glimpse(case, device) if case.case == "glimpse" else _free_layer(case, device)


def has_tolerance(function: Any) -> bool:
    """Whether a function can be told to leave out no pair at all."""
    return "tolerance" in inspect.signature(function).parameters


def _free_layer(case: Case, device: torch.device) -> LayerProblem:
    local, everywhere = samples_of(case)
    options: dict[str, Any] = {"local_samples": local, "global_samples": everywhere}
    note = ""
    if case.variant == ALL_PAIRS:
        if has_tolerance(sw.HyperLayer.__init__):
            options["tolerance"] = 0.0
        else:
            note = "the layer has no option tolerance: as it is by default"
    layer = sw.SparseLayer((case.n,), (case.n,), tuples=case.n, seed=case.n, **options)
    if case.variant == FLOOR_VARIANCES:
        with torch.no_grad():
            layer.source.raw_variances.fill_(_NO_SPREAD)
    return LayerProblem(layer.to(device), torch.randn(case.batch, case.n).to(device), note)


def _glimpse(case: Case, device: torch.device) -> LayerProblem:
    shape = GLIMPSES[case.variant]
    template = sw.fan_in(shape, IMAGE)
    template[:, len(shape)] = 0  # the channel
    local, everywhere = samples_of(case)
    layer = sw.HyperLayer(
        FixedTuples(case.batch, len(template)),
        IMAGE,
        shape,
        template=template,
        local_samples=local,
        global_samples=everywhere,
    )
    x = torch.rand(case.batch, *IMAGE).to(device).requires_grad_()
    return LayerProblem(layer.to(device), x)
