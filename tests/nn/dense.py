"""What the tests of the layers share: one layer of every kind, and weights built without them."""

import itertools
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from tests.helpers import sampled_layer, seeded
from torch import Tensor, nn

from sparsewire import (
    Banded,
    BlockDiagonal,
    Convolution,
    FreeTuples,
    FrozenLayer,
    HyperLayer,
    LowerTriangular,
    Sample,
    Schedule,
    Wiring,
    fan_in,
)

MODES = ("rounded", "sampled", "expected")

Points = list[tuple[int, ...]]


def _sparse(in_shape: Sequence[int], out_shape: Sequence[int], **fixed: Any) -> Callable[..., Any]:
    return lambda **options: sampled_layer(in_shape, out_shape, **{"seed": 0, **fixed, **options})


def _hyper(
    source: Callable[..., Any], in_shape: Sequence[int], out_shape: Sequence[int], **fixed: Any
) -> Callable[..., Any]:
    fixed = {"schedule": None} | fixed
    return lambda **options: HyperLayer(source(seed=0, **fixed), in_shape, out_shape, **options)


# One small layer of every kind that shares its wiring; each takes the options of `HyperLayer`.
KINDS: dict[str, Callable[..., HyperLayer]] = {
    "free": _sparse((5,), (4,), tuples=6),
    "high rank": _sparse((2, 3), (2, 1, 2), tuples=4, local_samples=1, global_samples=1),
    "contexts": _sparse((5,), (4,), tuples=6, context=2),
    "fixed values": _sparse((5,), (4,), tuples=6, values=1.0, learn_values=False),
    "shared values": _sparse((5,), (4,), tuples=6, share_values=[0, 1, 1, 2, 0, 2]),
    "student": _sparse((5,), (4,), tuples=6, kernel="student", edge="wrap"),
    "template": _sparse((2, 3), (3,), template=fan_in((3,), (2, 3), tuples=2)),
    "scheduled": _sparse((5,), (4,), tuples=6, schedule=Schedule()),
    "scheduled band": _hyper(
        Banded, (5,), (4,), below=1, above=1, tuples=6, schedule=Schedule()
    ),
    "lower": _hyper(LowerTriangular, (5,), (4,), tuples=6),
    "banded": _hyper(Banded, (5,), (4,), below=1, above=1, tuples=6),
    "blocks": _hyper(BlockDiagonal, (6,), (4,), blocks=2, tuples=3),
    "convolution": _hyper(
        Convolution, (2, 5), (3, 3), kernel=(3,), tuples=4, stride=2, padding=1
    ),
}  # fmt: skip

SCHEDULED = {"scheduled", "scheduled band"}

of_every_kind = pytest.mark.parametrize("kind", KINDS)


class Look(nn.Module):
    """A source that reads the input: raw numbers (*b, k, r + 2) for each instance."""

    def __init__(self, in_shape: Sequence[int], tuples: int, rank: int) -> None:
        super().__init__()
        self.dims, self.sizes = len(in_shape), (tuples, rank + 2)
        self.net = nn.Linear(math.prod(in_shape), math.prod(self.sizes))
        with torch.no_grad():
            for seed, tensor in enumerate(self.parameters()):
                tensor.normal_(generator=seeded(seed))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.flatten(-self.dims)).unflatten(-1, self.sizes)


def points_of(indices: Tensor) -> list[Points]:
    """The distinct integer tuples of every context."""
    return [sorted({tuple(row) for row in context}) for context in indices.tolist()]


def window_points(means: Tensor, space: Sequence[int], spans: Sequence[int]) -> Points:
    """Every tuple of the windows around some means, once."""
    return sorted({p for mean in means.tolist() for p in _window(mean, space, spans)})


def _window(
    mean: Sequence[float], space: Sequence[int], spans: Sequence[int]
) -> Iterator[tuple[int, ...]]:
    starts = [
        min(max(round(m) - s // 2, 0), n - s) for m, n, s in zip(mean, space, spans, strict=True)
    ]
    return itertools.product(
        *(range(start, start + s) for start, s in zip(starts, spans, strict=True))
    )


def weights_over(
    wiring: Wiring,
    contexts: Sequence[Points],
    space: Sequence[int],
    degrees: float | None = None,
) -> Tensor:
    """W when each tuple deals its value out over the points of its context, by SciPy's densities.

    Gaussian, or Student-t with these degrees of freedom.
    """
    dense = np.zeros(space)
    means, variances, values = (t.detach().double().numpy() for t in wiring)
    groups = np.split(np.arange(len(values)), len(contexts))
    for points, group in zip(contexts, groups, strict=True):
        for i in group:
            covariance: Any = np.diag(variances[i])
            if degrees is None:
                law = stats.multivariate_normal(means[i], covariance)
            else:
                law = stats.multivariate_t(means[i], covariance, df=degrees)
            density = np.exp(law.logpdf(np.array(points, dtype=float)).reshape(-1))
            for point, share in zip(points, density / density.sum(), strict=True):
                dense[point] += values[i] * share
    return torch.from_numpy(dense)


def weights_of(draw: Sample, space: Sequence[int]) -> Tensor:
    """W of a draw: values that meet add up. For layers that learn every column, without prefix."""
    return filled(draw.indices.flatten(0, -2).tolist(), draw.values.flatten().tolist(), space)


def filled(
    indices: Iterable[Sequence[int]], values: Iterable[float], shape: Sequence[int]
) -> Tensor:
    """A dense tensor from index tuples and values, one after the other."""
    dense = np.zeros(shape)
    for index, value in zip(indices, values, strict=True):
        dense[tuple(index)] += value
    return torch.from_numpy(dense)


def apply_dense(dense: Tensor, x: Tensor, out_rank: int, features: int = 0) -> Tensor:
    """y[b.., f..] = Σ W[b.., a..] x[a.., f..] with a dense W, any batch."""
    outs, ins = dense.shape[:out_rank], dense.shape[out_rank:]
    batch, rest = x.shape[: x.dim() - features - len(ins)], x.shape[x.dim() - features :]
    matrix = dense.reshape(math.prod(outs), math.prod(ins)).to(x.dtype)
    y = matrix @ x.reshape(*batch, math.prod(ins), math.prod(rest))
    return y.reshape(*batch, *outs, *rest)


def matrix_of(layer: nn.Module, in_shape: Sequence[int] | None = None, **call: Any) -> Tensor:
    """The matrix that one pass multiplies by, read off by passing every basis vector."""
    ins: Any = layer.in_shape if in_shape is None else in_shape
    tensors = itertools.chain(layer.parameters(), layer.buffers())
    dtype = next(tensor.dtype for tensor in tensors if tensor.is_floating_point())
    basis = torch.eye(math.prod(ins), dtype=dtype).view(-1, *ins)
    return layer(basis, **call).flatten(1).T


def gradients_of(layer: nn.Module, loss: Tensor) -> OrderedDict[str, Tensor]:
    """Gradients of a loss by parameter name."""
    names, tensors = zip(*layer.named_parameters(), strict=True)
    return OrderedDict(zip(names, torch.autograd.grad(loss, tensors), strict=True))


def random_input(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """The same numbers in every test and dtype."""
    return torch.randn(shape, dtype=torch.float64, generator=seeded(7)).to(dtype)


def input_for(
    layer: HyperLayer | FrozenLayer, *prefix: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """A batch for a layer, with two features along each of their axes."""
    sizes = (n for n in layer.in_shape if n is not None)
    return random_input(*prefix, *sizes, *[2] * layer.features, dtype=dtype)


@torch.no_grad()
def randomise(layer: HyperLayer) -> HyperLayer:
    """Give a layer parameters, the bias too, that it does not start from."""
    for seed, parameter in enumerate(layer.parameters()):
        parameter.normal_(generator=seeded(seed + 10))
    return layer


def tuples_of(layer: HyperLayer) -> FreeTuples:
    """The free parameters of a layer."""
    assert isinstance(layer.source, FreeTuples)
    return layer.source


@torch.no_grad()
def set_raw(layer: HyperLayer, means: Sequence[Sequence[float]], values: Sequence[float]) -> None:
    """Put the tuples somewhere."""
    tuples_of(layer).raw_means.copy_(torch.tensor(means))
    tuples_of(layer).values.copy_(torch.tensor(values))


def trained(kind: str, **options: Any) -> HyperLayer:
    """A layer in evaluation, with a bias, that is ready to be frozen."""
    return randomise(KINDS[kind](bias=True, **options).eval())


def empty_like(frozen: FrozenLayer, trainable: bool = False) -> FrozenLayer:
    """A layer of the same shapes with nothing in it."""
    options = {"bias": frozen.bias is not None, "features": frozen.features}
    return FrozenLayer(frozen.in_shape, frozen.out_shape, trainable=trainable, **options)
