"""A trial: what subclasses must say, and what they may leave out."""

import pytest
import torch
from lab.tests.train.toy import Cursor
from torch import nn

from sparsewire_lab.train.trial import Stateful, Trial, generator

CPU = torch.device("cpu")


def make_trial() -> Trial:
    model = nn.Linear(2, 1)
    return Trial(model, torch.optim.Adam(model.parameters()))


def test_loss_and_error_must_be_said() -> None:
    trial = make_trial()
    with pytest.raises(NotImplementedError):
        trial.loss(trial.model, 1, lambda tensor: tensor)
    with pytest.raises(NotImplementedError):
        trial.evaluate()


def test_the_rest_may_be_left_out() -> None:
    trial = make_trial()
    trial.after_step()
    assert trial.schedule is None
    assert (trial.extras, trial.snapshot(0), trial.constants()) == ({}, {}, {})
    assert trial.conclude() == trial.pictures(0, {}) == {}


def test_what_can_be_saved_and_loaded_is_stateful() -> None:
    assert isinstance(Cursor(), Stateful)
    assert isinstance(nn.Linear(1, 1), Stateful)
    assert not isinstance(object(), Stateful)


def test_generators_are_apart_from_the_default_one() -> None:
    before = torch.get_rng_state()
    first = torch.randn(5, generator=generator(3, CPU))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(torch.randn(5, generator=generator(3, CPU)), first)
    assert not torch.equal(torch.randn(5, generator=generator(4, CPU)), first)
