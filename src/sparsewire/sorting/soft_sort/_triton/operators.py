"""The kernels of soft sorting as operators of `torch.library`, and as an engine."""

from typing import Any

import torch
from torch import Tensor

from sparsewire.engines import transformed
from sparsewire.kernels import again, last_pass, operator, saves
from sparsewire.sorting.soft_sort._call import Call
from sparsewire.sorting.soft_sort._scan import by_scan
from sparsewire.sorting.soft_sort._triton import wide
from sparsewire.sorting.soft_sort._triton.rows import Tape, backward, forward, is_short, new_tape
from sparsewire.sorting.soft_sort._triton.scans import MIX, MIX_BACK, PLAN, RANK, RANK_BACK


def by_kernels(call: Call) -> Tensor:
    """Compute a call that `takes` accepts."""
    ranks = call.operation == "rank"
    given = call.keys, call.payload, call.weights, call.temperature
    return soft_rows(*given, 0.0, False, ranks)[0]


def takes(call: Call) -> bool:
    """Whether kernels compute a call: of whole levels, of one Laplace distribution."""
    if call.operation == "threshold" or call.levels is not None or call.tails != "light":
        return False
    forward = torch.autograd.forward_ad._current_level >= 0
    fixed = call.weights is None or not call.weights.requires_grad
    return fixed and not forward and not transformed() and call.keys.numel() > 0


def takes_raw(keys: Tensor, temperature: float | Tensor | None) -> bool:
    """Whether `sort_short` and `rank_short` compute soft sorts of these keys, (b, n)."""
    if not is_short(keys) or not keys.numel() or transformed():
        return False
    return not (isinstance(temperature, Tensor) and temperature.requires_grad)


def rank_short(
    keys: Tensor, weights: Tensor | None, temperature: float | Tensor | None, descending: bool
) -> Tensor:
    """Return soft ranks of keys that may be infinite or NaN, in one launch."""
    return soft_rows(keys, None, weights, *_heat(temperature), descending, True)[0]


def sort_short(
    keys: Tensor, weights: Tensor | None, temperature: float | Tensor | None, descending: bool
) -> Tensor:
    """Return keys in soft order; infinite ones and NaN are in their places in hard order."""
    return soft_rows(keys, None, weights, *_heat(temperature), descending, False)[0]


def sort_by_short(
    keys: Tensor,
    payload: Tensor,
    weights: Tensor | None,
    temperature: float | Tensor | None,
    descending: bool,
) -> Tensor:
    """Return a payload, (b, n, f), in the soft order of its keys."""
    return soft_rows(keys, payload, weights, *_heat(temperature), descending, False)[0]


def _heat(temperature: float | Tensor | None) -> tuple[Tensor | None, float]:
    if isinstance(temperature, Tensor):
        return temperature, 0.0
    return None, 0.0 if temperature is None else max(float(temperature), 1e-37)


def _run(
    keys: Tensor,
    payload: Tensor | None,
    weights: Tensor | None,
    temperature: Tensor | None,
    number: float,
    descending: bool,
    ranks: bool,
) -> tuple[Tensor, ...]:
    if temperature is not None:
        temperature = temperature.detach().expand(len(keys), 1).contiguous().view(-1)
    how = weights, temperature, number, descending
    none = keys.new_empty(0)
    if ranks:
        out, tape = forward(RANK.value, keys, None, *how)
    elif payload is None or payload.shape[-1] == 1:
        column = None if payload is None else payload.squeeze(-1)
        out, tape = forward(MIX.value, keys, column, *how)
        out = out if payload is None else out.unsqueeze(-1)
    else:
        tape = forward(PLAN.value, keys, None, *how)[1]
        out, none = wide.mix(payload, weights, tape)
    return out, *tape, none


def _run_backward(
    grad: Tensor,
    keys: Tensor,
    payload: Tensor | None,
    weights: Tensor | None,
    temperature: Tensor | None,
    *saved: Any,
) -> tuple[Tensor, Tensor]:
    tape, (sums, descending, ranks) = Tape(*saved[:8]), saved[8:]
    if ranks:
        return backward(RANK_BACK.value, grad, None, weights, tape, descending)
    if payload is None:
        return backward(MIX_BACK.value, grad, None, weights, tape, descending)
    if payload.shape[-1] == 1:
        column = grad.squeeze(-1), payload.squeeze(-1)
        found, more = backward(MIX_BACK.value, *column, weights, tape, descending)
        return found, more.unsqueeze(-1)
    return wide.mix_backward(grad, payload, weights, tape, sums, descending)


def _fake(
    keys: Tensor, payload: Tensor | None, weights: Tensor | None, temperature: Tensor | None,
    number: float, descending: bool, ranks: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    out = torch.empty_like(
        keys if payload is None else payload, memory_format=torch.contiguous_format
    )
    many = payload is not None and payload.shape[-1] != 1
    tape = new_tape(keys, RANK.value if ranks else PLAN.value if many else MIX.value)
    return out, *tape, wide.new_sums(payload, weights) if many else keys.new_empty(0)


def _fake_backward(
    grad: Tensor, keys: Tensor, payload: Tensor | None, *_: Any
) -> tuple[Tensor, Tensor]:
    other = keys.new_empty((0, keys.shape[1])) if payload is None else payload
    return keys.new_empty(keys.shape), other.new_empty(other.shape)


def _gradient(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 7
    keys, payload, weights, temperature, *saved = ctx.saved_tensors
    _, descending, ranks = ctx.options
    run = _run_backward if last_pass(grad) else soft_rows_backward
    given = grad, keys, payload, weights, temperature, *saved, descending, ranks
    to_keys, to_payload = run(*given)
    to_heat = None
    if ctx.needs_input_grad[3]:
        # A soft rank is the same if keys and temperature are scaled, and if keys are moved.
        away = keys.double() - keys.double().mean(-1, keepdim=True)
        to_heat = -(away * to_keys).sum(-1, keepdim=True) / temperature
        to_heat = to_heat.to(temperature.dtype)
    return to_keys, None if payload is None else to_payload, None, to_heat, None, None, None


def _backward_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[:5], inputs[7])
    ctx.options = inputs[-2:]
    ctx.set_materialize_grads(False)


def _backward_gradient(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    grad, keys, payload, weights, temperature, saved = ctx.saved_tensors
    descending, ranks = ctx.options
    names = [payload is not None, temperature is not None]

    def first(grad: Tensor, keys: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        others = iter(others)
        rows, heat = (next(others) if there else None for there in names)
        heat = saved.unsqueeze(-1).to(keys.dtype) if heat is None else heat.expand(len(keys), 1)
        signed = -keys if descending else keys
        if ranks:
            call = Call("rank", signed, None, weights, heat, None, "light")
        else:
            mixed = keys.unsqueeze(-1) if rows is None else rows
            call = Call("mix", signed, mixed, weights, heat, None, "light")
        out = by_scan(call)
        wanted = [keys] if rows is None else [keys, rows]
        return torch.autograd.grad(out, wanted, grad.view_as(out), create_graph=True)

    inputs = [t for t in (grad, keys, payload, temperature) if t is not None]
    found = iter(again(first, inputs, grads[: 1 + names[0]]))
    to_grad, to_keys = next(found), next(found)
    to_payload, to_heat = (next(found) if there else None for there in names)
    return to_grad, to_keys, to_payload, None, to_heat, *(None,) * 11


_TAPE = ", ".join(f"Tensor {name}" for name in Tape._fields)
soft_rows_backward = operator(
    "soft_rows_backward(Tensor grad, Tensor keys, Tensor? payload, Tensor? weights, "
    f"Tensor? temperature, {_TAPE}, Tensor sums, bool descending, bool ranks) -> (Tensor, Tensor)",
    _run_backward,
    _fake_backward,
    _backward_gradient,
    _backward_setup,
    autocast=None,
)
soft_rows = operator(
    "soft_rows(Tensor keys, Tensor? payload, Tensor? weights, Tensor? temperature, float number, "
    f"bool descending, bool ranks) -> ({', '.join(['Tensor'] * 10)})",
    _run,
    _fake,
    _gradient,
    saves(4, results=True),
    autocast=None,
)
