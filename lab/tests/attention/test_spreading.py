"""Spreading: the share of a canvas in which digits may lie, step by step."""

import pytest
import torch

from sparsewire_lab.attention.spreading import Spreading

CPU = torch.device("cpu")


@pytest.mark.parametrize("start", [0.25, 0.8])
@pytest.mark.parametrize("until", [0.1, 0.4, 1.0])
def test_the_share_grows_evenly_until_digits_may_lie_anywhere(start, until):
    spreading = Spreading(20, start, until, CPU)
    for step in range(25):  # a run may be longer than it was told
        want = 1.0 if step >= 20 * until else start + (1 - start) * step / (20 * until)
        assert spreading.share.item() == pytest.approx(want, abs=1e-6), step
        spreading.advance()


def test_the_share_changes_in_place_as_captured_steps_need_it():
    spreading = Spreading(10, 0.25, 0.5, CPU)
    share = spreading.share
    assert (share.shape, share.dtype, share.requires_grad) == ((), torch.float32, False)
    for _ in range(5):
        spreading.advance()
    assert spreading.share is share
    assert share.item() == 1.0


@pytest.mark.parametrize("steps", [0, 2, 9])
def test_a_saved_state_comes_back(steps):
    spreading, again = (Spreading(10, 0.25, 0.75, CPU) for _ in range(2))
    for _ in range(steps):
        spreading.advance()
    share = again.share
    again.load_state_dict(spreading.state_dict())
    assert again.share is share
    for _ in range(3):
        assert torch.equal(again.share, spreading.share)
        spreading.advance()
        again.advance()
