"""Perform one case: check it against float64, then measure it."""

import contextlib
import functools
import gc
import math
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import sparsewire as sw
from sparsewire.engines import Name
from sparsewire_lab.bench import ceilings, exactness, peers, problems, properties
from sparsewire_lab.bench.cases import (
    DIFFTOPK,
    FEW,
    LEAGUE,
    OTT,
    OURS,
    OWN_ENGINES,
    SORTS,
    WITHOUT_TIME,
    Case,
)
from sparsewire_lab.bench.floors import sizes_of
from sparsewire_lab.bench.measure import CudaMeter, Meter, captured, meter_for
from sparsewire_lab.bench.problems import LayerProblem, Named, Problem
from sparsewire_lab.bench.record import Row

_LEARNING_RATE = 1e-3
_WARM_UP_CALLS = 10  # sw.capture runs a few steps eagerly first
# Instances are sorted independently: so many are checked, at least, and more where n is small.
_CHECKED, _CHECKED_PAIRS = 4, 2**18
# Up to so many elements ours is compared with all pairs, above with scans; above more, not at all.
_BY_PAIRS, _BY_SCANS = 256, 2**17


@dataclass(frozen=True)
class Setting:
    """How a run measures."""

    device: str = "cpu"
    threads: int | None = None
    budget: float = 0.5  # seconds for the repeats of a call
    table_pairs: int = 2**25  # up to so many pairs, the truth is the float64 reference
    checked_pairs: int = 2**25  # up to so many, float64 in chunks


def perform(case: Case, setting: Setting) -> Row:
    """Return the results of a case: columns of a row, `status` among them.

    Nothing is raised: the note of the row says what failed.
    """
    device = torch.device(setting.device)
    row: Row = {"status": "ok", "note": ""}
    try:
        _PERFORMERS[case.case](case, setting, meter_for(device, setting.budget), row)
    except Exception as error:
        row["status"] = "failed"
        add_note(row, explain(error))
    if device.type == "cuda":  # the next case needs an empty device
        gc.collect()
        with contextlib.suppress(RuntimeError):  # a broken device has been reported already
            torch.cuda.empty_cache()
    return row


def explain(error: BaseException) -> str:
    """Return one line: which error, its message, and where it was raised."""
    lines = str(error).strip().splitlines()
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    message = lines[0][:200] if lines else "no message"
    return f"{type(error).__name__}: {message}{where}"


def add_note(row: Row, note: str) -> None:
    """Add to the note of a row."""
    row["note"] = "; ".join(filter(None, (row.get("note"), note)))


def exact_results(case: Case, problem: Problem, engine: Name = "reference") -> Named:
    """Return output and gradients in float64, ours by one engine."""
    with sw.engine(engine):
        return problem.name(problem.both(peers.engine_of(case)))


def capture_step(
    step: Callable[[], Tensor], optimizer: Any, meter: Meter
) -> tuple[float, Callable[[], Tensor]]:
    """Capture a step as a user would; return the memory that this needs, and the replay."""
    gpu = _gpu_only(meter)

    def once() -> Any:
        replay = sw.capture(step, optimizer=optimizer, device=gpu.device)
        for _ in range(_WARM_UP_CALLS):
            replay()
            if replay.captured:
                return replay
        raise RuntimeError(f"nothing was captured in {_WARM_UP_CALLS} calls")

    return gpu.peak(once)


def _perform_ceiling(case: Case, setting: Setting, meter: Meter, row: Row) -> None:
    rate, unit, measured, note = ceilings.measure(case.engine, meter)
    row.update(rate=rate, unit=unit, repeats=measured.repeats, noise=measured.noise, note=note)


def _perform_function(case: Case, setting: Setting, meter: Meter, row: Row) -> None:
    problem = _problem(case.inputs, setting.device)
    if sizes := sizes_of(case):
        row["near_pairs"] = round(sizes.pairs * _near_share(case.inputs, setting.device))
    name: Any = case.engine if case.engine in OWN_ENGINES else OURS
    row["package"] = peers.version_of(case.engine)
    with sw.engine(name):
        if case.engine == OTT:
            forward, both = peers.ott_calls(case, problem.inputs["keys"], problem.weight)
        else:
            engine = peers.engine_of(case)
            forward = functools.partial(problem.forward, engine)
            both = functools.partial(problem.both, engine)
        capture_mib = None
        if case.mode == "captured":
            gpu = _gpu_only(meter)
            both()
            capture_mib, both = gpu.peak(functools.partial(captured, both))
            forward = captured(forward)
        if case.case in LEAGUE:  # it has many cases, and the page shows both passes alone
            forward = None
        _check_function(case, setting, problem.name(both()), row)
        _time(row, meter, forward, both, capture_mib)


def _perform_layer(case: Case, setting: Setting, meter: Meter, row: Row) -> None:
    problem, sizes = problems.layer_problem(case, torch.device(setting.device)), sizes_of(case)
    assert sizes is not None
    row["near_pairs"] = round(sizes.pairs * exactness.layer_near_share(problem))
    name: Any = case.engine
    if case.mode == "eager":
        _check_layer(name, _exact_engine(sizes.pairs, setting), problem, row)
    if row["status"] != "ok":
        return
    layer, x = problem.layer, problem.x
    parameters, on_gpu = [*problem.leaves.values()], x.device.type == "cuda"
    optimizer: Any = ()
    if case.case != "glimpse":
        optimizer = torch.optim.Adam(parameters, _LEARNING_RATE, fused=True, capturable=on_gpu)

    def step() -> Tensor:
        if not optimizer:  # a glimpse is part of a larger network: only gradients are computed
            loss = layer(x).square().mean()
            torch.autograd.grad(loss, parameters)
            return loss.detach()
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(layer(x), x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    with sw.engine(name):
        step()
        if case.mode == "eager":
            _time(row, meter, torch.no_grad()(functools.partial(layer, x)), step)
            return
        extra, replay = capture_step(step, optimizer, meter)
        if not math.isfinite(float(replay())):
            row["status"] = "wrong"
            add_note(row, "the captured step gives a loss that is not finite")
        _time(row, meter, None, replay, extra)


def _perform_canvases(case: Case, setting: Setting, meter: Meter, row: Row) -> None:
    from sparsewire_lab import data  # scikit-learn is slow to import

    images = torch.randint(256, (2**14, 28, 28), dtype=torch.uint8, device=meter.device)
    digits = data.Digits(images, torch.zeros(len(images), dtype=torch.int64, device=meter.device))

    def make() -> Tensor:
        return data.sample_canvases(digits, case.batch, data.CANVASES[case.n])[0].images

    make()
    if case.mode == "captured":
        _gpu_only(meter)
        make = captured(make)
    measured = meter.time(make)
    row.update(ms_forward=measured.ms, repeats=measured.repeats, noise=measured.noise)


def _perform_properties(case: Case, setting: Setting, meter: Meter, row: Row) -> None:
    found = properties.check(case.engine)
    row["package"] = peers.version_of(case.engine)
    row["note"] = "; ".join(f"{name}: {properties.ANSWERS[found[name]]}" for name in found)


def _gpu_only(meter: Meter) -> CudaMeter:
    if not isinstance(meter, CudaMeter):
        raise ValueError("mode must be 'eager' without a GPU; got 'captured'")
    return meter


def _time(
    row: Row,
    meter: Meter,
    forward: Callable[[], Any] | None,
    both: Callable[[], Any],
    capture_mib: float | None = None,
) -> None:
    """Time the two calls, unless the engine is wrong."""
    if row["status"] != "ok":
        return
    if forward is not None:
        forward()
        row["ms_forward"] = meter.time(forward).ms
    ms, repeats, noise, extra = meter.measure(both)
    extra = extra if capture_mib is None else capture_mib
    row.update(ms_forward_backward=ms, repeats=repeats, noise=noise, extra_mib=extra)


def _check_function(case: Case, setting: Setting, results: Named, row: Row) -> None:
    if case.engine == OTT:
        return add_note(row, f"{peers.OTT_STEPS} steps, unrolled; not checked")
    if case.engine == DIFFTOPK:
        return add_note(row, "not checked: it has no double precision")
    sorts = case.case in SORTS
    # Peers of sorting are functions of their own: only their rounding is measured.
    truth = _truth(replace(case, mode="eager") if sorts else case.inputs, setting)
    if truth is None:
        return add_note(row, "too large to check")
    error = exactness.relative_error(results, truth[0])
    return _enter(row, *error, "itself" if sorts and case.engine != OURS else truth[1])


def _check_layer(engine: Name, exact: Name | None, problem: LayerProblem, row: Row) -> None:
    if exact is None:
        return add_note(row, "too large to check")
    try:
        error = exactness.layer_errors(problem, engine, exact)
    except Exception as error:  # measuring will show whether the engine itself is broken
        return add_note(row, f"not checked: {explain(error)}")
    return _enter(row, *error, exact)


def _enter(row: Row, error: float, worst: str, against: str) -> None:
    """Enter the error of an engine; mark it as wrong if it is large, and not its own rounding."""
    row.update(error=error if math.isfinite(error) else None, checked_against=f"{against}, float64")
    if error <= exactness.WRONG:
        return
    if against == "itself":
        add_note(row, f"in float32 its relative error is {error:.1e} in {worst}")
    else:
        row["status"] = "wrong"
        add_note(row, f"wrong: relative error {error:.1e} in {worst}, not timed")


def _exact_engine(pairs: int, setting: Setting) -> Name | None:
    """Return the engine of the truth: the reference, or chunks where no table would fit."""
    if pairs <= setting.table_pairs:
        return "reference"
    return "chunked" if pairs <= setting.checked_pairs else None


# The cases of one size follow each other: their inputs and their truth are computed once.


@functools.lru_cache(maxsize=1)
def _problem(case: Case, device: str) -> Problem:
    make = problems.sorting_problem if case.case in SORTS else problems.spread_problem
    return make(case, torch.device(device))


@functools.lru_cache(maxsize=1)
def _near_share(case: Case, device: str) -> float:
    names = ("means", "variances", "indices", "excluded")
    inputs = _problem(case, device).inputs
    return exactness.near_share(*(inputs[name].detach().unsqueeze(0) for name in names))


@functools.lru_cache(maxsize=1)
def _truth(case: Case, setting: Setting) -> tuple[Named, str] | None:
    problem, sizes = _problem(case.inputs, setting.device), sizes_of(case)
    if sizes is None:
        if case.n > _BY_SCANS:
            return None
        rows = min(case.batch, max(_CHECKED, _CHECKED_PAIRS // case.n**2))
        engine = "reference" if case.n <= _BY_PAIRS or case.case == "order_loss" else "chunked"
        return exact_results(case, problem.exact(rows), engine), engine
    engine = _exact_engine(sizes.pairs, setting)
    return None if engine is None else (exact_results(case, problem.exact(), engine), engine)


_PERFORMERS: dict[str, Callable[[Case, Setting, Meter, Row], None]] = {
    "ceilings": _perform_ceiling,
    **dict.fromkeys(("spread", FEW, *SORTS), _perform_function),
    **dict.fromkeys(("step", "contexts", "glimpse"), _perform_layer),
    "canvases": _perform_canvases,
    WITHOUT_TIME: _perform_properties,
}
