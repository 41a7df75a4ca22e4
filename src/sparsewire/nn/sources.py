"""Sources that do not read the input: free parameters, and constrained ones."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparsewire.annotations import Bool, Float
from sparsewire.checks import check_choice, check_count, check_range
from sparsewire.nn.constraints import (
    BandedLayout,
    BlockDiagonalLayout,
    ConvolutionLayout,
    LowerTriangularLayout,
)
from sparsewire.nn.layout import Layout
from sparsewire.nn.pace import Pace
from sparsewire.nn.schedule import Schedule, start_by_mass
from sparsewire.ops.bound import EDGES, Edge

# An axis whose size may change, or is not known yet, counts as one of so many places.
_OPEN = 64

_LARGEST_VALUE = torch.finfo(torch.float32).max


class FreeTuples(nn.Module):
    """Free sparse parameters: k raw index tuples, k raw variances and the values.

    Args:
        tuples: Number of continuous tuples, k.
        rank: Number of learned columns.
        values: Initial value of all tuples. If not given they are sampled from N(0, 1), with a
            schedule uniformly between −scale and scale.
        learn_values: Whether the values are parameters, or stay as they are.
        value_count: Number of values, if several tuples share one; k if not given.
        edge: How raw means are folded onto the index axes, see `sparsewire.ops.fractions`: without
            a schedule only, `"sigmoid"` if not given.
        seed: Seed of the initialisation; torch's global generator is used if not given.
        layout: Where the learned columns lie in W; plain if not given.
        schedule: How fast the tuples move, and settle, see `Pace`; None for the paper's method.
        sizes: Sizes of the learned columns, None where the size may change; those of the layer if
            not given. Needed with a schedule only, as are the arguments below.
        together: Number of consecutive tuples that start at different places; all if not given.
        scale: Largest size of the initial values.
        variance: Initial variance on the longest axis, in places; about a fifth of its size if not
            given.
        by_inputs: Whether `start_by` is to be called with the first inputs.

    Without a schedule all raw numbers start from N(0, 1), as in the paper's code, which puts the
    means around the middle of every axis and makes the variances about a fifth of its size. With
    one the means start at places that are spread evenly.

    Examples:
        >>> source = FreeTuples(tuples=3, rank=2, values=1.0, learn_values=False)
        >>> [tuple(t.shape) for t in source()], [name for name, _ in source.named_parameters()]
        ([(3, 2), (3,), (3,)], ['raw_means', 'raw_variances'])
    """

    adaptive = False  # also behind wrappers that hide the signature of forward
    values: Tensor
    pace: Pace | None

    def __init__(
        self,
        tuples: int,
        rank: int,
        *,
        values: float | None = None,
        learn_values: bool = True,
        value_count: int | None = None,
        edge: Edge | None = None,
        seed: int | None = None,
        layout: Layout | None = None,
        schedule: Schedule | None = None,
        sizes: Sequence[int | None] | None = None,
        together: int | None = None,
        scale: float = 1.0,
        variance: float | None = None,
        by_inputs: bool = False,
    ) -> None:
        super().__init__()
        check_count("tuples", tuples, least=1)
        check_count("rank", rank, least=1)
        if values is not None:
            values = check_range("values", values, -_LARGEST_VALUE, _LARGEST_VALUE)
        count = tuples if value_count is None else check_count("value_count", value_count, least=1)
        usual: Edge = "sigmoid"
        if schedule is not None:
            usual = "clamp"
            if not isinstance(schedule, Schedule):
                kind = type(schedule).__name__
                raise TypeError(f"schedule must be a sparsewire.Schedule or None; got {kind}")
            if edge is not None:
                raise ValueError(f"edge must be None with a schedule; got {edge!r}")
        self.edge: Edge = usual if edge is None else check_choice("edge", edge, EDGES)
        self.layout = Layout() if layout is None else layout
        self.initial_value, self.scale = values, scale
        self.variance = None if variance is None else check_range("variance", variance, 0.0, 1e6)
        self.sizes = sizes if sizes is None else tuple(_OPEN if n is None else n for n in sizes)
        self.together = tuples if together is None else together
        self.seed = None if seed is None else check_count("seed", seed)
        self.raw_means = nn.Parameter(torch.empty(tuples, rank))
        self.raw_variances = nn.Parameter(torch.empty(tuples))
        if learn_values:
            self.values = nn.Parameter(torch.empty(count))
        else:
            self.register_buffer("values", torch.empty(count))
        self.by_inputs = by_inputs
        self.pace = None
        if schedule is not None:
            self.pace = Pace(schedule, schedule.first_speed(learn_values), self.raw_means)
        self._begin()

    def _begin(self) -> None:
        seed = self.seed
        self.reset_parameters(None if seed is None else torch.Generator().manual_seed(seed))

    def start_in(self, sizes: tuple[int, ...]) -> None:
        """Start anew among the places of a layer, where there is a schedule and no sizes yet."""
        if self.pace is not None and self.sizes is None:
            self.sizes = sizes
            self._begin()

    @torch.no_grad()
    def start_by(self, mass: Float[Tensor, " n"]) -> None:
        """Start where there is mass, a number for each place in row-major order; once."""
        if self.pace is not None and self.sizes is not None:
            places = self.pace.places
            places.copy_(start_by_mass(places, mass, self.sizes, self.together))
        self.waits = False

    def _load_from_state_dict(self, *args: Any) -> None:  # pyright: ignore
        self.waits = False
        super()._load_from_state_dict(*args)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Start anew, with other random numbers."""
        #: Whether the start is still to be chosen by the first inputs.
        self.waits = self.by_inputs
        if self.pace is not None:
            nn.init.zeros_(self.raw_means)
            nn.init.zeros_(self.raw_variances)
            sizes = self.sizes or (_OPEN,) * self.raw_means.shape[1]
            self.pace.start(sizes, self.together, self.variance, generator)
        else:
            self.raw_means.normal_(generator=generator)
            if self.edge != "sigmoid":
                self.raw_means.sigmoid_()  # the same start, in the units of the other edges
            self.raw_variances.normal_(generator=generator)
        if self.initial_value is not None:
            self.values.fill_(self.initial_value)
        elif self.pace is not None:
            self.values.uniform_(-self.scale, self.scale, generator=generator)
        else:
            self.values.normal_(generator=generator)

    def forward(self) -> tuple[Float[Tensor, "k r"], Float[Tensor, " k"], Float[Tensor, " v"]]:
        """Return raw means, raw variances and values."""
        if self.pace is None:
            return self.raw_means, self.raw_variances, self.values
        return *self.pace(self.raw_means, self.raw_variances), self.values

    @property
    def train_mode(self) -> str:
        """What layers do in training, if not told otherwise."""
        return "sampled" if self.pace is None else "straight-through"

    @property
    def variance_factor(self) -> Float[Tensor, ""] | None:
        """What multiplies the variances above their floor."""
        return None if self.pace is None else self.pace.variance_factor

    @torch.no_grad()
    def move(self, moved: Bool[Tensor, " k"], means: Float[Tensor, "k r"], width: float) -> None:
        """Put the tuples that are marked at these raw means, with a raw variance."""
        if self.pace is not None:
            self.pace.move(moved, means, width, self.raw_means, self.raw_variances)
            return
        rows, goal = moved.unsqueeze(-1), means.to(self.raw_means.dtype)
        self.raw_means.copy_(torch.where(rows, goal, self.raw_means))
        self.raw_variances.masked_fill_(moved, width)

    def extra_repr(self) -> str:
        """Show the sizes."""
        k, r = self.raw_means.shape
        kind = "learned" if isinstance(self.values, nn.Parameter) else "fixed"
        return f"tuples={k}, rank={r}, values={kind}, edge={self.edge}"


class Constraint(FreeTuples):
    """Free tuples of a layer whose matrix is of one kind; with a schedule, unless it is None."""

    def __init__(self, tuples: int, rank: int, layout: Layout, **options: Any) -> None:
        options = {"schedule": Schedule()} | options
        super().__init__(tuples, rank, layout=layout, **options)


class LowerTriangular(Constraint):
    """A sparse matrix with nothing above its diagonal.

    This and the sources below take `values`, `learn_values`, `seed`, `schedule` and `edge` as
    `FreeTuples`; they have a schedule if none is given.

    Examples:
        >>> import sparsewire as sw
        >>> source = sw.LowerTriangular(tuples=20, seed=0)
        >>> W = sw.HyperLayer(source, in_shape=(6,), out_shape=(6,)).freeze().dense()
        >>> bool((W.triu(1) == 0).all())
        True
    """

    def __init__(self, tuples: int, **options: Any) -> None:
        super().__init__(tuples, 2, LowerTriangularLayout(), **options)


class Banded(Constraint):
    """A sparse matrix with W[i, j] = 0 unless −below ≤ j − i ≤ above.

    Examples:
        >>> import sparsewire as sw
        >>> source = sw.Banded(below=1, above=0, tuples=20, seed=0)
        >>> W = sw.HyperLayer(source, in_shape=(6,), out_shape=(6,)).freeze().dense()
        >>> bool((W == W.tril().triu(-1)).all())
        True
    """

    def __init__(self, below: int, above: int, tuples: int, **options: Any) -> None:
        super().__init__(tuples, 2, BandedLayout(below, above), **options)


class BlockDiagonal(Constraint):
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
        super().__init__(blocks * tuples, 2, layout, **{"together": tuples} | options)


class Convolution(Constraint):
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
        super().__init__(tuples, 2 + len(layout.kernel), layout, **options)
