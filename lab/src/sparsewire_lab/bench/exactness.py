"""How far an engine is from float64, and how many pairs matter in float32 at all."""

import math

import torch
from torch import Tensor

import sparsewire as sw
from sparsewire import ops
from sparsewire.engines import Name
from sparsewire_lab.bench.problems import LayerProblem, Named

# Relative error, in the norm, above which an engine is wrong and not merely rounded.
WRONG = 1e-3

# A share this far below the largest of its row is lost in float32: 24 bits, as a logarithm.
_LOST = 24 * math.log(2)

_ROWS = 256


def relative_error(got: Named, want: Named) -> tuple[float, str]:
    """Return the largest ‖got − want‖ / ‖want‖ over all tensors, and the name of that tensor.

    Only as many instances of `got` are compared as `want` has.
    """
    errors = {}
    for name, true in want.items():
        true = true.detach().to(torch.float64)
        mine = got[name].detach()[: len(true)].to(torch.float64)
        scale = float(true.norm())
        error = float((mine - true).norm()) / (scale if scale > 0 else 1.0)
        errors[name] = error if math.isfinite(error) else math.inf
    worst = max(errors, key=lambda name: errors[name])
    return errors[worst], worst


def layer_errors(problem: LayerProblem, engine: Name, exact: Name) -> tuple[float, str]:
    """Compare a layer's output and gradients by an engine with float64, where another spreads.

    Means and variances are taken as the layer bounds them, in float32: what follows is compared,
    for one sample of integer tuples.
    """
    layer, x, leaves = problem.layer, problem.x, [*problem.leaves.values()]
    with sw.engine(engine):
        sampled = layer.sample(x, mode="sampled", generator=_seeded(x.device))
        y = layer(x, mode="sampled", generator=_seeded(x.device))
        weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.device)
        got = [y, *torch.autograd.grad(y, leaves, weight)]
    with sw.engine(exact):
        true = _exact_output(problem, sampled.indices)
        want = [true, *torch.autograd.grad(true, leaves, weight.double())]
    names = ["output", *problem.leaves]
    return relative_error(dict(zip(names, got, strict=True)), dict(zip(names, want, strict=True)))


def near_share(means: Tensor, variances: Tensor, indices: Tensor, excluded: Tensor) -> float:
    """Estimate which share of the pairs matters in float32, from some of the continuous tuples.

    A pair matters if its share is at least 2⁻²⁴ of the largest in its row. Means and variances are
    (c, k, r), integer tuples (c, m, r) and their flags of exclusion (c, m).
    """
    (contexts, k, _), m = means.shape, indices.shape[1]
    rows = max(8, min(_ROWS, 2**25 // m))
    picks = torch.randperm(contexts * k, generator=torch.Generator().manual_seed(0))[:rows]
    near = 0
    for pick in picks.tolist():
        context, row = divmod(pick, k)
        steps = indices[context].to(means.dtype) - means[context, row]
        distance = (steps.square_() / variances[context, row]).sum(-1)
        distance.masked_fill_(excluded[context], math.inf)
        near += int((distance <= distance.amin() + 2 * _LOST).sum())
    return near / (len(picks) * m)


def layer_near_share(problem: LayerProblem) -> float:
    """Estimate the same for one sample of a layer, without computing any share."""
    layer, x = problem.layer, problem.x
    space = layer.space()
    spans = [max(1, round(math.log2(n))) for n in space]
    with torch.no_grad(), sw.engine("reference"):
        wiring = layer.wiring(x)
        context = layer.context or layer.layout.default_context(wiring.means.shape[-2])
        means, variances = (t.reshape(-1, context, len(space)) for t in wiring[:2])
        indices = ops.sample(means, space, spans, layer.local_samples, layer.global_samples)
        return near_share(means, variances, indices, ops.mark_repeats(indices, space))


def _exact_output(problem: LayerProblem, indices: Tensor) -> Tensor:
    layer, x = problem.layer, problem.x
    shapes = sw.Shapes(layer.out_shape, tuple(x.shape[1:]))
    wiring = layer.wiring(x)
    contexts = indices.shape[-3]
    means, variances = (t.double().unflatten(-2, (contexts, -1)) for t in wiring[:2])
    values = wiring.values.double().unflatten(-1, (contexts, -1))
    excluded = ops.mark_repeats(indices, layer.space())
    shares = ops.spread(means, variances, values, indices, excluded)
    rows, cols, weights = layer.layout.place(indices, shares, shapes)
    rows, cols = (each.expand(len(x), -1) for each in (rows, cols))
    moved = x.double().flatten(1).gather(1, cols) * weights
    y = moved.new_zeros(len(x), math.prod(layer.out_shape)).scatter_add(1, rows, moved)
    return y.view(-1, *layer.out_shape)


def _seeded(device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(0)
