# ruff: noqa: E501  # a table, one bad call a line
"""Bad arguments, and the safety net of the tests themselves."""

import re
from typing import Any

import jaxtyping
import pytest
import torch

from sparsewire.ops import (
    bound_means,
    bound_variances,
    contract,
    everywhere,
    flat_index,
    fractions,
    local,
    mark_repeats,
    nearest,
    proportions,
    rounded,
    sample,
    spread,
    spread_reference,
    window,
)

# Any, since most calls below are wrong on purpose.
FLOATS: Any = torch.zeros(4, 2)
INTS: Any = torch.zeros(4, 2, dtype=torch.int64)
ROW: Any = torch.zeros(4)
META: Any = torch.zeros(4, 2, device="meta")
TEXT: Any = "text"
REAL: Any = 2.5
NUMBER: Any = 7
NOT_BOOL: Any = torch.zeros(4, dtype=torch.uint8)

BAD_CALLS = [
    # bound
    (lambda: fractions(ROW, TEXT), ValueError, "edge must be one of 'sigmoid', 'clamp', 'wrap'; got 'text'"),
    (lambda: fractions(INTS), TypeError, "raw must have a floating-point dtype; got torch.int64"),
    (lambda: bound_means(INTS, (3, 3)), TypeError, "raw must have a floating-point dtype; got torch.int64"),
    (lambda: bound_means(NUMBER, (3, 3)), TypeError, "raw must be a tensor; got int"),
    (lambda: bound_means(FLOATS, (3, 3), TEXT), ValueError, "edge must be one of 'sigmoid', 'clamp', 'wrap'; got 'text'"),
    (lambda: bound_means(FLOATS, (3,)), ValueError, "raw must have shape (*b, r) ending in (1); got (4, 2)"),
    (lambda: bound_means(FLOATS, (3, 0)), ValueError, "shape[1] must be at least 1; got 0"),
    (lambda: bound_means(FLOATS, (3, REAL)), TypeError, "shape[1] must be an integer; got 2.5"),
    (lambda: bound_means(FLOATS, (True, 3)), TypeError, "shape[0] must be an integer; got True"),
    (lambda: bound_means(FLOATS, NUMBER), TypeError, "shape must be a sequence of integers; got 7"),
    (lambda: bound_means(FLOATS, TEXT), TypeError, "shape must be a sequence of integers; got 'text'"),
    (lambda: bound_means(FLOATS, (2**32, 2**31)), ValueError, "shape must have at most 2**63 - 1 elements"),
    (lambda: bound_means(FLOATS, (3, 2**25)), ValueError, "shape[1] must be at most 2**22 for torch.float32 means"),
    (lambda: bound_variances(INTS, (3,)), TypeError, "raw must have a floating-point dtype; got torch.int64"),
    (lambda: bound_variances(ROW, (3,), scale=-1.0), ValueError, "scale must be between 0 and 1e+06; got -1.0"),
    (lambda: bound_variances(ROW, (3,), floor=float("nan")), ValueError, "floor must be between 0 and 1e+06; got nan"),
    (lambda: bound_variances(ROW, (3,), scale=float("inf")), ValueError, "scale must be between 0 and 1e+06; got inf"),
    (lambda: bound_variances(ROW, (3,), floor=TEXT), TypeError, "floor must be a number; got 'text'"),
    (lambda: bound_variances(ROW, (3, -1)), ValueError, "shape[1] must be at least 1; got -1"),
    # sample
    (lambda: nearest(INTS, (3, 3)), TypeError, "means must have a floating-point dtype; got torch.int64"),
    (lambda: nearest(ROW, (3,)), ValueError, "means must have shape (*b, k, r) ending in (any, 1); got (4,)"),
    (lambda: rounded(FLOATS, (3, 3, 3)), ValueError, "means must have shape (*b, k, r) ending in (any, 3); got (4, 2)"),
    (lambda: window(FLOATS, (3, 3), (3,)), ValueError, "region must have 2 sizes, one for each column; got (3,)"),
    (lambda: window(FLOATS, (3, 3), (3, 4)), ValueError, "region[1] must be at most 3, the size of that axis; got 4"),
    (lambda: local(FLOATS, (3, 3), (0, 1), 1), ValueError, "region[0] must be at least 1; got 0"),
    (lambda: local(FLOATS, (3, 3), NUMBER, 1), TypeError, "region must be a sequence of integers; got 7"),
    (lambda: local(FLOATS, (3, 3), (1, 1), -1), ValueError, "must be at least 0; got -1"),
    (lambda: everywhere((), (3, 3), -2), ValueError, "must be at least 0; got -2"),
    (lambda: everywhere((), (3, 3), REAL), TypeError, "must be an integer; got 2.5"),
    (lambda: sample(FLOATS, (3, 3), (1, 1), -1, 0), ValueError, "local_samples must be at least 0; got -1"),
    (lambda: sample(FLOATS, (3, 3), (1, 1), 0, -1), ValueError, "global_samples must be at least 0; got -1"),
    (lambda: sample(FLOATS, (3, 3), (1, 1), REAL, 0), TypeError, "local_samples must be an integer; got 2.5"),
    (lambda: sample(FLOATS, (3, 3), (9, 1), 1, 1), ValueError, "region[0] must be at most 3, the size of that axis; got 9"),
    (lambda: sample(META, (3, 3), (1, 1), 1, 1, torch.Generator()), ValueError, "generator must be on the device of means, meta; got cpu"),
    (lambda: sample(FLOATS, (3, 3), (1, 1), 1, 1, NUMBER), TypeError, "generator must be a torch.Generator; got int"),
    # mark repeats
    (lambda: flat_index(FLOATS, (3, 3)), TypeError, "indices must have dtype torch.int64; got torch.float32"),
    (lambda: flat_index(INTS.int(), (3, 3)), TypeError, "indices must have dtype torch.int64; got torch.int32"),
    (lambda: flat_index(INTS, (3,)), ValueError, "indices must have shape (*b, r) ending in (1); got (4, 2)"),
    (lambda: mark_repeats(INTS[0], (3, 3)), ValueError, "indices must have shape (*b, m, r) ending in (any, 2); got (2,)"),
    (lambda: mark_repeats(INTS[:, :1], (2**63,)), ValueError, "shape must have at most 2**63 - 1 elements"),
    (lambda: mark_repeats(TEXT, (3, 3)), TypeError, "indices must be a tensor; got str"),
    # spread
    (lambda: spread(INTS, FLOATS, ROW, INTS), TypeError, "means must have a floating-point dtype; got torch.int64"),
    (lambda: spread(FLOATS, INTS, ROW, INTS), TypeError, "variances must have a floating-point dtype; got torch.int64"),
    (lambda: spread(FLOATS, FLOATS, ROW.long(), INTS), TypeError, "values must have a floating-point dtype; got torch.int64"),
    (lambda: spread(FLOATS, FLOATS, ROW, FLOATS), TypeError, "indices must have dtype torch.int64; got torch.float32"),
    (lambda: spread(ROW, ROW, ROW, INTS), ValueError, "means must have shape (*b, k, r) ending in (any, any); got (4,)"),
    (lambda: spread(FLOATS, FLOATS[:3], ROW, INTS), ValueError, "variances must have shape (4, 2); got (3, 2)"),
    (lambda: spread(FLOATS, FLOATS, ROW[:3], INTS), ValueError, "values must have shape (4,); got (3,)"),
    (lambda: spread(FLOATS, FLOATS, ROW, INTS[:, :1]), ValueError, "indices must have shape (*b, m, r) ending in (any, 2); got (4, 1)"),
    (lambda: spread(FLOATS, FLOATS, ROW, INTS.expand(3, 4, 2)), ValueError, "indices must have shape"),
    (lambda: proportions(FLOATS, FLOATS, INTS.expand(3, 4, 2)), ValueError, "indices must have shape"),
    (lambda: spread(FLOATS, FLOATS, ROW, INTS, ROW.bool()[:3]), ValueError, "excluded must have shape (4,); got (3,)"),
    (lambda: spread(FLOATS, FLOATS, ROW, INTS, NOT_BOOL), TypeError, "excluded must have dtype torch.bool; got torch.uint8"),
    (lambda: spread(FLOATS, FLOATS, ROW, INTS, density=TEXT), ValueError, "density must be one of 'gaussian', 'student'; got 'text'"),
    (lambda: spread(FLOATS, FLOATS, ROW, INTS, degrees=0.0), ValueError, "degrees must be between 1e-06 and 1e+06; got 0.0"),
    (lambda: spread(FLOATS, META, ROW, INTS), ValueError, "must be on one device; got means on cpu, variances on meta"),
    (lambda: proportions(FLOATS, FLOATS, INTS, NOT_BOOL), TypeError, "excluded must have dtype torch.bool; got torch.uint8"),
    (lambda: spread_reference(FLOATS, FLOATS, ROW[:1], INTS), ValueError, "values must have shape (4,); got (1,)"),
    # contract
    (lambda: contract(FLOATS, ROW, ROW, (3,)), TypeError, "indices must have dtype torch.int64; got torch.float32"),
    (lambda: contract(INTS, ROW.long(), ROW, (3,)), TypeError, "values must have a floating-point dtype; got torch.int64"),
    (lambda: contract(INTS, ROW, ROW.long(), (3,)), TypeError, "x must have a floating-point dtype; got torch.int64"),
    (lambda: contract(INTS, ROW[:3], ROW, (3,)), ValueError, "values must have shape (4,); got (3,)"),
    (lambda: contract(INTS[0], ROW[0], ROW, (3,)), ValueError, "indices must have shape (*w, m, r) ending in (any, any); got (2,)"),
    (lambda: contract(INTS, ROW, ROW, (3, 3, 3)), ValueError, "indices must have at least 3 columns, one for each size of out_shape (3, 3, 3); got 2"),
    (lambda: contract(INTS, ROW, ROW[0], (3,)), ValueError, "x must have shape (*w, *b, *in_shape, *features) with w = (), 1 input and 0 feature dimensions; got ()"),
    (lambda: contract(INTS, ROW, ROW, (3,), features=1), ValueError, "x must have shape (*w, *b, *in_shape, *features) with w = (), 1 input and 1 feature dimensions; got (4,)"),
    (lambda: contract(INTS, ROW, ROW, (3,), features=-1), ValueError, "features must be at least 0; got -1"),
    (lambda: contract(INTS, ROW, ROW, (0,)), ValueError, "out_shape[0] must be at least 1; got 0"),
    (lambda: contract(INTS, ROW, ROW, NUMBER), TypeError, "out_shape must be a sequence of integers; got 7"),
    (lambda: contract(INTS.expand(3, 4, 2), ROW.expand(3, 4), FLOATS, (3,)), ValueError, "with w = (3,), 1 input and 0 feature dimensions; got (4, 2)"),
    (lambda: contract(INTS - 1, ROW, ROW, (3,)), ValueError, "indices must lie in 0 … 2 in column 0; got -1 … -1"),
    (lambda: contract(INTS + INTS.new_tensor([0, 4]), ROW, ROW, (3,)), ValueError, "indices must lie in 0 … 3 in column 1; got 4 … 4"),
    (lambda: contract(INTS, ROW, META[:, 0], (3,)), ValueError, "indices, values, x must be on one device; got indices on cpu, values on cpu, x on meta"),
]  # fmt: skip


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("call", "error", "message"), BAD_CALLS, ids=[row[2] for row in BAD_CALLS])
def test_errors_name_the_argument_what_was_expected_and_what_came(call, error, message):
    with pytest.raises(error, match=re.escape(message)) as caught:
        call()
    assert type(caught.value) is error


def test_what_is_computed_under_inference_mode_serves_training_later():
    def bounds(raw: torch.Tensor) -> torch.Tensor:
        return bound_means(raw, (1234, 4321)) * bound_variances(raw[:, 0], (1234, 4321))

    with torch.inference_mode():
        bounds(torch.zeros(3, 2))
    raw = torch.zeros(3, 2, requires_grad=True)
    bounds(raw).sum().backward()
    assert raw.grad is not None


def test_annotations_are_checked_in_tests():
    with pytest.raises(jaxtyping.TypeCheckError, match="means"):
        spread(INTS, FLOATS, ROW, INTS)
    with pytest.raises(jaxtyping.TypeCheckError, match="values"):
        spread(FLOATS, FLOATS, ROW[:3], INTS)


def test_uninitialised_memory_is_poisoned():
    floats, like = torch.empty(1000), torch.empty_like(torch.zeros(1000))
    assert floats.isnan().all()
    assert like.isnan().all()
    assert floats.new_empty(1000).isnan().all()
    assert (torch.empty(1000, dtype=torch.int64) == torch.iinfo(torch.int64).max).all()
