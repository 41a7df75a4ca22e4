"""What is left of a layer once its wiring is settled: a plain sparse tensor with a forward."""

import contextlib
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparsewire.annotations import Float, Int
from sparsewire.checks import check_count, check_floating, check_integer, check_shape
from sparsewire.nn.layout import Placed, Shapes
from sparsewire.ops.bound import working_dtype


class FrozenLayer(nn.Module):
    """A fixed sparse linear map: y[b..] = Σ W[b.., a..] x[a..] (+ bias), W in coordinate form.

    Made by `SparseLayer.freeze()` and `HyperLayer.freeze()`. It holds integer buffers `rows` and
    `cols` (into the flattened output and input, sorted, without repeats), their `values` and the
    `bias`, if there is one; nothing is learned or drawn. An empty one takes the sizes of any
    `state_dict` that fits its shapes:

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

    rows: Tensor
    cols: Tensor
    values: Tensor
    bias: Tensor | None

    def __init__(
        self,
        in_shape: Sequence[int],
        out_shape: Sequence[int],
        *,
        bias: bool = False,
        features: int = 0,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_shape = check_shape("in_shape", in_shape)
        self.out_shape = check_shape("out_shape", out_shape)
        self.features = check_count("features", features)
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
        kept = placed.values != 0
        layer.rows, layer.cols, summed = (t[kept] for t in placed)
        layer.values = summed.to(values.dtype)
        layer.bias = None if bias is None else bias.detach().clone()
        return layer

    def forward(self, x: Float[Tensor, "*x"]) -> Float[Tensor, "*y"]:
        """Apply the map to any batch of inputs, in the dtype of the input."""
        check_floating("x", x)
        axis = x.dim() - len(self.in_shape) - self.features
        inner = tuple(x.shape[axis : x.dim() - self.features]) if axis >= 0 else ()
        if inner != self.in_shape:
            raise ValueError(
                f"x must have shape (*b, *in_shape, *features) with in_shape {self.in_shape} and "
                f"{self.features} feature dimensions; got {tuple(x.shape)}"
            )
        # Plain operations: this is what torch.export and ONNX see.
        dtype = working_dtype(torch.promote_types(self.values.dtype, x.dtype))
        batch, rest = x.shape[:axis], x.shape[x.dim() - self.features :]
        flat = x.to(dtype).reshape(*batch, math.prod(self.in_shape), *rest)
        weights = self.values.to(dtype).view(-1, *[1] * self.features)
        moved = flat.index_select(axis, self.cols) * weights
        y = flat.new_zeros(*batch, math.prod(self.out_shape), *rest)
        y = y.index_add(axis, self.rows, moved).reshape((*batch, *self.out_shape, *rest))
        y = y.to(x.dtype)
        if self.bias is not None:
            y = y + self.bias.to(y.dtype).view((*self.out_shape, *[1] * self.features))
        return y

    @property
    def indices(self) -> Int[Tensor, "m r"]:
        """Index tuples of the nonzero elements, output columns first."""
        outs = torch.unravel_index(self.rows, self.out_shape) if self.out_shape else ()
        ins = torch.unravel_index(self.cols, self.in_shape) if self.in_shape else ()
        return torch.stack([*outs, *ins], dim=-1)

    def coo(self) -> Tensor:
        """Return W as a torch sparse COO tensor of shape (*out_shape, *in_shape)."""
        shape = (*self.out_shape, *self.in_shape)
        with _without_notices():
            return torch.sparse_coo_tensor(
                self.indices.t(), self.values, shape, is_coalesced=True, check_invariants=True
            )

    def csr(self) -> Tensor:
        """Return the flattened W as a torch sparse CSR matrix."""
        sizes = (math.prod(self.out_shape), math.prod(self.in_shape))
        counts = torch.bincount(self.rows, minlength=sizes[0])
        starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        with _without_notices():
            return torch.sparse_csr_tensor(
                starts, self.cols, self.values, sizes, check_invariants=True
            )

    def dense(self) -> Tensor:
        """Return W as a dense tensor, for looking at small ones."""
        sizes = (math.prod(self.out_shape), math.prod(self.in_shape))
        matrix = self.values.new_zeros(sizes).index_put_((self.rows, self.cols), self.values)
        return matrix.view((*self.out_shape, *self.in_shape))

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
        if all(name in state_dict for name in names):
            found = Placed(*(state_dict[name] for name in names))
            _check_state(found, prefix, math.prod(self.out_shape), math.prod(self.in_shape))
            found = _in_order(found)
            for name, tensor in found._asdict().items():
                mine = getattr(self, name)
                setattr(self, name, mine.new_empty(tensor.shape, dtype=tensor.dtype))
            state_dict = {**state_dict, **dict(zip(names, found, strict=True))}
        elif any(name in state_dict for name in names):
            missing = [name for name in names if name not in state_dict]
            raise ValueError(f"{', '.join(names)} must come together; got none for {missing}")
        super()._load_from_state_dict(state_dict, prefix, *args)


@contextlib.contextmanager
def _without_notices() -> Iterator[None]:
    """Keep quiet what torch says to all users of its sparse tensors: they are checked here."""
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


def _check_state(found: Placed, prefix: str, rows: int, cols: int) -> None:
    """Refuse a state that is not a sparse matrix of this size."""
    check_integer(f"{prefix}rows", found.rows)
    check_integer(f"{prefix}cols", found.cols)
    check_floating(f"{prefix}values", found.values)
    if found.rows.dim() != 1 or len({tuple(tensor.shape) for tensor in found}) != 1:
        shapes = ", ".join(f"{n} {tuple(t.shape)}" for n, t in found._asdict().items())
        raise ValueError(f"{prefix}rows, cols and values must be lists of one length; got {shapes}")
    for name, index, size in (("rows", found.rows, rows), ("cols", found.cols, cols)):
        if index.numel() and not 0 <= index.min() <= index.max() < size:
            raise ValueError(
                f"{prefix}{name} must lie in 0 … {size - 1}; "
                f"got {int(index.min())} … {int(index.max())}"
            )
