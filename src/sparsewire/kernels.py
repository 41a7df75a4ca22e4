"""For those who write kernels: how one becomes an operator of `torch.library`.

With shapes for tracing, gradients, and autocast. Gradients of gradients are exact too: a backward
operator is differentiated through the plain PyTorch engine that computes the same.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sparsewire.engines import interpreted

_library = torch.library.Library("sparsewire", "FRAGMENT")
# Under Triton's interpreter the same kernels run on the CPU.
_DEVICES = ("cuda", "cpu") if interpreted() else ("cuda",)


def operator(
    schema: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    backward: Callable[..., Any] | None = None,
    setup: Callable[..., Any] | None = None,
    autocast: torch.dtype | None = torch.float32,
    devices: Sequence[str] = _DEVICES,
) -> Any:
    """Define an operator: how it runs, what comes out, its gradient, its dtype in autocast."""
    name = schema.partition("(")[0]
    _library.define(schema)
    for device in devices:
        torch.library.impl(f"sparsewire::{name}", device, run, lib=_library)
    torch.library.register_fake(f"sparsewire::{name}", fake, lib=_library)
    if backward is not None:
        torch.library.register_autograd(
            f"sparsewire::{name}", backward, setup_context=setup, lib=_library
        )
    if autocast is not None:
        torch.library.register_autocast(f"sparsewire::{name}", "cuda", autocast, lib=_library)
    return getattr(torch.ops.sparsewire, name).default


def saves(tensors: int, results: bool = False) -> Callable[..., None]:
    """Return a setup that saves the first inputs; the others become the `options` of the context.

    With `results` it also saves all results but the first, which then have no gradient.
    """

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        more = output[1:] if results else ()
        ctx.save_for_backward(*inputs[:tensors], *more)
        ctx.options = inputs[tensors:]
        if results:
            ctx.mark_non_differentiable(*more)
            ctx.set_materialize_grads(False)

    return setup


def last_pass(grad: Tensor) -> bool:
    """Whether a backward pass is the last: no one will differentiate it, and no one traces it.

    It then calls the kernels themselves, for the way through the operators costs the host time.
    """
    return type(grad) is Tensor and not torch.is_grad_enabled()


def again(
    function: Callable[..., Any], inputs: Sequence[Tensor], grads: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Differentiate a function, computed once more in plain PyTorch, from the gradients of it."""
    keep = torch.is_grad_enabled()
    with torch.enable_grad():
        # Other names for the inputs: what reaches one of them through another is not counted here.
        leaves = [
            t.view_as(t) if keep and t.requires_grad else t.detach().requires_grad_()
            for t in inputs
        ]
        outputs = function(*leaves)
        given = [(o, g) for o, g in zip(outputs, grads, strict=True) if g is not None]
        if not given:
            return [None] * len(leaves)
        outputs, grads = zip(*given, strict=True)
        return list(
            torch.autograd.grad(outputs, leaves, grads, create_graph=keep, allow_unused=True)
        )
