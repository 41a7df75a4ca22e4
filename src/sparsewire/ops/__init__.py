"""The pipeline as pure functions: bound, sample, mark repeats, spread, contract.

Axis letters, the same everywhere:

- `b`: batch, any number of leading dimensions
- `c`: contexts; tuples compete, and repeats are removed, inside one
- `k`: continuous index tuples (of a context)
- `s`: integer tuples sampled for each continuous tuple
- `m`: integer tuples of a context, m = k · s
- `r`: rank, the number of learned columns
- `n`: size of an index axis
- `w`: wirings, leading dimensions of which each place has a sparse tensor of its own
"""

from sparsewire.engines import engine
from sparsewire.ops.bound import bound_means, bound_variances, fractions
from sparsewire.ops.contract import contract, contract_flat, contract_reference
from sparsewire.ops.repeats import flat_index, mark_repeats
from sparsewire.ops.sample import everywhere, local, nearest, rounded, sample, window
from sparsewire.ops.spread import proportions, spread, spread_reference

__all__ = [
    "bound_means",
    "bound_variances",
    "contract",
    "contract_flat",
    "contract_reference",
    "engine",
    "everywhere",
    "flat_index",
    "fractions",
    "local",
    "mark_repeats",
    "nearest",
    "proportions",
    "rounded",
    "sample",
    "spread",
    "spread_reference",
    "window",
]
