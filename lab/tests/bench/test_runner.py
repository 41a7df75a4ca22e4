"""A run continues whatever fails, and every row is complete."""

from typing import Any

import pytest
from lab.tests.bench.rows import RATES

from sparsewire_lab.bench.cases import Case
from sparsewire_lab.bench.perform import Setting
from sparsewire_lab.bench.record import COLUMNS
from sparsewire_lab.bench.runner import Run, quantity, summary
from sparsewire_lab.bench.worker import Worker, WorkerLostError

COLUMNS_OF_A_RUN = {"date": "2030", "commit": "abc", "plan": "full"}
CEILINGS = [Case("ceilings", name) for name in RATES]


class Pretender:
    """A substitute for a worker: it gives fixed answers, or is lost."""

    about = {"columns": {"device": "a machine"}, "memory": 2**40, "absent": ()}  # noqa: RUF012

    def __init__(self, answers: dict[str, Any], log: list[str]) -> None:
        self.answers, self.log = answers, log
        log.append("start")

    def perform(self, case: Case, seconds: float) -> tuple[dict[str, Any], bool]:
        if case.case == "ceilings":
            return {"status": "ok", "rate": RATES[case.engine], "unit": "/s", "note": ""}, True
        answer = self.answers[case.engine]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, str):
            return {"status": "failed", "note": answer}, False
        return {"status": "ok", "ms_forward_backward": answer, "near_pairs": 100, "note": ""}, True

    def stop(self) -> None:
        self.log.append("stop")


def pretend(answers: dict[str, Any], cases: list[Case]) -> tuple[list[dict[str, Any]], list[str]]:
    log: list[str] = []
    with Run(lambda: Pretender(answers, log), COLUMNS_OF_A_RUN, 10.0, 1.0) as run:
        return list(run.perform([*CEILINGS, *cases]))[len(CEILINGS) :], log


def test_rows_are_complete_with_floors_and_ratios() -> None:
    cases = [Case("spread", engine, 64) for engine in ("reference", "auto")]
    cases.append(Case("spread", "auto", 64, mode="captured"))  # compared with eager
    rows, log = pretend({"reference": 6.0, "auto": 2.0}, cases)
    assert log == ["start", "stop"]
    for row in rows:
        assert tuple(row) == COLUMNS
        assert (row["device"], row["commit"], row["plan"]) == ("a machine", "abc", "full")
        assert (row["k"], row["m"], row["pairs"]) == (64, 1536, 64 * 1536)
        assert row["floor_ms"] == pytest.approx(2 * 64 * 1536 / 1e9 * 1e3)
        assert row["floor_limit"] == "exp"
        assert 0 < row["near_floor_ms"] < row["floor_forward_ms"] < row["floor_ms"]
    assert [row["ratio_to_reference"] for row in rows] == pytest.approx([1, 1 / 3, 1 / 3])


def test_a_lost_worker_is_replaced_and_the_rest_is_measured() -> None:
    cases = [Case("spread", engine, 64) for engine in ("reference", "plain", "chunked", "auto")]
    answers = {"reference": 6.0, "plain": WorkerLostError("ended by signal 11"), "chunked": "odd"}
    rows, log = pretend({**answers, "auto": 2.0}, cases)
    assert [row["status"] for row in rows] == ["ok", "failed", "failed", "ok"]
    assert [row["note"] for row in rows[1:3]] == ["ended by signal 11", "odd"]
    assert log == ["start", "stop", "start", "stop", "start", "stop"]
    assert rows[3]["ratio_to_reference"] == pytest.approx(1 / 3)


def test_skipped_cases_are_not_performed() -> None:
    cases = [Case("spread", "auto", n) for n in (64, 1024)]
    rows, _ = pretend({"auto": 1000.0}, cases)
    assert rows[1]["status"] == "skipped"
    assert rows[1]["ms_forward_backward"] is None
    assert rows[1]["floor_ms"] > 0
    assert summary(rows[1]) == "skipped: would take up to 256.0 s a call; 10 s are allowed"


def test_a_worker_performs_and_its_loss_is_noticed() -> None:
    worker = Worker(Setting(budget=0.001, threads=1))
    try:
        assert ", 1 of " in worker.about["columns"]["device"]
        row, sound = worker.perform(Case("spread", "auto", 8), 60.0)
        assert (row["status"], sound) == ("ok", True)
        with pytest.raises(WorkerLostError, match="stopped after 0 s"):
            worker.perform(Case("ceilings", "copy"), 0.001)
        worker._process.kill()
        with pytest.raises(WorkerLostError, match="the process ended by signal 9"):
            worker.perform(Case("spread", "auto", 8), 60.0)
    finally:
        worker.stop()


def test_a_worker_without_its_device_says_why() -> None:
    with pytest.raises(WorkerLostError, match="not_a_device"):
        Worker(Setting(device="not_a_device"))


def test_large_numbers_are_written_short() -> None:
    written = [quantity(number) for number in (4.31e12, 9.9e9, 1e6, 1500.0, 7.0)]
    assert written == ["4.31 T", "9.9 G", "1 M", "1.5 k", "7 "]
