"""The sparse hyperlayer: a sparse layer whose parameters come from a source."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Generator, Tensor, nn

from sparsewire.annotations import Float, Int
from sparsewire.checks import check_choice, check_count, check_range, check_rank, check_saved
from sparsewire.nn.apply import contract_placed, join_batch, read_directly, split_batch
from sparsewire.nn.frozen import FrozenLayer, LinearMap
from sparsewire.nn.layout import Placed, Shapes, Template, choose_layout, region_sizes
from sparsewire.nn.sources import FreeTuples
from sparsewire.nn.wiring import (
    Sample,
    Wiring,
    check_value_numbers,
    read_source,
    reads_input,
    split_sample,
    without_copies,
)
from sparsewire.ops import bound_variances, mark_repeats, rounded, sample, spread, window
from sparsewire.ops.bound import EDGES, Edge
from sparsewire.ops.density import DEGREES, DENSITIES, Density

Mode = Literal["rounded", "sampled", "expected", "straight-through"]
MODES: tuple[Mode, ...] = get_args(Mode)
_SAMPLING = "sampled", "straight-through"


class HyperLayer(LinearMap):
    """A sparse layer whose index tuples, variances and values come from a source.

    y[b..] = Σ W[b.., a..] x[a..] (+ bias), with W sampled anew in each forward pass in training,
    by the five stages of `sparsewire.ops`. In evaluation the means are rounded, without sampling.

    Args:
        source: Module that returns raw parameters. If its `forward` takes an argument it is given
            the input (an adaptive layer: one wiring for each instance); if not, it is called
            without (a constraint, free parameters: one wiring for the batch). An attribute
            `adaptive` of the source, True or False, overrules the signature. It returns either
            a tensor (*b, k, r + 2), or raw means (*b, k, r), raw variances (*b, k) or (*b, 1), and
            values (*b, k), (*b, 1) or None for ones. `b` is the batch of the input, or nothing.
        in_shape: Sizes of the input axes. `None` marks an axis whose size may change between calls.
        out_shape: Sizes of the output axes.
        template: Index matrix (k, rank of W), output columns first, that fixes some columns for
            each tuple; columns of −1 are learned. See `fan_in`.
        local_samples: Integer tuples sampled around each continuous tuple, the paper's a_l.
        global_samples: Integer tuples sampled from everywhere, the paper's a_g.
        region: Sizes of the local region for each learned column, or one number for all (at most
            the size of each); log₂ of each size if not given.
        context: Number of tuples that compete: repeats are removed, and shares normalised, among
            the integer tuples of one context. All tuples if not given. With a template a context
            holds neighbouring rows with the same fixed columns: the largest number that divides
            all such runs, if not given.
        share_values: Number of the value that each tuple takes, for values shared between tuples.
        wirings: How many wirings to sample for a batch that shares its parameters (at most one for
            each instance). More try more places in a step, and cost more.
        edge: How raw means are folded onto the index axes: `"sigmoid"`, `"clamp"` or `"wrap"`.
            Taken from the source, or `"sigmoid"`, if not given.
        variance_scale: Factor of the variances, see `sparsewire.ops.bound_variances`.
        variance_floor: Smallest variance, the paper's τ.
        kernel: The density around a mean: `"gaussian"`, or the heavy-tailed `"student"`.
        degrees: Degrees of freedom of `"student"`.
        tolerance: Share of its value that a tuple may lose to places too far away to matter, see
            `sparsewire.ops.spread`; 0 for none.
        bias: Whether to add a dense bias to the output.
        train_mode: What a pass in training does: `"sampled"`, the paper's, or `"straight-through"`:
            the output of rounded tuples, as in evaluation, with the gradient of a sampled pass for
            means and variances, and the choice for sources with a schedule.
        evaluation: What `eval()` does: `"rounded"` (each value at its nearest index), `"sampled"`
            (as in training) or `"expected"` (each value spread over every index of a window:
            the expectation under its density, without sampling).
        window: Sizes of the window of `"expected"`, as `region`; the region if not given.
        features: How many last dimensions of the input are mapped alike (matrix-by-matrix: 1).

    Parameters that are not finite are refused on the CPU. On other devices that check would make
    the host wait, so there they give valid indices and an output of NaN.

    Examples:
        >>> import sparsewire as sw
        >>> class Look(torch.nn.Module):  # a network that picks one pixel for each of 4 outputs
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 4 * 4))
        ...
        ...     def forward(self, x):
        ...         return self.net(x).view(-1, 4, 4)  # two columns, a variance, a value
        >>> template = sw.fan_in(out_shape=(4,), in_shape=(8, 8))
        >>> layer = sw.HyperLayer(Look(), in_shape=(8, 8), out_shape=(4,), template=template)
        >>> layer(torch.randn(32, 8, 8)).shape
        torch.Size([32, 4])
    """

    value_of: Tensor | None
    #: Whether there was a pass in training.
    was_trained = False
    #: Called with every sample of a pass in training, before it is used; see `sparsewire.Rewire`.
    on_sample: Callable[[Sample], None] | None = None
    #: A number on the layer's device that multiplies what variances have above their floor. Change
    #: it in place, also between replays of a captured step: at 0 all variances are at the floor.
    variance_factor: Tensor | None = None
    #: A number from 0 to 1 on the layer's device: how far the output of a sampled pass in training
    #: is moved to that of rounded tuples, its gradient unchanged. 1 is straight-through rounding.
    #: Change it in place, as `variance_factor`.
    hardness: Tensor | None = None

    def __init__(
        self,
        source: Callable[..., Any],
        in_shape: Sequence[int | None],
        out_shape: Sequence[int],
        *,
        template: Int[Tensor, "k r"] | None = None,
        local_samples: int = 2,
        global_samples: int = 8,
        region: int | Sequence[int] | None = None,
        context: int | None = None,
        share_values: Sequence[int] | Int[Tensor, " k"] | None = None,
        wirings: int = 1,
        edge: Edge | None = None,
        variance_scale: float = 0.1,
        variance_floor: float = 0.1,
        kernel: Density = "gaussian",
        degrees: float = 1.0,
        tolerance: float = 1e-7,
        bias: bool = False,
        train_mode: Mode | None = None,
        evaluation: Mode = "rounded",
        window: int | Sequence[int] | None = None,
        features: int = 0,
    ) -> None:
        super().__init__(in_shape, out_shape, features)
        if not callable(source):
            raise TypeError(f"source must be a module; got {type(source).__name__}")
        self.source: Any = source
        self.adaptive = reads_input(source)
        self.local_samples = check_count("local_samples", local_samples)
        self.global_samples = check_count("global_samples", global_samples)
        self.region = region
        self.context = None if context is None else check_count("context", context, least=1)
        self.wirings = check_count("wirings", wirings, least=1)
        edge = getattr(source, "edge", None) if edge is None else edge
        self.edge: Edge = "sigmoid" if edge is None else check_choice("edge", edge, EDGES)
        self.variance_scale = check_range("variance_scale", variance_scale, 0.0, 1e6)
        self.variance_floor = check_range("variance_floor", variance_floor, 0.0, 1e6)
        self.kernel: Density = check_choice("kernel", kernel, DENSITIES)
        self.degrees = check_range("degrees", degrees, *DEGREES)
        self.tolerance = check_range("tolerance", tolerance, 0.0, 1.0)
        train_mode = getattr(source, "train_mode", "sampled") if train_mode is None else train_mode
        self.train_mode: Mode = check_choice("train_mode", train_mode, MODES)
        self.evaluation: Mode = check_choice("evaluation", evaluation, MODES)
        self.window = window
        self.layout = choose_layout(source, template)
        numbers, self._value_count = check_value_numbers(share_values)
        self.register_buffer("value_of", numbers)
        self.bias = nn.Parameter(torch.zeros(self.out_shape)) if bias else None
        if None not in self.in_shape:
            space = check_rank("the learned space", self.layout.space(self._shapes(None)))
            region_sizes("region", region, space)
            region_sizes("window", window, space)
            if isinstance(source, FreeTuples):
                source.start_in(space)

    def forward(
        self,
        x: Float[Tensor, "*x"],
        *,
        mode: Mode | None = None,
        generator: Generator | None = None,
    ) -> Float[Tensor, "*y"]:
        """Transform a batch.

        Args:
            x: Input of shape (*b, *in_shape, *features), any batch prefix.
            mode: One of the modes, for this call; otherwise `train_mode` in training and
                `evaluation` in evaluation.
            generator: Source of randomness, on the device of `x`. Do not recompute such a call
                (activation checkpointing): it would sample again, from another state of the
                generator. `torch.compile` does not take one.

        Returns:
            Output of shape (*b, *out_shape, *features) in the dtype of `x`.
        """
        (shapes, batch), mode = self._shapes_and_batch(x), self._mode(mode)
        wiring = self._wiring(x, shapes)
        if (prefix := tuple(wiring.values.shape[:-1])) not in ((), batch):
            raise ValueError(
                f"source must return one wiring, or one for each instance of the batch {batch}; "
                f"got a prefix of {prefix}"
            )
        y = self._transform(x, wiring, shapes, mode, generator)
        if mode == "sampled" and self.training and self.hardness is not None:
            with torch.no_grad():
                hard = self._transform(x, wiring, shapes, "rounded", generator)
                change = ((hard - y) * self.hardness).to(y.dtype)
            y = y + change
        return y

    def wiring(self, x: Float[Tensor, "*x"] | None = None) -> Wiring:
        """Return means, variances and values in the learned index space.

        Give `x` to an adaptive layer, or to one whose input sizes may change.
        """
        return self._wiring(x, self._shapes(x))

    def sample(
        self,
        x: Float[Tensor, "*x"] | None = None,
        *,
        mode: Mode | None = None,
        generator: Generator | None = None,
    ) -> Sample:
        """Return the integer tuples and values of one pass, in the learned index space.

        Takes `x` as `wiring` does, and the options of `forward`.
        """
        shapes = self._shapes(x)
        return self._sample(self._wiring(x, shapes), shapes, self._mode(mode), generator)

    @torch.no_grad()
    def freeze(
        self, in_shape: Sequence[int] | None = None, *, trainable: bool = False
    ) -> FrozenLayer:
        """Return a module that holds only the rounded sparse tensor, with the same forward.

        Args:
            in_shape: Sizes of the input, where the layer leaves some open.
            trainable: Whether the values and the bias are parameters, to be learned further at
                fixed places.
        """
        if self.adaptive:
            raise TypeError(
                "freeze needs one wiring for every input; the source of this layer reads the input "
                "and gives each its own"
            )
        shapes = self._shapes(None) if in_shape is None else self._shapes_for(in_shape)
        sample = self._sample(self._wiring(None, shapes), shapes, "rounded", None)
        placed = self.layout.place(*sample, shapes)
        return self._frozen(placed, shapes, trainable).train(self.training)

    def _frozen(self, placed: Placed, shapes: Shapes, trainable: bool) -> FrozenLayer:
        return FrozenLayer.from_placed(placed, shapes, self.bias, self.features, trainable)

    # What it takes to move tuples by hand, as `sparsewire.Rewire` does: for layers of fixed sizes.

    def space(self) -> tuple[int, ...]:
        """Return the sizes of the learned columns."""
        return self.layout.space(self._shapes(None))

    def nearest_places(self, means: Float[Tensor, "k r"]) -> Int[Tensor, "k r"]:
        """Return the allowed integer tuple to which each mean rounds."""
        shapes = self._shapes(None)
        return self.layout.settle(rounded(means, self.layout.space(shapes)), shapes)

    def raw_means_at(self, places: Int[Tensor, "k r"]) -> Float[Tensor, "k r"]:
        """Return raw means, in float64, whose means round to these allowed integer tuples."""
        return self.layout.unbound(places, self._shapes(None), self.edge)

    def random_part(self, sample: Sample) -> tuple[Int[Tensor, "n r"], Float[Tensor, " n"]]:
        """Return the tuples of a sampled pass, and their values, without the nearest of each mean.

        The values of tuples that the layout does not allow are NaN.
        """
        _, (indices, values) = split_sample(sample, self.local_samples + self.global_samples)
        indices, values = indices.flatten(0, 1), values.flatten()
        allowed = self.layout.allowed(indices, self._shapes(None))
        return indices, values if allowed is None else torch.where(allowed, values, math.nan)

    def nearest_part(self, sample: Sample) -> tuple[Int[Tensor, "n e r"], Float[Tensor, "n e"]]:
        """Return the 2^r tuples nearest to each mean of a sampled pass, and their values."""
        return split_sample(sample, self.local_samples + self.global_samples)[0]

    def _load_from_state_dict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, state_dict: Mapping[str, Any], prefix: str, *args: Any
    ) -> None:
        """Refuse the state of another template before anything is taken from it."""
        check_saved("share_values", self.value_of, state_dict.get(f"{prefix}value_of"))
        if isinstance(self.layout, Template):
            check_saved("template", self.layout.table, state_dict.get(f"{prefix}layout.table"))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        """Show what matters most."""
        return (
            f"in_shape={self.in_shape}, out_shape={self.out_shape}, "
            f"local_samples={self.local_samples}, global_samples={self.global_samples}, "
            f"context={self.context or 'default'}, wirings={self.wirings}, "
            f"kernel={self.kernel}, evaluation={self.evaluation}"
        )

    def _transform(
        self, x: Tensor, wiring: Wiring, shapes: Shapes, mode: Mode, generator: Generator | None
    ) -> Tensor:
        batch = x.shape[: x.dim() - len(shapes.ins) - self.features]
        groups, shared = min(self.wirings, math.prod(batch)), wiring.values.dim() == 1
        grouped, y = mode in _SAMPLING and groups > 1 and shared, None
        if grouped:
            wiring = Wiring(*(t.expand(groups, *t.shape) for t in wiring))
            x = split_batch(x, len(batch), groups)
        elif mode == "sampled" and not shared and not self.features:
            y = self._read_directly(x, wiring, shapes, generator)
        if y is None:
            placed = self._placed(wiring, shapes, mode, generator)
            y = contract_placed(placed, x, shapes, self.features)
        if grouped:
            y = join_batch(y, batch)
        if self.bias is None:
            return y
        return y + self.bias.to(y.dtype).view((*self.out_shape, *[1] * self.features))

    def _placed(
        self, wiring: Wiring, shapes: Shapes, mode: Mode, generator: Generator | None
    ) -> Placed:
        """Return the elements of W in one pass."""
        straight = mode == "straight-through"
        if self.training and not torch.compiler.is_compiling():
            self.was_trained = True
        given = wiring._replace(values=wiring.values.detach()) if straight else wiring
        sample = self._sample(given, shapes, mode, generator)
        if self.on_sample is not None and sample.values.requires_grad and mode in _SAMPLING:
            self.on_sample(sample)
        placed = self.layout.place(*sample, shapes)
        if not straight:
            return placed
        # What was sampled counts for nothing but in the gradient.
        nothing = placed.values - placed.values.detach()
        nearest = self.layout.place(*self._sample(wiring, shapes, "rounded", None), shapes)
        pairs = zip(nearest, placed._replace(values=nothing), strict=True)
        return Placed(*(torch.cat(pair, -1) for pair in pairs))

    def _read_directly(
        self, x: Tensor, wiring: Wiring, shapes: Shapes, generator: Generator | None
    ) -> Tensor | None:
        if type(self.layout) is not Template or self._context(wiring.values.shape[-1]) != 1:
            return None
        region = region_sizes("region", self.region, self.layout.space(shapes))
        counts = self.local_samples, self.global_samples
        options = self.kernel, self.degrees, generator
        return read_directly(self.layout, wiring, x, shapes, region, *counts, *options)

    def _sample(
        self, wiring: Wiring, shapes: Shapes, mode: Mode, generator: Generator | None
    ) -> Sample:
        space, context = self.layout.space(shapes), self._context(wiring.values.shape[-1])
        means, variances = (t.unflatten(-2, (-1, context)) for t in wiring[:2])
        values = wiring.values.unflatten(-1, (-1, context))
        if mode in _SAMPLING:
            spans = region_sizes("region", self.region, space)
            counts = self.local_samples, self.global_samples
            indices = sample(means, space, spans, *counts, generator)
        else:
            nearest = self.layout.settle(rounded(means, space), shapes)
            if mode == "rounded":
                return Sample(nearest, values)
            spans = self.region if self.window is None else self.window
            spans = region_sizes("window", spans, space)
            indices = window(nearest.to(means.dtype), space, spans).flatten(-3, -2)
        excluded = mark_repeats(indices, space)
        if (allowed := self.layout.allowed(indices, shapes)) is not None:
            excluded |= ~allowed
        options = self.kernel, self.degrees, self.tolerance
        return Sample(indices, spread(means, variances, values, indices, excluded, *options))

    def _wiring(self, x: Tensor | None, shapes: Shapes) -> Wiring:
        """Call the source and bound its output."""
        if self.adaptive and x is None:
            raise ValueError("x must be given, since the source of this layer reads it; got None")
        space = self.layout.space(shapes)
        output = self.source(x) if self.adaptive else self.source()
        means, raw, values = read_source(output, len(space), self.value_of, self._value_count, x)
        means = self.layout.bound(means, shapes, self.edge)
        scales = self.variance_scale, self.variance_floor
        variances = bound_variances(without_copies(raw), space, *scales)
        factor = self.variance_factor
        if factor is None:
            factor = getattr(self.source, "variance_factor", None)
        if factor is not None:
            variances = (variances - self.variance_floor) * factor + self.variance_floor
        return Wiring(means, variances.expand(*raw.shape, -1), values)

    def _mode(self, mode: Mode | None) -> Mode:
        if mode is not None:
            return check_choice("mode", mode, MODES)
        usual = "train_mode" if self.training else "evaluation"
        return check_choice(usual, getattr(self, usual), MODES)

    def _context(self, tuples: int) -> int:
        context = self.layout.default_context(tuples) if self.context is None else self.context
        self.layout.check_context(tuples, context)
        if tuples % context:
            raise ValueError(f"context must divide the number of tuples, {tuples}; got {context}")
        return context
