"""Shape annotations: jaxtyping's where it is loaded, plain tensors where it is not.

The library needs torch and numpy alone. The test suite imports jaxtyping first, and then every
annotation below is a shape that is checked on each call.
"""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or "jaxtyping" in sys.modules:
    from jaxtyping import Bool, Float, Int
else:

    class _AnyShape:
        """Stands in for jaxtyping: `Float[Tensor, "k r"]` means `Tensor`."""

        def __class_getitem__(cls, item: tuple[Any, str]) -> Any:
            return item[0]

    Bool = Float = Int = _AnyShape

__all__ = ["Bool", "Float", "Int"]
