"""The penalty of the pixels between the points of glimpses, compared with plain loops."""

import math

import pytest
import torch
from tests.helpers import seeded
from torch import Tensor

from sparsewire.nn.frames import frame_points
from sparsewire_lab.attention.resolution import ResolutionPenalty, pixel_gaps

SIDE = 41  # 40 pixels from end to end


def grids(boxes: Tensor, rows: int, cols: int) -> Tensor:
    """Even grids between top, left, bottom and right, in shares of the image."""
    return frame_points(boxes, "box", "none", rows, cols)


def random_boxes(images: int, glimpses: int) -> Tensor:
    """Upright boxes, also beyond the image."""
    corners = torch.rand(images, glimpses, 2, 2, generator=seeded(1)) * 1.5 - 0.25
    return corners.sort(dim=-2).values.flatten(-2)


def middle(*covers: float) -> Tensor:
    """One box for each image, in its middle."""
    cover = torch.tensor(covers).view(-1, 1, 1)
    return torch.cat([0.5 - cover / 2] * 2 + [0.5 + cover / 2] * 2, dim=-1)


def loss_of(*probabilities: float) -> Tensor:
    """The cross-entropy of images whose class has these probabilities."""
    return -torch.tensor(probabilities).log()


# Distances.


@pytest.mark.parametrize("glimpses", [1, 2, 8])
@pytest.mark.parametrize(("rows", "cols"), [(2, 2), (5, 5), (3, 6)])
def test_pixels_are_counted_from_one_point_to_the_next(glimpses, rows, cols):
    """Any two neighbours are as far apart; many glimpses are taken for a finer one."""
    points = grids(random_boxes(4, glimpses), rows, cols)
    want = []
    for steps in (points.diff(dim=2)[..., 0], points.diff(dim=3)[..., 1]):  # down and right
        pixels = 40 * steps.flatten(2) / math.sqrt(glimpses)
        assert (pixels.amax(-1) - pixels.amin(-1)).max() < 1e-4
        want.append(pixels[..., 0])
    got = pixel_gaps(points, SIDE).sort().values
    torch.testing.assert_close(got, torch.cat(want, dim=1).sort().values, atol=1e-4, rtol=0)


def test_a_turned_frame_is_measured_along_its_sides():
    """By a right angle: what goes down goes right. A single point has none next to it."""
    upright = grids(random_boxes(3, 2), 3, 5)
    for other in (upright.flip(-1), upright.flip(-3)):
        assert torch.allclose(pixel_gaps(other, SIDE), pixel_gaps(upright, SIDE))
    assert pixel_gaps(grids(random_boxes(3, 2), 1, 1), SIDE).max() < 1e-4


def test_points_on_each_other_have_a_gradient_that_is_a_number():
    points = torch.full((1, 1, 2, 2, 2), 0.5, requires_grad=True)
    pixel_gaps(points, SIDE).sum().backward()
    assert points.grad is not None
    assert points.grad.isfinite().all()


# Penalties.


def penalty_of(boxes: Tensor, losses: Tensor, weight: float = 1.0, classes: int = 10) -> Tensor:
    penalty = ResolutionPenalty(weight, SIDE, classes)
    penalty.on_points(grids(boxes, 5, 5))
    return penalty.loss(losses)


def test_the_penalty_is_the_logarithm_of_the_distance():
    """5 points over 0.8, 0.4 and 0.2 of 40 pixels are 8, 4 and 2 apart; above chance are 0.9 − 0.1,
    0.3 − 0.1 and 0.5 − 0.1, of two classes 0.9 − 0.5."""
    boxes, losses = middle(0.8, 0.4, 0.2), loss_of(0.9, 0.3, 0.5)
    got = penalty_of(boxes, losses, weight=0.5)
    want = 0.5 * (0.8 * math.log(8) + 0.2 * math.log(4) + 0.4 * math.log(2)) / 3
    assert got.shape == ()
    assert got.item() == pytest.approx(want, rel=1e-5)
    of_two_classes = penalty_of(boxes, losses, classes=2).item()
    assert of_two_classes == pytest.approx(0.4 * math.log(8) / 3, rel=1e-5)
    # Both directions count alike, 8 and 2 pixels, and all glimpses, 4 and 4: two take √2 of that.
    boxes = torch.tensor([[[0.1, 0.4, 0.9, 0.6], [0.2, 0.3, 0.6, 0.7]]])
    want = 0.9 * sum(math.log(gap / math.sqrt(2)) for gap in (8, 2, 4, 4)) / 4
    assert penalty_of(boxes, loss_of(1.0)).item() == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("cover", [0.01, 0.05, 0.0999])
def test_where_every_pixel_is_read_there_is_no_penalty(cover):
    """5 points over a tenth of 40 pixels: a pixel apart at most. Nor is there a gradient."""
    boxes = middle(cover).requires_grad_()
    paid = penalty_of(boxes, loss_of(0.99))
    assert paid.item() == 0.0
    (gradient,) = torch.autograd.grad(paid, boxes)
    assert not gradient.any()
    assert penalty_of(middle(0.11), loss_of(0.99)).item() > 0


@pytest.mark.parametrize("probability", [1e-6, 0.05, 0.1])
def test_images_that_are_classified_by_chance_or_worse_have_no_penalty(probability):
    assert penalty_of(middle(0.8), loss_of(probability)).item() == pytest.approx(0.0, abs=1e-7)
    assert penalty_of(middle(0.8), loss_of(0.11)).item() > 0.01


def test_only_boxes_of_images_classified_with_success_shrink():
    """Down the gradient they shrink, around their middle; the others do not change.

    The cross-entropy has no gradient: else a worse classification would reduce the penalty.
    """
    boxes = middle(0.8, 0.8, 0.8, 0.05).requires_grad_()
    losses = loss_of(0.9, 0.05, 0.5, 0.9).requires_grad_()
    paid = penalty_of(boxes, losses)
    gradient, none = torch.autograd.grad(paid, [boxes, losses], allow_unused=True)
    assert none is None
    top, left, bottom, right = gradient.squeeze(1).unbind(1)
    assert not gradient[[1, 3]].any()
    for low, high in ((top, bottom), (left, right)):
        assert (low[[0, 2]] < 0).all()
        torch.testing.assert_close(low, -high)
        assert high[0] == pytest.approx(2 * high[2].item())  # above chance by 0.8 and by 0.4


def test_the_last_pass_counts_once():
    penalty = ResolutionPenalty(1.0, SIDE)
    with pytest.raises(AssertionError, match=r"^a pass comes first"):
        penalty.loss(loss_of(1.0))
    penalty.on_points(grids(middle(0.8), 5, 5))
    penalty.on_points(grids(middle(0.4), 5, 5))
    assert penalty.loss(loss_of(1.0)).item() == pytest.approx(0.9 * math.log(4), rel=1e-5)
    with pytest.raises(AssertionError, match=r"^a pass comes first"):
        penalty.loss(loss_of(1.0))
