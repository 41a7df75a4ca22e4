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
    check_floating,
    check_integer,
    check_open_shape,
    check_shape,
)
from sparsewire.nn.layout import Placed, Shapes
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
        super()._load_from_state_dict(state_dict, prefix, metadata, *args)


class FrozenLayer(LinearMap):
    """A fixed sparse linear map: y[b..] = Σ W[b.., a..] x[a..] (+ bias), W in coordinate form.

    Made by `SparseLayer.freeze()` and `HyperLayer.freeze()`. It holds integer buffers `rows` and
    `cols` (into the flattened output and input, sorted, without repeats), their `values` and the
    `bias`, if there is one; nothing is learned or sampled. `torch.export`, ONNX and
    `torch.jit.script` take it. An empty one takes the `state_dict` of any other with its shapes:

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
    ) -> None:
        ins = check_shape("in_shape", in_shape)
        super().__init__(ins, out_shape, features)
        self._ins, self._outs = list(ins), list(self.out_shape)
        self._in_size, self._out_size = math.prod(self._ins), math.prod(self._outs)
        self.register_buffer("rows", torch.empty(0, dtype=torch.int64))
        self.register_buffer("cols", torch.empty(0, dtype=torch.int64))
        self.register_buffer("values", torch.empty(0, dtype=dtype))
        self.register_buffer("bias", torch.zeros(self.out_shape, dtype=dtype) if bias else None)

    @classmethod
    def from_placed(
        cls, placed: Placed, shapes: Shapes, bias: Tensor | None, features: int
    ) -> "FrozenLayer":
        """Add up values that meet, drop zeros, and keep the rest in row-major order."""
        layer = cls(shapes.ins, shapes.outs, bias=bias is not None, features=features)
        values = placed.values.detach()
        placed = _in_order(placed._replace(values=values.to(working_dtype(values.dtype))))
        nonzero = placed.values != 0
        layer.rows, layer.cols, summed = (t[nonzero] for t in placed)
        layer.values = summed.to(values.dtype)
        layer.bias = None if bias is None else bias.detach().clone()
        return layer

    def forward(self, x: Tensor) -> Tensor:  # TorchScript reads no shape annotations
        """Apply the map to any batch of inputs, in the dtype of the input."""
        if not torch.jit.is_scripting():  # pyright: ignore[reportPrivateImportUsage]
            self._check_input(x)
        # Plain operations, known to torch.export, ONNX and TorchScript, which cannot unpack lists.
        dtype = torch.promote_types(self.values.dtype, x.dtype)
        dtype = torch.float64 if dtype == torch.float64 else torch.float32
        last = x.dim() - self.features
        axis, sizes = last - len(self._ins), list(x.shape)
        batch, rest = sizes[:axis], sizes[last:]
        flat = x.to(dtype).reshape(batch + [self._in_size] + rest)  # noqa: RUF005
        weights = self.values.to(dtype).view([-1] + [1] * self.features)
        moved = flat.index_select(axis, self.cols) * weights
        y = flat.new_zeros(batch + [self._out_size] + rest)  # noqa: RUF005
        y = y.index_add(axis, self.rows, moved).reshape(batch + self._outs + rest).to(x.dtype)
        if self.bias is not None:
            y = y + self.bias.to(y.dtype).view(self._outs + [1] * self.features)
        return y

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
            f"bias={self.bias is not None}"
        )

    def _load_from_state_dict(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, state_dict: Mapping[str, Any], prefix: str, *args: Any
    ) -> None:
        """Take the number of elements from the state, after checking that they lie inside W."""
        names = [prefix + name for name in Placed._fields]
        missing = [name for name in names if name not in state_dict]
        if not missing:
            saved = Placed(*(state_dict[name] for name in names))
            _check_state(saved, prefix, self._out_size, self._in_size)
            saved = _in_order(saved)
            for name, tensor in saved._asdict().items():
                mine = getattr(self, name)
                setattr(self, name, mine.new_empty(tensor.shape, dtype=tensor.dtype))
            state_dict = {**state_dict, **dict(zip(names, saved, strict=True))}
        elif len(missing) < len(names):
            raise ValueError(f"{', '.join(names)} must come together; got none for {missing}")
        super()._load_from_state_dict(state_dict, prefix, *args)


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


def _check_state(saved: Placed, prefix: str, rows: int, cols: int) -> None:
    """Refuse a state that is not a sparse matrix of this size."""
    for name, index, size in (("rows", saved.rows, rows), ("cols", saved.cols, cols)):
        check_integer(prefix + name, index)
        if index.numel() and not 0 <= index.min() <= index.max() < size:
            bad = f"{int(index.min())} … {int(index.max())}"
            raise ValueError(f"{prefix}{name} must lie in 0 … {size - 1}; got {bad}")
    check_floating(f"{prefix}values", saved.values)
    if saved.rows.dim() != 1 or len({tuple(tensor.shape) for tensor in saved}) != 1:
        shapes = ", ".join(f"{n} {tuple(t.shape)}" for n, t in saved._asdict().items())
        raise ValueError(f"{prefix}rows, cols and values must be lists of one length; got {shapes}")
