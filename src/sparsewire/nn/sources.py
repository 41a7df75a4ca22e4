"""Sources that do not read the input: free parameters, and constrained ones."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparsewire.annotations import Float
from sparsewire.checks import check_choice, check_count, check_range
from sparsewire.nn.constraints import (
    BandedLayout,
    BlockDiagonalLayout,
    ConvolutionLayout,
    LowerTriangularLayout,
)
from sparsewire.nn.layout import Layout
from sparsewire.ops.bound import EDGES, Edge

_LARGEST_VALUE = torch.finfo(torch.float32).max


class FreeTuples(nn.Module):
    """Free sparse parameters: k raw index tuples, k raw variances and the values.

    Args:
        tuples: Number of continuous tuples, k.
        rank: Number of learned columns.
        values: Initial value of all tuples; sampled from N(0, 1) if not given.
        learn_values: Whether the values are parameters, or stay as they are.
        value_count: Number of values, if several tuples share one; k if not given.
        edge: How raw means are folded onto the index axes, see `sparsewire.ops.fractions`.
        seed: Seed of the initialisation; torch's global generator is used if not given.
        layout: Where the learned columns lie in W; plain if not given.

    All raw numbers start from N(0, 1), as in the paper's code, which puts the means around the
    middle of every axis and makes the variances about a fifth of its size.

    Examples:
        >>> source = FreeTuples(tuples=3, rank=2, values=1.0, learn_values=False)
        >>> [tuple(t.shape) for t in source()], [name for name, _ in source.named_parameters()]
        ([(3, 2), (3,), (3,)], ['raw_means', 'raw_variances'])
    """

    adaptive = False  # also behind wrappers that hide the signature of forward
    values: Tensor

    def __init__(
        self,
        tuples: int,
        rank: int,
        *,
        values: float | None = None,
        learn_values: bool = True,
        value_count: int | None = None,
        edge: Edge = "sigmoid",
        seed: int | None = None,
        layout: Layout | None = None,
    ) -> None:
        super().__init__()
        check_count("tuples", tuples, least=1)
        check_count("rank", rank, least=1)
        if values is not None:
            values = check_range("values", values, -_LARGEST_VALUE, _LARGEST_VALUE)
        count = tuples if value_count is None else check_count("value_count", value_count, least=1)
        self.edge: Edge = check_choice("edge", edge, EDGES)
        self.layout = Layout() if layout is None else layout
        self.initial_value = values
        self.raw_means = nn.Parameter(torch.empty(tuples, rank))
        self.raw_variances = nn.Parameter(torch.empty(tuples))
        if learn_values:
            self.values = nn.Parameter(torch.empty(count))
        else:
            self.register_buffer("values", torch.empty(count))
        seeded = None if seed is None else torch.Generator().manual_seed(check_count("seed", seed))
        self.reset_parameters(seeded)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Sample all parameters anew."""
        self.raw_means.normal_(generator=generator)
        if self.edge != "sigmoid":
            self.raw_means.sigmoid_()  # the same start, in the units of the other edges
        self.raw_variances.normal_(generator=generator)
        if self.initial_value is None:
            self.values.normal_(generator=generator)
        else:
            self.values.fill_(self.initial_value)

    def forward(self) -> tuple[Float[Tensor, "k r"], Float[Tensor, " k"], Float[Tensor, " v"]]:
        """Return raw means, raw variances and values."""
        return self.raw_means, self.raw_variances, self.values

    def extra_repr(self) -> str:
        """Show the sizes."""
        k, r = self.raw_means.shape
        kind = "learned" if isinstance(self.values, nn.Parameter) else "fixed"
        return f"tuples={k}, rank={r}, values={kind}, edge={self.edge}"


class LowerTriangular(FreeTuples):
    """A sparse matrix with nothing above its diagonal.

    This and the sources below take `values`, `learn_values`, `edge` and `seed` as `FreeTuples`.

    Examples:
        >>> import sparsewire as sw
        >>> source = sw.LowerTriangular(tuples=20, seed=0)
        >>> W = sw.HyperLayer(source, in_shape=(6,), out_shape=(6,)).freeze().dense()
        >>> bool((W.triu(1) == 0).all())
        True
    """

    def __init__(self, tuples: int, **options: Any) -> None:
        super().__init__(tuples, 2, layout=LowerTriangularLayout(), **options)


class Banded(FreeTuples):
    """A sparse matrix with W[i, j] = 0 unless −below ≤ j − i ≤ above.

    Examples:
        >>> import sparsewire as sw
        >>> source = sw.Banded(below=1, above=0, tuples=20, seed=0)
        >>> W = sw.HyperLayer(source, in_shape=(6,), out_shape=(6,)).freeze().dense()
        >>> bool((W == W.tril().triu(-1)).all())
        True
    """

    def __init__(self, below: int, above: int, tuples: int, **options: Any) -> None:
        super().__init__(tuples, 2, layout=BandedLayout(below, above), **options)


class BlockDiagonal(FreeTuples):
    """A sparse matrix of equal blocks on the diagonal, each with its own `tuples` tuples.

    Examples:
        >>> import sparsewire as sw
        >>> source = sw.BlockDiagonal(blocks=2, tuples=5, values=1.0, seed=0)
        >>> W = sw.HyperLayer(source, in_shape=(6,), out_shape=(4,)).freeze().dense()
        >>> W[:2, :3].sum().item(), W[2:, 3:].sum().item(), W.sum().item()
        (5.0, 5.0, 10.0)
    """

    def __init__(self, blocks: int, tuples: int, **options: Any) -> None:
        layout = BlockDiagonalLayout(blocks, tuples)
        super().__init__(blocks * tuples, 2, layout=layout, **options)


class Convolution(FreeTuples):
    """A convolution whose kernel is sparse: `tuples` learned taps, repeated at every position.

    Learned are the output channel, the input channel and the offset inside the kernel of every
    tap. The cost grows with taps × samples × positions and not with the size of the kernel, which
    may be as large as the image.

    Args:
        kernel: Sizes of the kernel, one for each spatial axis.
        stride: Step between positions.
        padding: Zeros around the input, on each side; kernel // 2 if not given, which keeps the
            size of the image for odd kernels.

    Examples:
        >>> import sparsewire as sw
        >>> source = sw.Convolution(kernel=(7, 7), tuples=5, seed=0)
        >>> layer = sw.HyperLayer(source, in_shape=(3, 28, 28), out_shape=(8, 28, 28))
        >>> layer(torch.randn(2, 3, 28, 28)).shape
        torch.Size([2, 8, 28, 28])
    """

    def __init__(
        self,
        kernel: Sequence[int],
        tuples: int,
        stride: int = 1,
        padding: int | Sequence[int] | None = None,
        **options: Any,
    ) -> None:
        layout = ConvolutionLayout(kernel, stride, padding)
        super().__init__(tuples, 2 + len(layout.kernel), layout=layout, **options)
