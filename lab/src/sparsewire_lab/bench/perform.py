"""Perform one case: check it against float64, then measure it."""

import contextlib
import functools
import gc
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import sparsewire as sw
from sparsewire import ops
from sparsewire_lab.bench import ceilings, exactness
from sparsewire_lab.bench.cases import ALL_PAIRS, FEW, OURS, Case, samples_of, sizes_of
from sparsewire_lab.bench.found import Row, Setting, add_note, enter, explain, in_mode, judge
from sparsewire_lab.bench.measure import CudaMeter, Meter, captured, meter_for
from sparsewire_lab.bench.peers import PEERS
from sparsewire_lab.bench.problems import (
    LayerProblem,
    SpreadProblem,
    layer_problem,
    spread_problem,
)
from sparsewire_lab.bench.sorting_cases import SORTING
from sparsewire_lab.bench.sorting_perform import perform_sorting

_LEARNING_RATE = 1e-3
_WARM_UP_CALLS = 10  # sw.capture runs a few steps eagerly first


def perform(case: Case, setting: Setting) -> Row:
    """Return what was found: columns of a row, `status` among them.

    Nothing is raised: what goes wrong is said in the row.
    """
    device = torch.device(setting.device)
    row: Row = {"status": "ok", "note": ""}
    try:
        _PERFORMERS[case.case](case, setting, meter_for(device, setting.budget), row)
    except Exception as error:
        row["status"] = "failed"
        add_note(row, explain(error))
    if device.type == "cuda":
        _release()
    return row


def _release() -> None:
    """Give back what the case held, so that the next one finds an empty device."""
    gc.collect()
    with contextlib.suppress(RuntimeError):  # a broken device has been reported already
        torch.cuda.empty_cache()


def _perform_ceiling(case: Case, setting: Setting, meter: Meter, row: Row) -> None:
    found = ceilings.measure(case.engine, meter)
    row.update(rate=found.rate, unit=found.unit)
    row.update(repeats=found.measured.repeats, noise=found.measured.noise)
    add_note(row, found.note)


def _perform_spread(case: Case, setting: Setting, meter: Meter, row: Row) -> None:
    drawn = case.n, samples_of(case)
    problem = _spread_problem(*drawn, setting.device)
    row["near_pairs"] = round(sizes_of(case).pairs * _spread_near_share(*drawn, setting.device))
    spread = _spread_engine(case)

    def plain_forward() -> Tensor:
        with torch.no_grad():
            return spread(*problem.leaves, problem.indices, problem.excluded)

    def plain_both() -> list[Tensor]:
        out = spread(*problem.leaves, problem.indices, problem.excluded)
        return [out.detach(), *torch.autograd.grad(out, problem.leaves, problem.weight)]

    with sw.engine("auto"):
        forward, both, capture_mib = in_mode(case, meter, plain_forward, plain_both)
        results = exactness.name_results(problem, both())
        if (truth := _spread_truth(*drawn, setting)) is not None:
            judge(row, *exactness.relative_error(results, truth[0]), truth[1])
        else:
            add_note(row, "too large to check")
        del results
        if row["status"] == "ok":
            forward()
            row["ms_forward"] = meter.time(forward).ms
            enter(row, meter.measure(both), capture_mib)


def _perform_layer(case: Case, setting: Setting, meter: Meter, row: Row) -> None:
    problem = layer_problem(case, torch.device(setting.device))
    add_note(row, problem.note)
    row["near_pairs"] = round(sizes_of(case).pairs * exactness.layer_near_share(problem))
    engine: Any = case.engine
    if case.mode == "eager":
        _check_layer(case, setting, problem, row)
        if row["status"] != "ok":
            return
    with sw.engine(engine):
        step = _training_step(problem) if case.case == "step" else _gradients(problem)

        def forward() -> Tensor:
            with torch.no_grad():
                return problem.layer(problem.x)

        step()
        if case.mode == "captured":
            extra, replay = _capture(step, meter, row)
            loss = replay()
            if isinstance(loss, Tensor) and not math.isfinite(float(loss)):
                row["status"] = "wrong"
                add_note(row, "the captured step gives a loss that is not finite")
                return
            enter(row, meter.measure(replay), extra)
        else:
            forward()
            row["ms_forward"] = meter.time(forward).ms
            enter(row, meter.measure(step), None)


_PERFORMERS: dict[str, Callable[[Case, Setting, Meter, Row], None]] = {
    "ceilings": _perform_ceiling,
    "spread": _perform_spread,
    FEW: _perform_spread,
    "step": _perform_layer,
    "glimpse": _perform_layer,
    **dict.fromkeys(SORTING, perform_sorting),
}


def _spread_engine(case: Case) -> Callable[..., Tensor]:
    if case.engine in PEERS:
        return PEERS[case.engine]
    engines: dict[str, Callable[..., Tensor]] = {
        OURS: ops.spread,
        "reference": ops.spread_reference,
        "chunked": ops.spread_chunked,
        "compiled": ops.spread_compiled,
    }
    if case.variant == ALL_PAIRS:
        return functools.partial(ops.spread, tolerance=0.0)
    return engines[case.engine]


def _training_step(problem: LayerProblem) -> Callable[[], Tensor]:
    layer, x = problem.layer, problem.x
    on_gpu = x.device.type == "cuda"
    optimizer = torch.optim.Adam(
        layer.parameters(), lr=_LEARNING_RATE, fused=True, capturable=on_gpu
    )

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(layer(x), x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step.optimizer = optimizer  # pyright: ignore[reportFunctionMemberAccess]
    return step


def _gradients(problem: LayerProblem) -> Callable[[], Tensor]:
    def step() -> Tensor:
        loss = problem.layer(problem.x).square().mean()
        torch.autograd.grad(loss, problem.leaves)
        return loss.detach()

    return step


def _capture(
    step: Callable[[], Tensor], meter: Meter, row: Row
) -> tuple[float, Callable[[], Tensor]]:
    """Capture a step as a user would, with `sw.capture` where this version has it."""
    if not isinstance(meter, CudaMeter):
        raise ValueError("mode must be 'eager' without a GPU; got 'captured'")
    capture = getattr(sw, "capture", None)
    if capture is None:
        add_note(row, "captured with torch.cuda.graph")
        return meter.peak(lambda: captured(step))

    def once() -> Any:
        replay = capture(step, optimizer=getattr(step, "optimizer", ()), device=meter.device)
        for _ in range(_WARM_UP_CALLS):
            replay()
            if replay.captured:
                return replay
        raise RuntimeError(f"nothing was captured in {_WARM_UP_CALLS} calls")

    return meter.peak(once)


def _check_layer(case: Case, setting: Setting, problem: LayerProblem, row: Row) -> None:
    pairs, engine = sizes_of(case).pairs, case.engine
    exact, name = _exact_engine(pairs, setting)
    if exact is None:
        add_note(row, "too large to check")
        return
    try:
        found = exactness.layer_errors(problem, engine, exact)
    except Exception as error:  # the measurement will tell if the engine itself is broken
        add_note(row, f"not checked: {explain(error)}")
        return
    judge(row, *found, name)


def _exact_engine(pairs: int, setting: Setting) -> tuple[Callable[..., Tensor] | None, str]:
    """Return what computes the truth: the reference, or chunks where no table would fit."""
    if pairs <= setting.table_pairs:
        return ops.spread_reference, "reference, float64"
    if pairs <= setting.checked_pairs:
        return ops.spread_chunked, "chunked, float64"
    return None, ""


# The cases of one size follow each other: its inputs and its truth are made once.


@functools.lru_cache(maxsize=1)
def _spread_problem(n: int, samples: tuple[int, int], device: str) -> SpreadProblem:
    return spread_problem(n, samples, torch.device(device))


@functools.lru_cache(maxsize=1)
def _spread_near_share(n: int, samples: tuple[int, int], device: str) -> float:
    problem = _spread_problem(n, samples, device)
    tensors = problem.means, problem.variances, problem.indices, problem.excluded
    return exactness.near_share(*(t.detach().unsqueeze(0) for t in tensors))


@functools.lru_cache(maxsize=1)
def _spread_truth(
    n: int, samples: tuple[int, int], setting: Setting
) -> tuple[exactness.Named, str] | None:
    problem = _spread_problem(n, samples, setting.device)
    exact, name = _exact_engine(len(problem.means) * len(problem.indices), setting)
    if exact is None:
        return None
    with sw.engine("reference"):
        return exactness.exact_spread(problem, exact), name
