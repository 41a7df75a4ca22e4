"""What a sparse layer and its frozen form have in common: shapes, input check, bias and state."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from sparsewire.checks import (
    check_count,
    check_devices,
    check_floating,
    check_open_shape,
    check_shape,
)
from sparsewire.nn.layout import Shapes


class LinearMap(nn.Module):
    """Base class of modules that multiply the axes `in_shape` of an input by a sparse tensor.

    Args:
        in_shape: Sizes of the input axes; `None` for those that may change between calls.
        out_shape: Sizes of the output axes.
        features: How many last dimensions of the input are mapped alike.
    """

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
        if None in in_shape or not _fits(in_shape, self.in_shape):
            raise ValueError(
                f"in_shape must be {self.in_shape}, with a number for each None; "
                f"got {tuple(in_shape)}"
            )
        return Shapes(self.out_shape, check_shape("in_shape", tuple(in_shape)))  # pyright: ignore

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


def _fits(sizes: Sequence[int | None], expected: Sequence[int | None]) -> bool:
    """Whether sizes are as expected, where neither is open."""
    return len(sizes) == len(expected) and all(
        have is None or want is None or have == want
        for have, want in zip(sizes, expected, strict=True)
    )
