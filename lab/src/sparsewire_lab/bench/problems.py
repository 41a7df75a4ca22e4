"""The inputs of the cases: the same for every engine, sampled from fixed seeds."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import sparsewire as sw
from sparsewire import ops
from sparsewire_lab.bench import cases
from sparsewire_lab.bench.cases import Case

Named = dict[str, Tensor]

# softplus of it vanishes beside the floor of the variances.
_VANISHING = -30.0
# Numbers of three digits, as in the experiment: some are equal.
_NUMBERS = 1000


@dataclass(frozen=True)
class Problem:
    """Inputs of a function, by name and in order, and a gradient for its output."""

    inputs: Named
    weight: Tensor

    @property
    def leaves(self) -> Named:
        """The inputs that get a gradient."""
        return {name: each for name, each in self.inputs.items() if each.requires_grad}

    def name(self, results: Sequence[Tensor]) -> Named:
        """Name the output and the gradients."""
        return dict(zip(("output", *self.leaves), results, strict=True))

    def exact(self, rows: int | None = None) -> "Problem":
        """Return it in float64; only its first instances, if so many are given."""

        def converted(x: Tensor) -> Tensor:
            part = x.detach()[:rows]
            return part.double().requires_grad_(x.requires_grad) if x.is_floating_point() else part

        inputs = {name: converted(each) for name, each in self.inputs.items()}
        return Problem(inputs, converted(self.weight))

    def forward(self, engine: Callable[..., Tensor]) -> Tensor:
        """Return the output of an engine, without gradients."""
        with torch.no_grad():
            return engine(*self.inputs.values())

    def both(self, engine: Callable[..., Tensor]) -> list[Tensor]:
        """Return the output of an engine, and the gradients."""
        out = engine(*self.inputs.values())
        return [out.detach(), *torch.autograd.grad(out, [*self.leaves.values()], self.weight)]


def spread_problem(case: Case, device: torch.device) -> Problem:
    """Sample k = n tuples in an n × n matrix as a free layer has them at its start."""
    n = case.n
    generator = torch.Generator().manual_seed(n)
    shape, span = (n, n), max(1, round(math.log2(n)))
    means = ops.bound_means(torch.randn(n, 2, generator=generator), shape)
    variances = ops.bound_variances(torch.randn(n, generator=generator), shape)
    values = torch.randn(n, generator=generator)
    indices = ops.sample(means, shape, (span, span), *cases.samples_of(case), generator)
    excluded = ops.mark_repeats(indices, shape)
    weight = torch.randn(len(indices), generator=generator)
    leaves = {"means": means, "variances": variances, "values": values}
    inputs = {name: leaf.to(device).requires_grad_() for name, leaf in leaves.items()}
    inputs |= {"indices": indices.to(device), "excluded": excluded.to(device)}
    return Problem(inputs, weight.to(device))


def sorting_problem(case: Case, device: torch.device) -> Problem:
    """Sample keys from a normal distribution, and the payload or the numbers to order them by."""
    generator = torch.Generator().manual_seed(case.n)
    shape = case.batch, case.n
    keys = torch.randn(shape, generator=generator).to(device).requires_grad_()
    given, results = torch.zeros(case.batch, 0), shape
    if case.case == "sort_by":
        results = *shape, *cases.payload_of(case)
        given = torch.randn(results, generator=generator)
    elif case.case == "soft_permutation":
        results = *shape, case.n
    elif case.case == "order_loss":
        results = shape[:1]
        given = torch.randint(_NUMBERS, shape, generator=generator)
    weight = torch.randn(results, generator=generator).to(device)
    payload = given.to(device).requires_grad_(case.case == "sort_by")
    return Problem({"keys": keys, "payload": payload}, weight)


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

    @property
    def leaves(self) -> Named:
        """The input, if it gets a gradient, and the parameters."""
        inputs = {"x": self.x} if self.x.requires_grad else {}
        return {**inputs, **dict(self.layer.named_parameters())}


def layer_problem(case: Case, device: torch.device) -> LayerProblem:
    """Build the layer and the input of a `step`, of `contexts` or of a `glimpse`."""
    torch.manual_seed(case.n)
    local, everywhere = cases.samples_of(case)
    options: dict[str, Any] = {"local_samples": local, "global_samples": everywhere}
    if case.case == "glimpse":
        shape = cases.GLIMPSES[case.variant]
        template = sw.fan_in(shape, cases.IMAGE)
        template[:, len(shape)] = 0  # the channel
        source = FixedTuples(case.batch, len(template))
        layer = sw.HyperLayer(source, cases.IMAGE, shape, template=template, **options)
        x = torch.rand(case.batch, *cases.IMAGE).to(device).requires_grad_()
        return LayerProblem(layer.to(device), x)
    options |= {"seed": case.n, "tuples": case.n, "schedule": None}
    if case.case == "contexts":
        options |= {"tuples": cases.CONTEXT_TUPLES, "context": cases.CONTEXT}
    if case.variant == cases.ALL_PAIRS:
        options["tolerance"] = 0.0
    layer = sw.SparseLayer((case.n,), (case.n,), **options)
    if case.variant == cases.FLOOR_VARIANCES:
        with torch.no_grad():
            layer.source.raw_variances.fill_(_VANISHING)
    return LayerProblem(layer.to(device), torch.randn(case.batch, case.n).to(device))
