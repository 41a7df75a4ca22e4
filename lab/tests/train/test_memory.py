"""Memory: what is said if it is short, and that the CPU's allocator keeps what is freed."""

import platform
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from lab.tests.train.toy import Toy

from sparsewire_lab.cli.main import main
from sparsewire_lab.identity.experiment import IdentityTrial
from sparsewire_lab.train.memory import MemoryShortError, keep_freed_memory, memory_checked

HUGE = 99_999_999_999


@pytest.mark.parametrize(
    "allocate",
    [
        lambda: torch.empty(10 * HUGE),
        lambda: torch.zeros(HUGE, HUGE),
        lambda: torch.zeros(2**70),
        lambda: np.zeros(10 * HUGE),
        lambda: [0] * 2**62,
    ],
)
def test_the_arguments_that_decide_are_named(allocate: Callable[[], object]) -> None:
    told = r"^not enough memory for batch 8"
    with pytest.raises(MemoryShortError, match=told), memory_checked(Toy()):
        allocate()


@pytest.mark.parametrize("error", [RuntimeError("a kernel failed"), ValueError("no"), KeyError(1)])
def test_other_errors_stay_as_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, memory_checked(Toy()):
        raise error
    assert raised.value is error


def test_too_little_memory_is_an_error_in_two_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(IdentityTrial, "evaluate", lambda _: {"error": 1.0, "found": 0.0})
    words = ["--size", "65536", "--batch", str(2**24), "--device", "cpu", "--no-tensorboard"]
    assert main(["identity", *words, "--out", str(tmp_path)]) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("sparsewire identity: error: not enough memory for batch 16,777,216, ")
    assert "size 65,536" in first
    assert second == "the same command with --debug shows where it happened"


def test_freed_memory_is_kept_where_there_is_glibc() -> None:
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")
