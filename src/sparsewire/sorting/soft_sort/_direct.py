"""The scan with its gradient in closed form: two more recurrences, of what comes from above.

The gradient of a key is a sum over levels, Σ_k v_k e^{−|b_k − x_i| / T}: with y and z as in
`_scan`, these are L and R of the terms v_k z_k at the key above b_k, and v_k y_k at the key below.
A threshold moves with a key by ∂b_k/∂x_i = w_i f(b_k − x_i) / S'(b_k), where f is the density.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sparsewire.engines import concrete
from sparsewire.kernels import again, last_pass
from sparsewire.sorting.soft_sort import _scan as scan
from sparsewire.sorting.soft_sort._call import Call


def directly(call: Call) -> Tensor:
    """Compute a call; its gradient is that of the keys, the payload and the temperature."""
    return _Direct.apply(call.keys, call.payload, call.temperature, call)  # pyright: ignore[reportReturnType]


def takes(call: Call) -> bool:
    """Whether all tensors are concrete, the weights constant, and no derivatives run forward."""
    tensors = [t for t in call if isinstance(t, Tensor)]
    fixed = call.weights is None or not call.weights.requires_grad
    forward = torch.autograd.forward_ad._current_level >= 0
    return fixed and not forward and all(concrete(t) for t in tensors)


class _Direct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, keys: Tensor, payload: Tensor | None, heat: Tensor, call: Call
    ) -> Tensor:
        s = scan.sums(call)
        c = scan.coefficients(call.tails, s.keys)
        slopes = c / (2 * s.heats)
        ctx.call, ctx.c = call._replace(keys=keys[:0], payload=None, temperature=heat[:0]), c
        parts = keys, payload, heat, s.order, s.keys, s.features, s.decays, slopes
        if call.operation == "rank":
            apart = scan.others(s.decays, s.rising[:, 0], s.falling[:, 0])
            ctx.save_for_backward(*parts, (slopes * sum(apart)).sum(0))
            return _unsorted(scan.ranks(s, call.tails), s.order).to(keys.dtype)
        levels, near = scan.around(s, call)
        at = None
        if call.tails == "heavy" or call.operation == "threshold":
            at = scan.thresholds(levels, near, s, call.tails)
        if call.tails == "light":
            y, z = scan.solve(levels, near)
        else:
            assert at is not None
            inner = (levels > 0) & (levels < s.total[0, :, -1:])
            y, z = (t.where(inner, 0) for t in scan.distances(at, near, s.heats))
        density = scan.densities(y, z, near, slopes)
        pace = torch.where(density[0] > scan.STEEP, 1 / density[0], 0)  # ∂b/∂u
        means = density[1:] * pace
        saved = at if call.operation == "threshold" else None
        ctx.save_for_backward(*parts, near.slots, y, z, pace, means, saved)
        if at is not None and saved is not None:
            return at.clone()
        assert payload is not None
        mixed = scan.evaluate(y, z, near, c)[1:].diff(dim=-1)
        return mixed.movedim(0, -1).to(payload.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        keys, payload, heat, order, x, features, decays, slopes, *saved = ctx.saved_tensors
        call = ctx.call._replace(keys=keys, payload=payload, temperature=heat)
        if not last_pass(grad):
            return *_again(call, grad), None
        grad_payload = None
        # Derivatives of a homogeneous function, of degree 1 for thresholds and 0 for all others.
        centre = x.mean(-1, keepdim=True)
        scaled = torch.zeros_like(centre)
        if call.operation == "rank":
            given = grad.gather(-1, order).double()
            sums = scan.two_sided(decays, given[None], given[None])
            apart = scan.others(decays, *(t[:, 0] for t in sums))
            grad_keys = given * saved[0] - features[0] * (slopes * sum(apart)).sum(0)
        else:
            slots, y, z, pace, means, at = saved
            if call.operation == "threshold":
                levels = (grad * pace)[None]
                scaled = torch.where(pace > 0, grad * (at - centre), 0).sum(-1, keepdim=True)
            else:
                above = grad.movedim(-1, 0).double()
                above = F.pad(above, (1, 0)) - F.pad(above, (0, 1))
                levels = torch.cat([(above * means).sum(0, keepdim=True), above])
            high, low = scan.two_sided(
                decays, _at_keys(levels * z.unsqueeze(1), slots, x)[..., :-1],
                _at_keys(levels * y.unsqueeze(1), slots, x)[..., 1:],
            )
            each = (slopes.unsqueeze(1) * (high + low)).sum(0)
            grad_keys = features[0] * each[0] - (features[1:] * each[1:]).sum(0)
            if payload is not None and ctx.needs_input_grad[1]:
                whole = _at_keys(levels[1:], slots, x).flip(-1).cumsum(-1).flip(-1)[..., 1:]
                apart = (ctx.c.unsqueeze(1) * (high - low)[:, 1:]).sum(0) / 2
                grad_payload = _unsorted(features[0] * (whole + apart), order)
                grad_payload = grad_payload.movedim(0, -1).to(payload.dtype)
        grad_heat = None
        if ctx.needs_input_grad[2]:
            grad_heat = scaled - ((x - centre) * grad_keys).sum(-1, keepdim=True)
            grad_heat = (grad_heat / heat.double()).to(heat.dtype)
        return _unsorted(grad_keys, order).to(keys.dtype), grad_payload, grad_heat, None


def _again(call: Call, grad: Tensor) -> list[Tensor | None]:
    """Differentiate the scan itself, so that the gradient can be differentiated."""
    inputs = [call.keys, call.temperature]
    if call.payload is not None:
        inputs.append(call.payload)

    def function(keys: Tensor, heat: Tensor, payload: Tensor | None = None) -> tuple[Tensor]:
        return (scan.by_scan(call._replace(keys=keys, payload=payload, temperature=heat)),)

    keys, heat, *payload = again(function, inputs, [grad])
    return [keys, *(payload or [None]), heat]


def _at_keys(terms: Tensor, slots: Tensor, x: Tensor) -> Tensor:
    """Add the terms of levels, (…, b, l), in their slots, (…, b, n + 1)."""
    total = terms.new_zeros(*terms.shape[:-1], x.shape[-1] + 1)
    return total.scatter_add_(-1, slots.expand(terms.shape), terms)


def _unsorted(found: Tensor, order: Tensor) -> Tensor:
    return torch.empty_like(found).scatter_(-1, order.expand(found.shape), found)
