"""First and second derivatives of whole layers, in float64, by parameter name."""

from collections.abc import Callable

import pytest
import torch
from tests.helpers import seeded
from tests.nn.dense import KINDS, SCHEDULED, Look, input_for
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError, gradcheck, gradgradcheck
from torch.func import functional_call

from sparsewire import HyperLayer, fan_in

FEW = {"local_samples": 1, "global_samples": 1, "bias": True}

LAYERS: dict[str, Callable[[], HyperLayer]] = {
    **{kind: lambda make=make: make(**FEW) for kind, make in KINDS.items()},
    "many wirings": lambda: KINDS["free"](wirings=2, **FEW),
    "features": lambda: KINDS["template"](features=1, **FEW),
    "adaptive": lambda: HyperLayer(Look((3,), tuples=2, rank=2), (3,), (2,), **FEW),
    "adaptive template": lambda: HyperLayer(
        Look((3,), tuples=4, rank=1), (3,), (2,), template=fan_in((2,), (3,), tuples=2), **FEW
    ),
}

# With a schedule, the gradient is that of a place instead: see test_schedule.py.
of_every_kind = pytest.mark.parametrize("kind", sorted(LAYERS.keys() - SCHEDULED))


def function_of_everything(
    kind: str, mode: str = "sampled"
) -> tuple[Callable[..., Tensor], dict[str, Tensor]]:
    """A layer as a function of its input and parameters, with the same draw in every call."""
    layer = LAYERS[kind]().double()
    leaves = {"x": input_for(layer, 3, dtype=torch.float64)}
    leaves |= {name: tensor.detach().clone() for name, tensor in layer.named_parameters()}
    names = list(leaves)

    def function(*tensors: Tensor) -> Tensor:
        named = dict(zip(names, tensors, strict=True))
        call = {"mode": mode, "generator": seeded(1)}
        return functional_call(layer, named, (named.pop("x"),), call)

    return function, {name: tensor.requires_grad_() for name, tensor in leaves.items()}


@pytest.mark.parametrize("mode", ["sampled", "expected"])
@of_every_kind
def test_first_derivatives(kind, mode):
    function, leaves = function_of_everything(kind, mode)
    for checked in leaves:
        others = {name: tensor.detach() for name, tensor in leaves.items()}

        def of_one(tensor: Tensor, checked: str = checked, others: dict = others) -> Tensor:
            return function(*(others | {checked: tensor}).values())

        try:
            assert gradcheck(of_one, leaves[checked])
        except GradcheckError as error:
            pytest.fail(f"gradient of {checked}: {error}")


@of_every_kind
def test_second_derivatives(kind):
    function, leaves = function_of_everything(kind)
    assert gradgradcheck(function, tuple(leaves.values()), fast_mode=True)


@of_every_kind
def test_every_parameter_is_reached(kind):
    function, leaves = function_of_everything(kind)
    gradients = torch.autograd.grad(function(*leaves.values()).square().sum(), [*leaves.values()])
    for name, gradient in zip(leaves, gradients, strict=True):
        assert gradient.abs().sum() > 0, f"no gradient for {name}"


@pytest.mark.parametrize("kind", KINDS)
def test_rounding_has_gradients_for_values_bias_and_input_only(kind):
    function, leaves = function_of_everything(kind, mode="rounded")
    gradients = torch.autograd.grad(
        function(*leaves.values()).square().sum(), [*leaves.values()], allow_unused=True
    )
    reached = {name for name, g in zip(leaves, gradients, strict=True) if g is not None}
    assert reached == set(leaves) & {"x", "bias", "source.values"}
