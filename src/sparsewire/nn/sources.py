"""Sources that do not read the input: free parameters, and constrained ones."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparsewire.annotations import Bool, Float
from sparsewire.checks import check_choice, check_count, check_range, constant
from sparsewire.engines import transformed
from sparsewire.nn.constraints import (
    BandedLayout,
    BlockDiagonalLayout,
    ConvolutionLayout,
    LowerTriangularLayout,
)
from sparsewire.nn.layout import Layout
from sparsewire.nn.schedule import Schedule, even_start
from sparsewire.ops.bound import EDGES, Edge, raw_variance

# An axis whose size may change counts as one of so many places where tuples are moved.
_OPEN = 64

# By how much raw variances move while means move by a place.
_WIDTH_SHARE = 0.2

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

    @torch.no_grad()
    def move(self, moved: Bool[Tensor, " k"], means: Float[Tensor, "k r"], width: float) -> None:
        """Put the tuples that are marked at these raw means, with a raw variance."""
        rows, goal = moved.unsqueeze(-1), means.to(self.raw_means.dtype)
        self.raw_means.copy_(torch.where(rows, goal, self.raw_means))
        self.raw_variances.masked_fill_(moved, width)

    def extra_repr(self) -> str:
        """Show the sizes."""
        k, r = self.raw_means.shape
        kind = "learned" if isinstance(self.values, nn.Parameter) else "fixed"
        return f"tuples={k}, rank={r}, values={kind}, edge={self.edge}"


class PacedTuples(FreeTuples):
    """Free tuples that move a number of places in each step, and settle by themselves.

    `raw_means` and `raw_variances` only collect what the optimiser does. What it changes in a step
    moves the tuples, in units in which the root mean square of all changes so far stands for the
    speed of the schedule times its factor. So tuples move alike at every learning rate and on axes
    of every length, follow a rate that falls, and come to rest; the same factor lets the variances
    fall. A step is counted when the parameters changed since the last forward pass in training.

    Args:
        sizes: Sizes of the learned columns; None where the size may change.
        tuples: Number of continuous tuples, k.
        together: Number of consecutive tuples that start at different places; all if not given.
        schedule: How fast the tuples move, and settle.
        scale: Values start uniformly between −scale and scale, if `values` is not given.
        variance: Initial variance on the longest axis, in places; about a fifth of its size if not
            given.
        **options: `values`, `learn_values`, `value_count`, `seed` and `layout` of `FreeTuples`.

    The means start at places that are spread evenly, see `even_start`.
    """

    steps: Tensor
    places: Tensor
    widths: Tensor

    def __init__(
        self,
        sizes: Sequence[int | None],
        tuples: int,
        *,
        together: int | None = None,
        schedule: Schedule | None = None,
        scale: float = 1.0,
        variance: float | None = None,
        **options: Any,
    ) -> None:
        self.sizes = tuple(_OPEN if n is None else n for n in sizes)
        self.together = tuples if together is None else together
        self.schedule = Schedule() if schedule is None else schedule
        self.scale = scale
        self.variance = variance
        if variance is not None:
            self.variance = check_range("variance", variance, 0.0, 1e6)
        super().__init__(tuples, len(self.sizes), edge="clamp", **options)

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Start anew, at step 0."""
        start = even_start(self.sizes, len(self.raw_means), self.together, generator)
        width = 0.0 if self.variance is None else raw_variance(self.variance, max(self.sizes))
        state = {"steps": torch.zeros(()), "places": start, "widths": start.new_full((), width)}
        state["widths"] = state["widths"].repeat(len(start))
        for name, parameter in self._collected():
            nn.init.zeros_(parameter)
            state[f"{name}_seen"], state[f"{name}_sum"] = parameter.clone(), torch.zeros(())
        for name, tensor in state.items():
            self.register_buffer(name, tensor.to(self.raw_means.device))
        if self.initial_value is None:
            self.values.uniform_(-self.scale, self.scale, generator=generator)
        else:
            self.values.fill_(self.initial_value)

    def forward(self) -> tuple[Float[Tensor, "k r"], Float[Tensor, " k"], Float[Tensor, " v"]]:
        """Return means as fractions of their axes, raw variances and values."""
        changes = {name: p - getattr(self, f"{name}_seen") for name, p in self._collected()}
        with torch.no_grad():
            changed = [(change != 0).any() for change in changes.values()]
            steps = self.steps + torch.stack(changed).any()
            speed = self.schedule.speed * self.schedule.factor(steps)
            sums = {n: getattr(self, f"{n}_sum") + c.square().mean() for n, c in changes.items()}
        spans = constant([max(n - 1, 1) for n in self.sizes], torch.float32, steps.device)
        by_means, by_widths = (
            _paced(change, speed * share, sums[name] / steps.clamp(min=1))
            for (name, change), share in zip(changes.items(), (1.0, _WIDTH_SHARE), strict=True)
        )
        means, widths = (self.places + by_means / spans).clamp(0, 1), self.widths + by_widths
        # Under a transform of torch.func, a module may not change.
        if self.training and torch.is_grad_enabled() and not transformed():
            self._advance(steps, means, widths, sums)
        return means, widths, self.values

    def _apply(self, fn: Any, recurse: bool = True) -> "PacedTuples":
        """Convert, but leave the state in float32 where half precision could not hold places."""
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, tensor in self._buffers.items():
            if name != "values" and tensor is not None and tensor.element_size() < 4:
                self._buffers[name] = before[name].to(tensor.device)  # pyright: ignore
        return self

    @torch.no_grad()
    def _advance(
        self, steps: Tensor, means: Tensor, widths: Tensor, sums: dict[str, Tensor]
    ) -> None:
        for mine, new in ((self.steps, steps), (self.places, means), (self.widths, widths)):
            mine.copy_(new)
        for name, parameter in self._collected():
            getattr(self, f"{name}_seen").copy_(parameter)
            getattr(self, f"{name}_sum").copy_(sums[name])

    def _collected(self) -> tuple[tuple[str, Tensor], ...]:
        """The parameters whose changes move the tuples."""
        return ("means", self.raw_means), ("variances", self.raw_variances)

    @torch.no_grad()
    def move(self, moved: Bool[Tensor, " k"], means: Float[Tensor, "k r"], width: float) -> None:
        """Put the tuples that are marked at these fractions of the axes, with a raw variance."""
        rows = moved.unsqueeze(-1)
        self.places.copy_(torch.where(rows, means.to(self.places.dtype), self.places))
        self.widths.masked_fill_(moved, width)
        for name, parameter in self._collected():
            seen = getattr(self, f"{name}_seen")
            mask = rows if parameter.dim() > 1 else moved
            seen.copy_(torch.where(mask, parameter, seen))

    @property
    def variance_factor(self) -> Float[Tensor, ""]:
        """What multiplies the variances above their floor."""
        return self.schedule.factor(self.steps)


def _paced(change: Tensor, speed: Tensor, mean_square: Tensor) -> Tensor:
    """Return the change in units in which the typical one is `speed`.

    Its gradient is that of the change itself, so that it does not depend on earlier steps.
    """
    with torch.no_grad():
        unit = torch.where(mean_square > 0, speed * mean_square.rsqrt(), 1.0)
    return change + (unit * change - change).detach()


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
