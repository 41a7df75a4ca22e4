"""The kernels of soft sorting as operators of `torch.library`, and as an engine."""

from typing import Any

import torch
from torch import Tensor

from sparsewire.engines import transformed
from sparsewire.kernels import again, last_pass, operator, saves
from sparsewire.sorting.soft_sort._call import Call
from sparsewire.sorting.soft_sort._scan import by_scan
from sparsewire.sorting.soft_sort._triton import wide
from sparsewire.sorting.soft_sort._triton.rows import Tape, new_tape, run, sorts_itself
from sparsewire.sorting.soft_sort._triton.scans import COLUMN, KEYS, PLAN, RANKS


def by_kernels(call: Call) -> Tensor:
    """Compute a call that `takes` accepts."""
    return soft_rows(*call[1:5], False, call.operation == "rank")[0]


def takes(call: Call) -> bool:
    """Whether kernels compute a call: of whole levels, of one Laplace distribution."""
    if call.operation == "threshold" or call.levels is not None or call.tails != "light":
        return False
    forward = torch.autograd.forward_ad._current_level >= 0
    fixed = call.weights is None or not call.weights.requires_grad
    return fixed and not forward and not transformed() and call.keys.numel() > 0


def takes_short_rows(keys: Tensor) -> bool:
    """Whether `soft_rows` takes these keys, (b, n), as they are, in one launch.

    They may be infinite or NaN, and descend, and the temperature may be None for the default one.
    """
    return sorts_itself(keys) and keys.numel() > 0 and not transformed()


def _kind(payload: Tensor | None, ranks: bool) -> Any:
    if payload is None:
        return RANKS if ranks else KEYS
    return COLUMN if payload.shape[-1] == 1 else PLAN


def _run(
    keys: Tensor, payload: Tensor | None, weights: Tensor | None, temperature: Tensor | None,
    descending: bool, ranks: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    if temperature is not None:
        temperature = temperature.expand(len(keys), 1).squeeze(-1)
    kind, tape = _kind(payload, ranks), new_tape(keys, ranks)
    column = payload.squeeze(-1) if kind is COLUMN else None
    out = run(kind, False, keys, column, weights, temperature, tape, descending)[0]
    if kind is PLAN:
        out = wide.mix(payload, weights, tape)
    return out.unsqueeze(-1) if kind is COLUMN else out, *tape


def _run_backward(
    grad: Tensor, keys: Tensor, payload: Tensor | None, weights: Tensor | None,
    temperature: Tensor | None, ints: Tensor, floats: Tensor, heats: Tensor, descending: bool,
    ranks: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    kind, tape = _kind(payload, ranks), Tape(ints, floats, heats)
    column, to_payload = None, keys.new_empty(0)
    if kind is PLAN:
        grad, to_payload = wide.mix_backward(grad, payload, weights, tape)
    elif kind is COLUMN:
        grad, column = grad.squeeze(-1), payload.squeeze(-1)
    found = run(kind, True, grad, column, weights, None, tape, descending)
    if kind is COLUMN:
        to_payload = found[1].unsqueeze(-1).clone()  # outputs of operators share no memory
    return found[0].to(keys.dtype), to_payload


def _fake(keys: Tensor, payload: Tensor | None, *how: Any) -> tuple[Tensor, ...]:
    out = keys if payload is None else payload
    return out.new_empty(out.shape), *new_tape(keys, how[-1])


def _fake_backward(grad: Any, keys: Tensor, payload: Tensor | None, *_: Any) -> tuple[Tensor, ...]:
    other = keys.new_empty(0) if payload is None else payload.new_empty(payload.shape)
    return keys.new_empty(keys.shape), other


def _gradient(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 6
    keys, payload, _, temperature, *_ = ctx.saved_tensors
    run = _run_backward if last_pass(grad) else soft_rows_backward
    to_keys, to_payload = run(grad, *ctx.saved_tensors, *ctx.options)
    to_heat = None
    if ctx.needs_input_grad[3]:
        # A soft rank is the same if keys and temperature are scaled, and if keys are moved.
        away = keys.double() - keys.double().mean(-1, keepdim=True)
        to_heat = -(away * to_keys).sum(-1, keepdim=True).to(temperature.dtype) / temperature
    return to_keys, None if payload is None else to_payload, None, to_heat, None, None


def _backward_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:5], inputs[7])
    ctx.options = inputs[-2:]
    ctx.set_materialize_grads(False)


def _backward_gradient(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    grad, keys, payload, weights, temperature, heats = ctx.saved_tensors
    descending, ranks = ctx.options
    heat = heats.unsqueeze(-1).to(keys.dtype) if temperature is None else temperature
    rows = [] if payload is None else [payload]

    def first(grad: Tensor, keys: Tensor, heat: Tensor, *rows: Tensor) -> tuple[Tensor, ...]:
        signed, heat = -keys if descending else keys, heat.expand(len(keys), 1)
        mixed = None if ranks else rows[0] if rows else keys.unsqueeze(-1)
        out = by_scan(Call("rank" if ranks else "mix", signed, mixed, weights, heat, None, "light"))
        return torch.autograd.grad(out, [keys, *rows], grad.view_as(out), create_graph=True)

    found = again(first, [grad, keys, heat, *rows], grads[: 1 + len(rows)])
    to_grad, to_keys, to_heat, to_payload = [*found, None][:4]
    to_heat = None if temperature is None else to_heat
    return to_grad, to_keys, to_payload, None, to_heat, *(None,) * 5


_GIVEN = "Tensor keys, Tensor? payload, Tensor? weights, Tensor? temperature"
soft_rows_backward = operator(
    f"soft_rows_backward(Tensor grad, {_GIVEN}, Tensor ints, Tensor floats, Tensor heats, "
    "bool descending, bool ranks) -> (Tensor, Tensor)",
    _run_backward,
    _fake_backward,
    _backward_gradient,
    _backward_setup,
    autocast=None,
)
soft_rows = operator(
    f"soft_rows({_GIVEN}, bool descending, bool ranks) -> (Tensor, Tensor, Tensor, Tensor)",
    _run,
    _fake,
    _gradient,
    saves(4, results=True),
    autocast=None,
)
