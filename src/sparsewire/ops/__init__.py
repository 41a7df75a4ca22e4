"""The pipeline as pure functions: bound, sample, mark repeats, spread, contract; and soft sorting.

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
from sparsewire.ops.spread import (
    proportions,
    spread,
    spread_chunked,
    spread_compiled,
    spread_reference,
)
from sparsewire.sorting.halves import (
    enumerated_half,
    exact_half,
    half,
    half_rows,
    log_odds,
    log_symmetric,
    sampled_half,
)
from sparsewire.sorting.order_loss import order_loss
from sparsewire.sorting.soft_sort import (
    SoftTopK,
    soft_median,
    soft_permutation,
    soft_quantile,
    soft_rank,
    soft_sort,
    soft_topk,
    sort_by,
)

__all__ = [
    "SoftTopK",
    "bound_means",
    "bound_variances",
    "contract",
    "contract_flat",
    "contract_reference",
    "engine",
    "enumerated_half",
    "everywhere",
    "exact_half",
    "flat_index",
    "fractions",
    "half",
    "half_rows",
    "local",
    "log_odds",
    "log_symmetric",
    "mark_repeats",
    "nearest",
    "order_loss",
    "proportions",
    "rounded",
    "sample",
    "sampled_half",
    "soft_median",
    "soft_permutation",
    "soft_quantile",
    "soft_rank",
    "soft_sort",
    "soft_topk",
    "sort_by",
    "spread",
    "spread_chunked",
    "spread_compiled",
    "spread_reference",
    "window",
]
