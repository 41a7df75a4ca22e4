"""Clocks: steps that are counted, and numbers that follow them."""

from typing import Any

import pytest

from sparsewire_lab.train.schedules import Clock


class Noted(Clock):
    """Notes the step whenever something is to be set."""

    def __init__(self, steps: int) -> None:
        super().__init__(steps)
        self.seen: list[int] = []

    def set(self) -> None:
        self.seen.append(self.step)


@pytest.mark.parametrize(("begin", "end"), [(0.0, 1.0), (0.0, 0.5), (0.2, 0.6), (0.75, 1.0)])
def test_between_two_shares_time_goes_evenly(begin, end):
    clock = Clock(20)
    for step in range(30):
        if step <= 20 * begin:
            want = 0.0
        elif step >= 20 * end:
            want = 1.0
        else:
            want = (step - 20 * begin) / (20 * (end - begin))
        assert clock.between(begin, end) == pytest.approx(want, abs=1e-12), step
        assert 0 <= clock.between(begin, end) <= 1
        clock.advance()


def test_a_saved_step_comes_back_and_what_follows_with_it():
    clock, other = Noted(3), Noted(3)
    for _ in range(4):  # a run may be longer than it was told
        clock.advance()
    assert clock.seen == [1, 2, 3, 4]
    saved: dict[str, Any] = clock.state_dict()
    assert saved == {"step": 4}
    other.load_state_dict(saved)
    assert (other.step, other.seen) == (4, [4])
    clock.advance()
    assert saved == {"step": 4}
