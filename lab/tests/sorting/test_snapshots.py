"""What a run of the sorting experiment keeps for figures: keys of fixed numbers, and one sort."""

from typing import Any

import numpy as np
import pytest
import torch
from lab.tests.sorting.sorts import build, of_every_method, run

from sparsewire.sorting import QuickSort
from sparsewire_lab.data.numbers import pictures
from sparsewire_lab.sorting import trial as sorting_trial
from sparsewire_lab.sorting.keys_file import read_keys, sort_of
from sparsewire_lab.sorting.trial import SortingTrial

STEPWISE = ("likelihood", "exact", "sampled")


pytestmark = pytest.mark.usefixtures("shapes")


def judged(**options: Any) -> SortingTrial:
    trial = build(**options)
    trial.model.eval()
    return trial


@of_every_method
@pytest.mark.parametrize("size", [4, 32])
@torch.no_grad()
def test_a_few_hundred_keys_are_kept_and_halves_by_methods_that_sort_in_steps(method, size):
    trial = judged(method=method, size=size, sets=320 // size)
    frame, constants = trial.snapshot(0), trial.constants()
    stepwise = method in STEPWISE
    assert list(frame) == (["keys", "halves"] if stepwise else ["keys"])
    assert list(constants) == (["values", "images"] if stepwise else ["values"])
    assert (frame["keys"].dtype, frame["keys"].shape) == (torch.float32, (300,))
    torch.testing.assert_close(frame["keys"], trial.keys().flatten()[:300])
    assert torch.equal(constants["values"], trial.sets.values.flatten()[:300].int())


@pytest.mark.parametrize("method", ["likelihood", "exact"])
@pytest.mark.parametrize(("size", "levels"), [(2, 1), (4, 2), (5, 3), (8, 3)])
@torch.no_grad()
def test_halves_and_images_are_those_of_the_first_set(method, size, levels):
    trial = judged(method=method, size=size, places=2, temperature=0.5)
    halves, images = trial.snapshot(0)["halves"], trial.constants()["images"]
    want = torch.stack(QuickSort(temperature=0.5).halves(trial.keys()[0]))
    assert halves.shape == (levels, size, size)
    assert halves.dtype == torch.float16
    torch.testing.assert_close(halves.float(), want, atol=1e-3, rtol=0)
    assert (images.dtype, images.shape) == (torch.uint8, (size, 2, 28, 28))
    torch.testing.assert_close(images.float() / 255, pictures(trial.judged, trial.sets.which[0]))


@torch.no_grad()
def test_sampled_halves_are_drawn_apart_from_everything_else():
    """By the step, so that a run that was stopped draws the same; training draws as without."""
    trial = judged(method="sampled", samples=2, size=8)
    before = torch.get_rng_state()
    first = trial.snapshot(3)["halves"]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(77)
    assert torch.equal(trial.snapshot(3)["halves"], first)
    assert not torch.equal(trial.snapshot(4)["halves"], first)
    torch.testing.assert_close(first.float().sum(-2), torch.ones(3, 8), atol=2e-3, rtol=0)


@torch.no_grad()
def test_large_sets_keep_keys_only_and_some_runs_nothing():
    trial = judged(size=33)
    assert list(trial.snapshot(0)) == ["keys"]
    assert list(trial.constants()) == ["values"]
    assert judged(keep_frames=False).snapshot(0) == {}


# In a run.


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("method", ["likelihood", "sampled", "odd_even", None])
def test_a_run_leaves_a_file_that_figures_read(method, tmp_path):
    """Unless it keeps no frames."""
    words = ["--method", method] if method else ["--no-keep-frames"]
    record = run(tmp_path, "--places", "2", *words)
    names = {"sorting-errors-2-digits.png"}
    if method is None:
        assert record["wiring"] is None
        assert not list(tmp_path.rglob("*.npz"))
    else:
        kept = read_keys(tmp_path / record["wiring"])
        names.add("sorting-4x2-digits-keys.png")
        assert kept.step.tolist() == [0, 3, 4]
        assert kept.keys.shape == (3, 80)
        assert not np.array_equal(kept.keys[0], kept.keys[2])
        assert (kept.halves is None) == (method == "odd_even")
        if method != "odd_even":
            names.add("sorting-4x2-digits-steps.png")
            assert sort_of(kept, 2).values.shape == (3, 4, 2, 28, 28)
    assert {path.name for path in (tmp_path / "figures").iterdir()} == names


def test_the_largest_file_is_small(tmp_path, monkeypatch):
    """Keys of which no order is certain, of forty evaluations, at the largest size shown."""
    trial = judged(size=sorting_trial._MOST_SHOWN, places=6, sets=20)
    monkeypatch.setattr(trial, "_read", lambda which: torch.randn(which.shape[:2]))
    frames = [trial.snapshot(step) for step in range(41)]
    arrays: dict[str, Any] = {k: torch.stack([f[k] for f in frames]).numpy() for k in frames[0]}
    arrays |= {name: tensor.numpy() for name, tensor in trial.constants().items()}
    np.savez_compressed(tmp_path / "wiring.npz", **arrays)
    assert arrays["halves"].shape == (41, 5, 32, 32)
    assert (tmp_path / "wiring.npz").stat().st_size < 300_000
