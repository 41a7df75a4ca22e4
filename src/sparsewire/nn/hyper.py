"""The sparse hyperlayer: a sparse layer whose parameters come from a source."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from sparsewire.annotations import Float, Int
from sparsewire.checks import (
    check_choice,
    check_count,
    check_devices,
    check_floating,
    check_open_shape,
    check_range,
    check_rank,
    check_saved,
    check_shape,
)
from sparsewire.nn.frozen import FrozenLayer
from sparsewire.nn.layout import Layout, Placed, Reading, Shapes, Template
from sparsewire.nn.wiring import Draw, Wiring, check_value_numbers, read_source, reads_input
from sparsewire.ops import bound_variances, mark_repeats, rounded, sample, spread, window
from sparsewire.ops.bound import EDGES, Edge
from sparsewire.ops.contract import contract_flat
from sparsewire.ops.density import DEGREES, DENSITIES, Density
from sparsewire.ops.fused_gather import can_read, read
from sparsewire.ops.sample import check_region

Mode = Literal["rounded", "sampled", "expected"]
MODES: tuple[Mode, ...] = get_args(Mode)


class HyperLayer(nn.Module):
    """A sparse layer whose index tuples, variances and values come from a source.

    y[b..] = Σ W[b.., a..] x[a..] (+ bias), with W drawn anew in each forward pass in training, by
    the five stages of `sparsewire.ops`. In evaluation the means are rounded and nothing is drawn.

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
        local_samples: Integer tuples drawn around each continuous tuple, the paper's a_l.
        global_samples: Integer tuples drawn from everywhere, the paper's a_g.
        region: Sizes of the local region for each learned column, or one number for all (cut to
            the size of each); log₂ of each size if not given.
        context: Number of tuples that compete: repeats are removed, and shares normalised, among
            the integer tuples of one context. All tuples if not given. With a template a context
            holds neighbouring rows with the same fixed columns: the largest number that divides
            all such runs, if not given.
        share_values: Number of the value that each tuple takes, for values shared between tuples.
        wirings: How many wirings to draw for a batch that shares its parameters (at most one for
            each instance). More try more places in a step, and cost more.
        edge: How raw means are folded onto the index axes: `"sigmoid"`, `"clamp"` or `"wrap"`.
            Taken from the source, or `"sigmoid"`, if not given.
        variance_scale: Factor of the variances, see `sparsewire.ops.bound_variances`.
        variance_floor: Smallest variance, the paper's τ.
        density: `"gaussian"`, or the heavy-tailed `"student"`.
        degrees: Degrees of freedom of `"student"`.
        tolerance: Share of its value that a tuple may lose to places too far away to matter, see
            `sparsewire.ops.spread`; 0 for none.
        bias: Whether to add a dense bias to the output.
        evaluation: What `eval()` does: `"rounded"` (each value at its nearest index), `"sampled"`
            (as in training) or `"expected"` (each value spread over every index of a window:
            the expectation under its density, nothing drawn).
        window: Sizes of the window of `"expected"`, as `region`; the region if not given.
        features: How many last dimensions of the input ride along (matrix-by-matrix: 1).

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
    #: Is told of every draw of a pass in training, before it is used; see `sparsewire.Rewire`.
    watch: Callable[[Draw], None] | None = None
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
        density: Density = "gaussian",
        degrees: float = 1.0,
        tolerance: float = 1e-7,
        bias: bool = False,
        evaluation: Mode = "rounded",
        window: int | Sequence[int] | None = None,
        features: int = 0,
    ) -> None:
        super().__init__()
        if not callable(source):
            raise TypeError(f"source must be a module; got {type(source).__name__}")
        self.source: Any = source
        self.adaptive = reads_input(source)
        self.in_shape = check_open_shape("in_shape", in_shape)
        self.out_shape = check_shape("out_shape", out_shape)
        self.local_samples = check_count("local_samples", local_samples)
        self.global_samples = check_count("global_samples", global_samples)
        self.region = region
        self.context = None if context is None else check_count("context", context, least=1)
        self.wirings = check_count("wirings", wirings, least=1)
        if edge is None:
            edge = getattr(source, "edge", None)
        self.edge: Edge = "sigmoid" if edge is None else check_choice("edge", edge, EDGES)
        self.variance_scale = check_range("variance_scale", variance_scale, 0.0, 1e6)
        self.variance_floor = check_range("variance_floor", variance_floor, 0.0, 1e6)
        self.density: Density = check_choice("density", density, DENSITIES)
        self.degrees = check_range("degrees", degrees, *DEGREES)
        self.tolerance = check_range("tolerance", tolerance, 0.0, 1.0)
        self.evaluation: Mode = check_choice("evaluation", evaluation, MODES)
        self.window = window
        self.features = check_count("features", features)
        self.layout = _choose_layout(source, template)
        numbers = check_value_numbers(share_values)
        self._value_count = 0 if numbers is None else int(numbers.max()) + 1
        self.register_buffer("value_of", numbers)
        self.bias = nn.Parameter(torch.zeros(self.out_shape)) if bias else None
        if None not in self.in_shape:
            space = check_rank("the learned space", self.layout.space(self._shapes_of(None)))
            self._spans("region", region, space)
            self._spans("window", window, space)

    def forward(
        self,
        x: Float[Tensor, "*x"],
        *,
        mode: Mode | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "*y"]:
        """Transform a batch.

        Args:
            x: Input of shape (*b, *in_shape, *features), any batch prefix.
            mode: One of the evaluation modes, for this call; otherwise `"sampled"` in training
                and `evaluation` in evaluation.
            generator: Source of randomness for the draw, on the device of `x`. Do not recompute
                such a call (activation checkpointing), which would draw again from where the
                generator stands then; and `torch.compile` does not take one.

        Returns:
            Output of shape (*b, *out_shape, *features) in the dtype of `x`.
        """
        shapes, batch = self._check_input(x)
        wiring = self._wiring(x, shapes)
        if (prefix := tuple(wiring.values.shape[:-1])) not in ((), batch):
            raise ValueError(
                f"source must return one wiring, or one for each instance of the batch {batch}; "
                f"got a prefix of {prefix}"
            )
        mode = self._mode(mode)
        y = self._transform(x, wiring, shapes, batch, mode, generator)
        if mode == "sampled" and self.training and self.hardness is not None:
            with torch.no_grad():
                hard = self._transform(x, wiring, shapes, batch, "rounded", generator)
                change = ((hard - y) * self.hardness).to(y.dtype)
            y = y + change
        return y

    def wiring(self, x: Float[Tensor, "*x"] | None = None) -> Wiring:
        """Return means, variances and values in the learned index space, for looking at.

        Args:
            x: The input, for an adaptive layer or one whose input sizes may change.
        """
        return self._wiring(x, self._shapes_of(x))

    def draw(
        self,
        x: Float[Tensor, "*x"] | None = None,
        *,
        mode: Mode | None = None,
        generator: torch.Generator | None = None,
    ) -> Draw:
        """Return the integer tuples and values of one pass, in the learned index space.

        Args:
            x: The input, for an adaptive layer or one whose input sizes may change.
            mode: As in `forward`.
            generator: As in `forward`.
        """
        shapes = self._shapes_of(x)
        return self._draw(self._wiring(x, shapes), shapes, self._mode(mode), generator)

    @torch.no_grad()
    def freeze(self, in_shape: Sequence[int] | None = None) -> FrozenLayer:
        """Return a module that holds only the rounded sparse tensor, with the same forward.

        Args:
            in_shape: Sizes of the input, where the layer leaves some of them open.
        """
        if self.adaptive:
            raise TypeError(
                "freeze needs one wiring for every input; the source of this layer reads the input "
                "and gives each its own"
            )
        shapes = self._shapes_of(None) if in_shape is None else self._fit(in_shape)
        draw = self._draw(self._wiring(None, shapes), shapes, "rounded", None)
        placed = self.layout.place(*draw, shapes)
        frozen = FrozenLayer.from_placed(placed, shapes, self.bias, self.features)
        return frozen.train(self.training)

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
            f"density={self.density}, evaluation={self.evaluation}"
        )

    def _transform(
        self,
        x: Tensor,
        wiring: Wiring,
        shapes: Shapes,
        batch: tuple[int, ...],
        mode: Mode,
        generator: torch.Generator | None,
    ) -> Tensor:
        groups = min(self.wirings, math.prod(batch))
        if mode == "sampled" and groups > 1 and wiring.values.dim() == 1:
            return self._forward_in_groups(x, wiring, shapes, batch, groups, generator)
        if mode == "sampled" and (reading := self._reading(wiring, shapes)) is not None:
            return self._read(reading, wiring, x, shapes, generator)
        draw = self._draw(wiring, shapes, mode, generator)
        self._tell(draw, mode)
        return self._contract(self.layout.place(*draw, shapes), x, shapes)

    def _draw(
        self, wiring: Wiring, shapes: Shapes, mode: Mode, generator: torch.Generator | None
    ) -> Draw:
        space, context = self.layout.space(shapes), self._context(wiring.values.shape[-1])
        means, variances = (t.unflatten(-2, (-1, context)) for t in wiring[:2])
        values = wiring.values.unflatten(-1, (-1, context))
        if mode == "sampled":
            spans = self._spans("region", self.region, space)
            counts = self.local_samples, self.global_samples
            indices = sample(means, space, spans, *counts, generator)
        else:
            nearest = self.layout.settle(rounded(means, space), shapes)
            if mode == "rounded":
                return Draw(nearest, values)
            spans = self.region if self.window is None else self.window
            spans = self._spans("window", spans, space)
            indices = window(nearest.to(means.dtype), space, spans).flatten(-3, -2)
        excluded = mark_repeats(indices, space)
        allowed = self.layout.allowed(indices, shapes)
        if allowed is not None:
            excluded |= ~allowed
        options = self.density, self.degrees, self.tolerance
        return Draw(indices, spread(means, variances, values, indices, excluded, *options))

    def _tell(self, draw: Draw, mode: Mode) -> None:
        if self.watch is not None and mode == "sampled" and draw.values.requires_grad:
            self.watch(draw)

    def _reading(self, wiring: Wiring, shapes: Shapes) -> Reading | None:
        """Return where tuples read, if every instance has its wiring and every tuple its context.

        Nothing but the output need be stored then, where there is a kernel for it.
        """
        if (
            type(self.layout) is not Template
            or self.features
            or wiring.values.dim() == 1
            or self._context(wiring.values.shape[-1]) != 1
        ):
            return None
        space, device = self.layout.space(shapes), wiring.values.device
        region = self._spans("region", self.region, space)
        if not can_read(device, math.prod(shapes.ins), space, region, self.global_samples):
            return None
        return self.layout.reading(shapes, device)

    def _read(
        self,
        reading: Reading,
        wiring: Wiring,
        x: Tensor,
        shapes: Shapes,
        generator: torch.Generator | None,
    ) -> Tensor:
        batch, outs = wiring.values.shape[:-1], math.prod(shapes.outs)
        region = self._spans("region", self.region, reading.where.sizes)
        means, variances, values = (t.flatten(0, len(batch) - 1) for t in wiring)
        flat = x.reshape(math.prod(batch), math.prod(shapes.ins))
        counts = self.local_samples, self.global_samples
        options = *counts, self.density, self.degrees, generator
        y = read(means, variances, values, flat, reading.where, region, *options)
        if reading.rows is not None:
            y = y.new_zeros(y.shape[0], outs).index_add(1, reading.rows, y)
        return self._add_bias(y.reshape((*batch, *shapes.outs)))

    def _contract(self, placed: Placed, x: Tensor, shapes: Shapes) -> Tensor:
        last = x.dim() - self.features
        batch, rest = x.shape[: last - len(shapes.ins)], x.shape[last:]
        flat = x.reshape(*batch, math.prod(shapes.ins), *rest)
        y = contract_flat(*placed, flat, math.prod(shapes.outs), self.features)
        return self._add_bias(y.reshape((*batch, *shapes.outs, *rest)))

    def _add_bias(self, y: Tensor) -> Tensor:
        if self.bias is None:
            return y
        return y + self.bias.to(y.dtype).view((*self.out_shape, *[1] * self.features))

    def _forward_in_groups(
        self,
        x: Tensor,
        wiring: Wiring,
        shapes: Shapes,
        batch: tuple[int, ...],
        groups: int,
        generator: torch.Generator | None,
    ) -> Tensor:
        """Cut the batch into groups, the first ones larger by one if need be; a draw for each."""
        count, inner = math.prod(batch), x.shape[len(batch) :]
        each, larger = count // groups, count % groups
        x, split = x.reshape(count, *inner), larger * (each + 1)
        grouped = x[split:].view(groups - larger, each, *inner)
        if larger:
            spare = x.new_zeros(groups - larger, 1, *inner)
            grouped = torch.cat([grouped, spare], dim=1)
            grouped = torch.cat([x[:split].view(larger, each + 1, *inner), grouped])
        wiring = Wiring(*(t.expand(groups, *t.shape) for t in wiring))
        draw = self._draw(wiring, shapes, "sampled", generator)
        self._tell(draw, "sampled")
        y = self._contract(self.layout.place(*draw, shapes), grouped, shapes)
        y = torch.cat([y[:larger].flatten(0, 1), y[larger:, :each].flatten(0, 1)])
        return y.reshape((*batch, *y.shape[1:]))

    def _wiring(self, x: Tensor | None, shapes: Shapes) -> Wiring:
        """Ask the source and bound what it says."""
        if self.adaptive and x is None:
            raise ValueError("x must be given, since the source of this layer reads it; got None")
        space = self.layout.space(shapes)
        output = self.source(x) if self.adaptive else self.source()
        raw = read_source(output, len(space), self.value_of, self._value_count, x)
        scales = self.variance_scale, self.variance_floor
        means = self.layout.bound(raw.means, shapes, self.edge)
        variances = bound_variances(_unexpanded(raw.variances), space, *scales)
        if self.variance_factor is not None:
            variances = (variances - self.variance_floor) * self.variance_factor
            variances = variances + self.variance_floor
        return Wiring(means, variances.expand(*raw.variances.shape, -1), raw.values)

    def _mode(self, mode: Mode | None) -> Mode:
        if mode is not None:
            return check_choice("mode", mode, MODES)
        return "sampled" if self.training else check_choice("evaluation", self.evaluation, MODES)

    def _context(self, tuples: int) -> int:
        context = self.layout.default_context(tuples) if self.context is None else self.context
        self.layout.check_context(tuples, context)
        if tuples % context:
            raise ValueError(f"context must divide the number of tuples, {tuples}; got {context}")
        return context

    def _spans(
        self, name: str, spans: int | Sequence[int] | None, space: Sequence[int]
    ) -> tuple[int, ...]:
        """Return the region, or window, for each learned column."""
        if spans is None:
            return tuple(max(1, round(math.log2(n))) for n in space)
        if isinstance(spans, Sequence):
            return check_region(name, spans, space)
        span = check_count(name, spans, least=1)
        if span > max(space):
            raise ValueError(
                f"{name} must be at most {max(space)}, the largest of {tuple(space)}; got {span}"
            )
        return tuple(min(span, n) for n in space)

    def _shapes_of(self, x: Tensor | None) -> Shapes:
        if x is not None:
            return self._check_input(x)[0]
        if None in self.in_shape:
            raise ValueError(
                f"x (or in_shape, to freeze) must be given, since the layer's in_shape "
                f"{self.in_shape} leaves sizes open; got None"
            )
        return self._fit(self.in_shape)

    def _fit(self, in_shape: Sequence[int | None]) -> Shapes:
        """Return the shapes of W for an input of this size, which must fit the layer's."""
        ins = tuple(in_shape)
        fits = len(ins) == len(self.in_shape) and all(
            have is not None and (want is None or have == want)
            for have, want in zip(ins, self.in_shape, strict=True)
        )
        if not fits:
            raise ValueError(
                f"in_shape must be {self.in_shape}, with a number for each None; got {ins}"
            )
        return Shapes(self.out_shape, check_shape("in_shape", ins))  # pyright: ignore

    def _check_input(self, x: Tensor) -> tuple[Shapes, tuple[int, ...]]:
        """Return the shapes of W for this input, and the shape of the batch."""
        check_floating("x", x)
        last = x.dim() - self.features
        first = last - len(self.in_shape)
        if first < 0 or any(
            want is not None and have != want
            for have, want in zip(x.shape[first:last], self.in_shape, strict=True)
        ):
            raise ValueError(
                f"x must have shape (*b, *in_shape, *features) with in_shape {self.in_shape} and "
                f"{self.features} feature dimensions; got {tuple(x.shape)}"
            )
        home = next(self.parameters(), None)
        if home is not None:
            check_devices(x=x, layer=home)
        return self._fit(x.shape[first:last]), tuple(x.shape[:first])


def _unexpanded(tensor: Tensor) -> Tensor:
    """The same without its copies, which would all be computed with."""
    for axis, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[axis] > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def _choose_layout(source: Callable[..., Any], template: Tensor | None) -> Layout:
    layout = getattr(source, "layout", None)
    if template is None:
        return layout if isinstance(layout, Layout) else Layout()
    if isinstance(layout, Layout) and type(layout) is not Layout:
        raise ValueError(
            f"template must be None for a source with a layout of its own; got one beside "
            f"{type(layout).__name__}"
        )
    return Template(template)
