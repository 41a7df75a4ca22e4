"""The inputs of soft sorts: the same for every engine, drawn from fixed seeds."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsewire_lab.bench.case import Case
from sparsewire_lab.bench.sorting_cases import payload_of

# Numbers of three digits, as in the experiment: some are equal.
_NUMBERS = 1000


@dataclass(frozen=True)
class SortingProblem:
    """Keys, what belongs to them (a payload, or numbers to be ordered by), and a gradient."""

    keys: Tensor
    given: Tensor
    weight: Tensor

    @property
    def leaves(self) -> dict[str, Tensor]:
        """What gradients are asked for."""
        named = {"keys": self.keys, "payload": self.given}
        return {name: leaf for name, leaf in named.items() if leaf.requires_grad}

    def exact(self, rows: int) -> "SortingProblem":
        """Return the first instances of it in float64."""
        keys, given, weight = (t.detach()[:rows] for t in (self.keys, self.given, self.weight))
        if given.is_floating_point():
            given = given.double().requires_grad_(self.given.requires_grad)
        return SortingProblem(keys.double().requires_grad_(), given, weight.double())


def sorting_problem(case: Case, device: torch.device) -> SortingProblem:
    """Draw keys from a normal distribution, and what the case needs beside them."""
    generator = torch.Generator().manual_seed(case.n)
    shape = case.batch, case.n
    keys = torch.randn(shape, generator=generator)
    given, results = keys.new_zeros(case.batch, 0), shape
    if case.case == "sort_by":
        results = *shape, *payload_of(case)
        given = torch.randn(results, generator=generator)
    elif case.case == "order_loss":
        results = shape[:1]
        given = torch.randint(_NUMBERS, shape, generator=generator)
    weight = torch.randn(results, generator=generator)
    keys, given, weight = (t.to(device) for t in (keys, given, weight))
    trained = case.case == "sort_by"
    return SortingProblem(keys.requires_grad_(), given.requires_grad_(trained), weight)
