"""The process that performs cases: it reads and writes one JSON object a line.

The run talks to it through `Worker`. If it dies, hangs or loses its GPU, another one is started.
"""

import contextlib
import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from typing import IO, Any

from sparsewire_lab.bench.cases import Case
from sparsewire_lab.bench.perform import Setting, explain, perform
from sparsewire_lab.bench.record import Row

_START_SECONDS = 180.0


class WorkerLostError(RuntimeError):
    """The process ended, or did not answer in time."""


class Worker:
    """A process that performs cases; `about` describes its device."""

    def __init__(self, setting: Setting) -> None:
        environment = dict(os.environ, OMP_WAIT_POLICY="PASSIVE")
        if setting.threads is not None:  # before torch starts: KeOps reads nothing else
            environment["OMP_NUM_THREADS"] = str(setting.threads)
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sparsewire_lab.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            text=True,
        )
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            self.about = self._ask(dataclasses.asdict(setting), _START_SECONDS)
            if "failed" in self.about:
                raise WorkerLostError(self.about["failed"])
        except BaseException:
            self.stop()
            raise

    def perform(self, case: Case, seconds: float) -> tuple[Row, bool]:
        """Return the results, and whether the process can go on."""
        answer = self._ask(dataclasses.asdict(case), seconds)
        return answer["row"], answer["sound"]

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            # Closing flushes, which fails.
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()

    def _ask(self, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            line = self._answers.get(timeout=seconds)
        except queue.Empty:
            raise WorkerLostError(f"stopped after {seconds:.0f} s") from None
        except OSError:
            line = ""
        if not line:
            raise WorkerLostError(self._last_words())
        return json.loads(line)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, ValueError):  # closed on this side
            for line in self._process.stdout:
                self._answers.put(line)
        self._answers.put("")

    def _last_words(self) -> str:
        status = self._process.wait()
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        how = f"ended by signal {-status}" if status < 0 else f"ended with status {status}"
        return f"the process {how}" + (f": {lines[-1][:200]}" if lines else "")


def serve(questions: IO[str], answers: IO[str]) -> None:
    """Answer until there are no more questions; the first is the setting."""
    setting = Setting(**json.loads(questions.readline()))
    _send(answers, _about(setting))
    for line in questions:
        case = Case(**json.loads(line))
        row = perform(case, setting)
        # A capture that failed, or a kernel that did, may leave the GPU unusable.
        failed_on_gpu = setting.device == "cuda" and row["status"] == "failed"
        _send(answers, {"row": row, "sound": not failed_on_gpu})


def _about(setting: Setting) -> dict[str, Any]:
    import torch

    from sparsewire_lab import provenance
    from sparsewire_lab.bench import peers

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


def _send(answers: IO[str], answer: dict[str, Any]) -> None:
    print(json.dumps(answer), file=answers, flush=True)


def main() -> None:
    """Answer the process that started this one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the run decides when to stop
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries that print must not interfere with the answers
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
