"""The process that performs cases. If it dies, hangs or loses its GPU, another one is started."""

import multiprocessing
import os
import signal
import tempfile
from multiprocessing.connection import Connection
from typing import Any

import torch

from sparsewire_lab import provenance
from sparsewire_lab.bench import peers
from sparsewire_lab.bench.cases import Case
from sparsewire_lab.bench.perform import Setting, explain, perform
from sparsewire_lab.bench.record import Row

_START_SECONDS = 180.0


class WorkerLostError(RuntimeError):
    """The process ended, or did not answer in time."""


class Worker:
    """A process that performs cases; `about` describes its device."""

    def __init__(self, setting: Setting) -> None:
        # The process inherits these before its torch starts; KeOps reads nothing else.
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        if setting.threads is not None:
            os.environ["OMP_NUM_THREADS"] = str(setting.threads)
        self._errors = tempfile.NamedTemporaryFile("r", errors="replace")  # noqa: SIM115
        context = multiprocessing.get_context("spawn")
        self._link, link = context.Pipe()
        self._process = context.Process(target=_serve, args=(link, self._errors.name))
        self._process.start()
        link.close()
        try:
            self.about = self._ask(setting, _START_SECONDS)
            if "failed" in self.about:
                raise WorkerLostError(self.about["failed"])
        except BaseException:
            self.stop()
            raise

    def perform(self, case: Case, seconds: float) -> tuple[Row, bool]:
        """Return the results, and whether the process can go on."""
        return self._ask(case, seconds)

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()
        self._link.close()
        self._errors.close()

    def _ask(self, question: Setting | Case, seconds: float) -> Any:
        try:
            self._link.send(question)
            if self._link.poll(seconds):
                return self._link.recv()
        except (EOFError, OSError):
            raise WorkerLostError(self._last_words()) from None
        raise WorkerLostError(f"stopped after {seconds:.0f} s")

    def _last_words(self) -> str:
        self._process.join()
        status = self._process.exitcode or 0
        lines = [line.strip() for line in self._errors if line.strip()]
        how = f"ended by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"the process {how}" + (f": {lines[-1][:200]}" if lines else "")


def _serve(link: Connection, errors: str) -> None:
    """Answer the process that started this one; its first question is the setting."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run decides when to stop
    # What libraries print must not interfere with what the run prints; the last line may be why
    # this process ended.
    file = os.open(errors, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    setting: Setting = link.recv()
    link.send(_about(setting))
    while True:
        try:
            case = link.recv()
        except EOFError:  # the run has ended
            return
        row = perform(case, setting)
        # A capture that failed, or a kernel that did, may leave the GPU unusable.
        link.send((row, setting.device != "cuda" or row["status"] != "failed"))


def _about(setting: Setting) -> dict[str, Any]:
    if setting.threads is not None:
        torch.set_num_threads(setting.threads)
    try:
        device = torch.device(setting.device)
        torch.zeros(1, device=device)
        return {
            "columns": provenance.describe(device),
            "memory": provenance.memory_limit(device),
            "absent": peers.absent(),
        }
    except Exception as error:
        return {"failed": explain(error)}
