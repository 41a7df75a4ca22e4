"""Linear maps of sparse tensors: what all layers share, and their frozen form."""

import contextlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sparsewire.annotations import Int
from sparsewire.checks import (
    check_count,
    check_devices,
    check_exact,
    check_floating,
    check_integer,
    check_open_shape,
    check_shape,
)
from sparsewire.nn.layout import Placed, Shapes
from sparsewire.nn.places import Places, fast, multiply
from sparsewire.ops.bound import working_dtype


class LinearMap(nn.Module):
    """Base class of modules that multiply the axes `in_shape` of an input by a sparse tensor."""

    bias: Tensor | None

    def __init__(
        self, in_shape: Sequence[int | None], out_shape: Sequence[int], features: int
    ) -> None:
        super().__init__()
        self.in_shape = check_open_shape("in_shape", in_shape)
        self.out_shape = check_shape("out_shape", out_shape)
        self.features = check_count("features", features)

    def _check_input(self, x: Tensor) -> int:
        """Return how many dimensions of the input belong to the batch."""
        check_floating("x", x)
        last = x.dim() - self.features
        first = last - len(self.in_shape)
        if first < 0 or not _fits(x.shape[first:last], self.in_shape):
            raise ValueError(
                f"x must have shape (*b, *in_shape, *features) with in_shape {self.in_shape} and "
                f"{self.features} feature dimensions; got {tuple(x.shape)}"
            )
        return first

    def _shapes(self, x: Tensor | None) -> Shapes:
        if x is not None:
            return self._shapes_and_batch(x)[0]
        if None in self.in_shape:
            raise ValueError(
                f"x (or in_shape, to freeze) must be given, since the layer's in_shape "
                f"{self.in_shape} leaves sizes open; got None"
            )
        return self._shapes_for(self.in_shape)

    def _shapes_for(self, in_shape: Sequence[int | None]) -> Shapes:
        """Return the shapes of W for an input of this size, which must fit the layer's."""
        mine, given = self.in_shape, tuple(in_shape)
        if None in given or not _fits(given, mine):
            raise ValueError(f"in_shape must be {mine}, with a number for each None; got {given}")
        return Shapes(self.out_shape, check_shape("in_shape", given))  # pyright: ignore

    def _shapes_and_batch(self, x: Tensor) -> tuple[Shapes, tuple[int, ...]]:
        """Return the shapes of W for this input, and the shape of the batch."""
        first = self._check_input(x)
        if (home := next(self.parameters(), None)) is not None:
            check_devices(x=x, layer=home)
        ins = x.shape[first : first + len(self.in_shape)]
        return self._shapes_for(ins), tuple(x.shape[:first])

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Note the shapes in the metadata of the state, as PyTorch does with version numbers."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        metadata = getattr(destination, "_metadata", {}).get(prefix[:-1])
        if metadata is not None:
            metadata["in_shape"], metadata["out_shape"] = self.in_shape, self.out_shape

    def _load_from_state_dict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, state_dict: Mapping[str, Any], prefix: str, metadata: Mapping[str, Any], *args: Any
    ) -> None:
        """Refuse the state of a module with other shapes, before anything is taken from it."""
        mine = self.in_shape, self.out_shape
        saved = metadata.get("in_shape", mine[0]), metadata.get("out_shape", mine[1])
        if not (_fits(saved[0], mine[0]) and _fits(saved[1], mine[1])):
            raise ValueError(
                f"state_dict must be of a layer with in_shape {mine[0]} and out_shape {mine[1]}; "
                f"got in_shape {saved[0]} and out_shape {saved[1]}"
            )
        state_dict = self._make_room(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, metadata, *args)

    def _make_room(self, state_dict: Mapping[str, Any], prefix: str) -> Mapping[str, Any]:
        """Check a state, prepare the module for its sizes, and return what to load."""
        return state_dict


class FrozenLayer(LinearMap):
    """A fixed sparse linear map: y[b..] = Σ W[b.., a..] x[a..] (+ bias), W in coordinate form.

    Made by `SparseLayer.freeze()` and `HyperLayer.freeze()`. It holds integer buffers `rows` and
    `cols` (into the flattened output and input, sorted, without repeats), their `values` and the
    `bias`, if there is one; nothing is sampled. `torch.export`, ONNX and `torch.jit.script` take
    it. An empty one takes the `state_dict` of any other with its shapes, trainable or not.

    Args:
        in_shape: Sizes of the input axes.
        out_shape: Sizes of the output axes.
        bias: Whether there is a bias.
        features: How many last dimensions of the input are mapped alike.
        dtype: Of values and bias, until a state is loaded.
        trainable: Whether values and bias are parameters. The places are fixed in any case.

    Examples:
        >>> import sparsewire as sw
        >>> layer = sw.SparseLayer((8,), (8,), tuples=4, seed=0).eval()
        >>> frozen = layer.freeze()
        >>> again = sw.FrozenLayer((8,), (8,))
        >>> _ = again.load_state_dict(frozen.state_dict())
        >>> x = torch.randn(2, 8)
        >>> torch.equal(again(x), frozen(x)), torch.allclose(frozen(x), layer(x))
        (True, True)
    """

    __jit_unused_properties__ = ("indices",)
    __jit_ignored_attributes__ = ("_places",)
    rows: Tensor
    cols: Tensor
    values: Tensor
    if TYPE_CHECKING:  # TorchScript reads annotations, and has no tuples of any length
        in_shape: tuple[int, ...]  # pyright: ignore[reportIncompatibleVariableOverride]
    _ins: list[int]
    _outs: list[int]

    def __init__(
        self,
        in_shape: Sequence[int],
        out_shape: Sequence[int],
        *,
        bias: bool = False,
        features: int = 0,
        dtype: torch.dtype | None = None,
        trainable: bool = False,
    ) -> None:
        ins = check_shape("in_shape", in_shape)
        super().__init__(ins, out_shape, features)
        self.trainable = trainable
        self._ins, self._outs = list(ins), list(self.out_shape)
        self._in_size, self._out_size = math.prod(self._ins), math.prod(self._outs)
        self._places: Places | None = None
        empty = torch.empty(0, dtype=torch.int64)
        bias_start = torch.zeros(self.out_shape, dtype=dtype) if bias else None
        self._register(Placed(empty, empty.clone(), torch.empty(0, dtype=dtype)), bias_start)

    @classmethod
    def from_placed(
        cls,
        placed: Placed,
        shapes: Shapes,
        bias: Tensor | None,
        features: int,
        trainable: bool = False,
    ) -> "FrozenLayer":
        """Add up values that meet, drop zeros, and store the rest in row-major order."""
        layer = cls(shapes.ins, shapes.outs, features=features, trainable=trainable)
        values = placed.values.detach()
        placed = _in_order(placed._replace(values=values.to(working_dtype(values.dtype))))
        nonzero = placed.values != 0
        rows, cols, summed = (t[nonzero] for t in placed)
        copied = None if bias is None else bias.detach().clone()
        layer._register(Placed(rows, cols, summed.to(values.dtype)), copied)
        return layer

    def _register(self, placed: Placed, bias: Tensor | None) -> None:
        """Hold the elements and the bias, as parameters where they are learned."""
        self.register_buffer("rows", placed.rows)
        self.register_buffer("cols", placed.cols)
        for name, tensor in (("values", placed.values), ("bias", bias)):
            if self.trainable:
                parameter = None if tensor is None else nn.Parameter(tensor)
                self.register_parameter(name, parameter)
            else:
                self.register_buffer(name, tensor)

    def forward(self, x: Tensor) -> Tensor:  # TorchScript reads no shape annotations
        """Apply the map to any batch of inputs, in the dtype of the input."""
        if not torch.jit.is_scripting():  # pyright: ignore[reportPrivateImportUsage]
            self._check_input(x)
        dtype = torch.promote_types(self.values.dtype, x.dtype)
        dtype = torch.float64 if dtype == torch.float64 else torch.float32
        y = self._multiply(self.values.to(dtype), x.to(dtype))
        if self.bias is not None:
            y = y + self.bias.to(dtype).view(self._outs + [1] * self.features)
        return y.to(x.dtype)

    def _multiply(self, values: Tensor, x: Tensor) -> Tensor:
        if not torch.jit.is_scripting():  # noqa: SIM102  # pyright: ignore[reportPrivateImportUsage]
            if fast(values, x, self._in_size):
                return self._multiply_as_matrix(values, x)
        # Plain operations, known to torch.export, ONNX and TorchScript, which cannot unpack lists.
        last = x.dim() - self.features
        axis, sizes = last - len(self._ins), list(x.shape)
        batch, rest = sizes[:axis], sizes[last:]
        flat = x.reshape(batch + [self._in_size] + rest)  # noqa: RUF005
        moved = flat.index_select(axis, self.cols) * values.view([-1] + [1] * self.features)
        y = flat.new_zeros(batch + [self._out_size] + rest)  # noqa: RUF005
        return y.index_add(axis, self.rows, moved).reshape(batch + self._outs + rest)

    def _multiply_as_matrix(self, values: Tensor, x: Tensor) -> Tensor:
        """Multiply a matrix that has a column for each instance of the batch, and each feature."""
        last = x.dim() - self.features
        batch, rest = x.shape[: last - len(self._ins)], x.shape[last:]
        b, f = math.prod(batch), math.prod(rest)
        flat = x.reshape(b, self._in_size, f).transpose(0, 1).reshape(self._in_size, b * f)
        y = multiply(values, flat, self._current_places())
        y = y.view(self._out_size, b, f).transpose(0, 1).contiguous()
        return y.view(*batch, *self._outs, *rest)

    def _current_places(self) -> Places:
        """Return rows and columns prepared for products, anew when they have changed."""
        places = self._places
        if places is None or not places.current(self.rows, self.cols):
            places = Places(self.rows, self.cols, self._out_size, self._in_size)
            self._places = places
        return places

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what can be computed again."""
        return {**self.__dict__, "_places": None}

    @property
    def indices(self) -> Int[Tensor, "m r"]:
        """Index tuples of the nonzero elements, output columns first."""
        outs = torch.unravel_index(self.rows, self.out_shape) if self.out_shape else ()
        ins = torch.unravel_index(self.cols, tuple(self._ins)) if self._ins else ()
        return torch.stack([*outs, *ins], dim=-1)

    def coo(self) -> Tensor:
        """Return W as a torch sparse COO tensor of shape (*out_shape, *in_shape)."""
        shape = (*self._outs, *self._ins)
        with _without_notices():
            return torch.sparse_coo_tensor(
                self.indices.t(), self.values, shape, is_coalesced=True, check_invariants=True
            )

    def csr(self) -> Tensor:
        """Return the flattened W as a torch sparse CSR matrix."""
        sizes = (self._out_size, self._in_size)
        counts = torch.bincount(self.rows, minlength=sizes[0])
        starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        with _without_notices():
            return torch.sparse_csr_tensor(
                starts, self.cols, self.values, sizes, check_invariants=True
            )

    def dense(self) -> Tensor:
        """Return W as a dense tensor."""
        sizes = (self._out_size, self._in_size)
        matrix = self.values.new_zeros(sizes).index_put_((self.rows, self.cols), self.values)
        return matrix.view(*self._outs, *self._ins)

    def extra_repr(self) -> str:
        """Show the shapes and the number of nonzero elements."""
        return (
            f"in_shape={self.in_shape}, out_shape={self.out_shape}, nonzero={len(self.values)}, "
            f"bias={self.bias is not None}{', trainable=True' if self.trainable else ''}"
        )

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load a state as a whole, or raise an error and change nothing.

        Sizes and dtypes are those of the state. The parameters of a trainable layer remain the same
        objects (without `assign`), but an optimizer that has made a step needs to be made anew
        where their sizes change.
        """
        if strict and isinstance(state_dict, Mapping):
            mine = sorted(self.state_dict())
            missing = [name for name in mine if name not in state_dict]
            unexpected = [name for name in state_dict if name not in mine]
            if missing or unexpected:
                raise ValueError(
                    f"state_dict must have the keys {', '.join(mine)}; "
                    f"got missing keys {missing} and unexpected keys {unexpected}"
                )
        return super().load_state_dict(state_dict, strict, assign)

    def _make_room(self, state_dict: Mapping[str, Any], prefix: str) -> Mapping[str, Any]:
        """Check a state, take its sizes and dtypes, and return it in row-major order."""
        saved = {
            name: state_dict[prefix + name]
            for name in (*Placed._fields, "bias")
            if prefix + name in state_dict and getattr(self, name) is not None
        }
        _check_state(saved, prefix, (self._out_size, self._in_size), self.out_shape)
        saved = {name: tensor.detach() for name, tensor in saved.items()}
        if "rows" in saved:
            placed = _in_order(Placed(*(saved[name] for name in Placed._fields)))
            saved.update(placed._asdict())
        for name, tensor in saved.items():
            mine: Tensor = getattr(self, name)
            if mine.shape != tensor.shape or mine.dtype != tensor.dtype:
                mine.grad = None
                mine.data = mine.new_empty(tensor.shape, dtype=tensor.dtype)
        return {**state_dict, **{prefix + name: tensor for name, tensor in saved.items()}}


def _fits(sizes: Sequence[int | None], expected: Sequence[int | None]) -> bool:
    """Whether sizes are as expected, where neither is open."""
    return len(sizes) == len(expected) and all(
        have is None or want is None or have == want
        for have, want in zip(sizes, expected, strict=True)
    )


@contextlib.contextmanager
def _without_notices() -> Iterator[None]:
    """Silence warnings that torch gives to all users of sparse tensors: they are checked here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        warnings.filterwarnings("ignore", "Sparse invariant checks are implicitly disabled")
        yield


def _in_order(placed: Placed) -> Placed:
    """Sort the elements of a matrix row by row, and add up values at the same place."""
    order = placed.cols.argsort(stable=True)
    order = order[placed.rows[order].argsort(stable=True)]
    pairs = torch.stack([placed.rows[order], placed.cols[order]])
    pairs, group = torch.unique_consecutive(pairs, dim=1, return_inverse=True)
    summed = placed.values.new_zeros(pairs.shape[1]).index_add_(0, group, placed.values[order])
    return Placed(pairs[0], pairs[1], summed)


def _check_state(
    saved: Mapping[str, Any], prefix: str, sizes: tuple[int, int], bias_shape: tuple[int, ...]
) -> None:
    """Refuse what is not a sparse matrix of these sizes, and a bias of this shape."""
    places = [name for name in Placed._fields if name in saved]
    if 0 < len(places) < 3:
        raise ValueError(
            f"{prefix}rows, cols and values must come together; got {', '.join(places)} alone"
        )
    for name, size in zip(places[:2], sizes, strict=False):
        _check_indices(prefix + name, saved[name], size)
    for name in saved.keys() - {"rows", "cols"}:
        check_floating(prefix + name, saved[name])
        if bad := (n := saved[name].numel()) - int(saved[name].isfinite().sum()):
            raise ValueError(
                f"{prefix}{name} must be finite; got {bad} of {n} that are NaN or infinite"
            )
    shapes = {name: tuple(saved[name].shape) for name in places}
    if len(set(shapes.values())) > 1 or not all(len(shape) == 1 for shape in shapes.values()):
        got = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"{prefix}rows, cols and values must be lists of one length; got {got}")
    if "bias" in saved:
        check_exact(f"{prefix}bias", saved["bias"], bias_shape)


def _check_indices(name: str, index: Tensor, size: int) -> None:
    check_integer(name, index)
    if index.numel() and not 0 <= index.min() <= index.max() < size:
        bad = f"{int(index.min())} … {int(index.max())}"
        raise ValueError(f"{name} must lie in 0 … {size - 1}; got {bad}")
