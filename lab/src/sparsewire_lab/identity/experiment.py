"""Learning the identity matrix from random vectors: section 3.1 of the paper, and beyond it."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from sparsewire.checks import check_count
from sparsewire.nn.hyper import Mode
from sparsewire.nn.sparse import SparseLayer
from sparsewire.ops import flat_index, rounded
from sparsewire.ops.contract import contract_flat
from sparsewire.rewire import Rewire
from sparsewire_lab.figures.pictures import draw_tuples
from sparsewire_lab.identity.reinforce import ReinforceLayer
from sparsewire_lab.train.argument_checks import check_needed, check_sizes
from sparsewire_lab.train.options import Experiment, check_size, processes
from sparsewire_lab.train.trial import Share, Trial, generator

Method = Literal["sparse", "reinforce", "rewire"]
Target = Literal["identity", "permutation", "band"]
Values = Literal["fixed", "ones", "normal"]

# By size, from the paper's appendix and its figure: (a_l, a_g), and steps.
PAPER_SAMPLES = {8: (1, 2), 16: (2, 2), 32: (2, 8), 64: (2, 10)}
PAPER_STEPS = {8: 10_000, 16: 20_000, 32: 40_000, 64: 60_000}
REWIRE_STEPS = 6_000
# The learning rates that the paper tried for REINFORCE.
PAPER_RATES = (0.1, 0.05, 0.01, 0.005, 0.001, 0.0005, 0.0001, 0.00005, 0.00001)

VECTORS = 10_000  # in an evaluation
_EVALUATION_ELEMENTS = 2**24  # at once
_SHOWN_SIZE = 64
_SAMPLES = ("local_samples", "global_samples")


@dataclass(frozen=True, kw_only=True)
class Identity(Experiment):
    """Learn a planted sparse matrix from vectors x and y = W x, with as many tuples as it has ones.

    The paper's first experiment: x is sampled from N(0, I), the target is the identity matrix, the
    loss the mean squared error. The layer is evaluated with rounded tuples, on 10,000 new vectors.
    """

    size: int = 16
    """Size n of the vectors; the paper has 8, 16, 32 and 64."""
    method: Method = "sparse"
    """sparse: the paper's layer; reinforce: its baseline; rewire: the layer with our rewiring."""
    target: Target = "identity"
    """What is planted: the identity, a random permutation, or a band of ones."""
    band: int = 1
    """Half width of the band: ones where |i − j| is at most this."""
    values: Values | None = None
    """Values of the tuples: fixed at 1, learned from 1 (ones), or learned from N(0, 1) (normal);
    None takes fixed, and ones with rewiring."""
    tuples: int | None = None
    """Number of tuples; None takes as many as the target has ones."""
    local_samples: int | None = None
    """Integer tuples sampled around each tuple, a_l; None takes the paper's for the size."""
    global_samples: int | None = None
    """Integer tuples sampled from everywhere, for each tuple, a_g; None takes the paper's, beyond
    its sizes 2 log₂ n − 1 − a_l."""
    region: int | None = None
    """Side of the region for local samples; None takes log₂ n, as the paper."""
    wirings: int | None = None
    """Wirings sampled for a batch; None takes one, and for REINFORCE one for each instance."""
    rewire_every: int = 100
    """Steps between rewirings."""
    sweep: bool = False
    """Try the paper's nine learning rates, and report the best."""
    keep_wiring: bool = True
    """Keep the tuples of every evaluation, for figures; up to size 64, where one can see them."""

    name: ClassVar[str] = "identity"
    bookkeeping: ClassVar[frozenset[str]] = Experiment.bookkeeping | {"sweep", "keep_wiring"}

    def check(self) -> None:
        """Raise an error for arguments that cannot be, or would have no effect."""
        super().check()
        check_size("size", self.size, least=2)
        check_count("band", self.band)
        check_count("rewire_every", self.rewire_every, least=1)
        check_sizes(self, ("tuples", "region", "wirings"))
        check_sizes(self, _SAMPLES, least=0)
        if self.method == "rewire" and self.local_samples == self.global_samples == 0:
            raise ValueError("global_samples must be above 0 to find places, or local_samples")
        check_needed(self, ("band",), "target", ("band",))
        check_needed(self, ("rewire_every",), "method", ("rewire",))
        check_needed(self, (*_SAMPLES, "region"), "method", ("sparse", "rewire"))
        if self.sweep and self.lr is not None:
            raise ValueError("sweep tries nine learning rates and lr sets one; give one of the two")
        if self.band >= self.size:
            raise ValueError(f"band must be below the size, {self.size}; got {self.band}")
        if self.region is not None and self.region > self.size:
            raise ValueError(f"region must be at most the size, {self.size}; got {self.region}")
        each = self.batch // self.accumulate // processes()
        draws = min(self.wirings or each, each)
        if self.method == "reinforce" and each % draws:
            raise ValueError(f"wirings must divide {each}, instances in a pass; got {self.wirings}")

    def resolved(self) -> "Identity":
        """Fill in the paper's numbers for this size."""
        n, rewires, reinforces = self.size, self.method == "rewire", self.method == "reinforce"
        bits = max(1, round(math.log2(n)))
        near, far = PAPER_SAMPLES.get(n, (2, None))
        near = near if self.local_samples is None else self.local_samples
        far = max(2 * bits - 1 - near, 1) if far is None else far
        far = far if self.global_samples is None else self.global_samples
        usual = 0.001 if n >= 64 and not rewires else 0.005  # beyond 64 as at 64
        most = max(PAPER_STEPS.values())  # what the paper's figure gives the baseline
        steps = most if reinforces else PAPER_STEPS.get(n, most)
        steps = REWIRE_STEPS if rewires else steps
        return dataclasses.replace(
            self,
            **self.shared_defaults(steps),
            lr=usual if self.lr is None else self.lr,
            values=self.values or ("ones" if rewires else "fixed"),
            tuples=self.tuples or len(self.places(0)[0]),
            local_samples=0 if reinforces else near,
            global_samples=0 if reinforces else far,
            region=self.region or bits,
            wirings=self.wirings or (self.batch // self.accumulate if reinforces else 1),
        )

    def settings(self) -> Sequence["Identity"]:
        """Return the experiment for each learning rate that is tried."""
        if not self.sweep:
            return [self]
        return [dataclasses.replace(self, lr=rate) for rate in PAPER_RATES]

    def label(self) -> str:
        """Name method, target and size."""
        values = {"fixed": "", "ones": "", "normal": ", values from N(0, 1)", None: ""}[self.values]
        if self.values == "ones" and self.method != "rewire":
            values = ", values from 1"
        return f"{self.method} {self.target} {self.size}{values}"

    def places(self, seed: int) -> tuple[Tensor, Tensor]:
        """Return rows and columns of the ones of the planted matrix."""
        n = self.size
        rows = torch.arange(n)
        if self.target == "identity":
            return rows, rows
        if self.target == "permutation":
            return rows, torch.randperm(n, generator=torch.Generator().manual_seed(seed))
        offsets = torch.arange(-self.band, self.band + 1)
        rows, offsets = (t.flatten() for t in torch.meshgrid(rows, offsets, indexing="ij"))
        inside = (rows + offsets >= 0) & (rows + offsets < n)
        return rows[inside], (rows + offsets)[inside]

    def build(self, seed: int, device: torch.device) -> "IdentityTrial":
        """Make layer and optimiser."""
        return IdentityTrial(self, seed, device)


class IdentityTrial(Trial):
    """The layer that learns, and the planted matrix."""

    def __init__(self, args: Identity, seed: int, device: torch.device) -> None:
        self.args, self.seed, self.device = args, seed, device
        n = args.size
        given: dict[str, Any] = {
            "values": None if args.values == "normal" else 1.0,
            "learn_values": args.values != "fixed",
            "wirings": args.wirings,
            "seed": seed,
        }
        if args.method == "reinforce":
            model = ReinforceLayer((n,), (n,), args.tuples or n, **given)
            self.layer = model.sparse
        else:
            samples = {
                "local_samples": args.local_samples,
                "global_samples": args.global_samples,
                "region": args.region,
                "schedule": None,  # as in the paper
            }
            model = self.layer = SparseLayer((n,), (n,), args.tuples, **samples, **given)
            self.layer.warns = False  # what rounding changes is measured
        model.to(device)
        optimizer = torch.optim.Adam(self.parameter_groups(), lr=args.lr or 0.005, fused=True)
        self.rewire = None
        if args.method == "rewire":
            self.rewire = Rewire(self.layer, optimizer, args.rewire_every)
        extras: dict[str, Any] = {} if self.rewire is None else {"rewire": self.rewire}
        super().__init__(model, optimizer, extras=extras)
        self.rows, self.cols = (t.to(device) for t in args.places(seed))

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Return the parameters with their learning rates.

        A step of Adam moves a raw mean by the learning rate, which is up to lr · n / 4 places. The
        paper lowers the rate at its largest size; with rewiring, the rate of means falls as 1/n
        beyond 32, so that the step in places stays the same, and the other rates do not fall.
        """
        args, source = self.args, self.layer.source
        if args.method != "rewire":
            return [{"params": list(self.layer.parameters())}]
        rest = [p for p in self.layer.parameters() if p is not source.raw_means]
        slower = (args.lr or 0.005) * min(1.0, 32 / args.size)
        return [{"params": [source.raw_means], "lr": slower}, {"params": rest}]

    def loss(self, model: Callable[..., Any], batch: int, share: Share) -> Tensor:
        """Return the mean squared error on new vectors."""
        x = share(torch.randn(batch, self.args.size, device=self.device))
        y = self.answer(x)
        if not isinstance(self.model, ReinforceLayer):
            return mse_loss(model(x), y)
        noise = self.model.noise_for(batch, self.device)
        if len(noise) > len(x):  # more wirings than this process has instances: each has its own
            noise = share(noise.repeat_interleave(batch // len(noise), dim=0))
        outputs, log_probability = model(x, noise)
        losses = (outputs - y.view_as(outputs)).square().flatten(1).mean(1)
        credit = (losses.detach() * log_probability).mean()
        return losses.mean() + credit - credit.detach()  # the error, with REINFORCE's gradient

    def answer(self, x: Tensor) -> Tensor:
        """Multiply by the planted matrix."""
        if self.args.target != "band":
            return x[:, self.cols]
        ones = torch.ones_like(self.rows, dtype=x.dtype)
        return contract_flat(self.rows, self.cols, ones, x, self.args.size)

    def after_step(self) -> None:
        """Rewire at the steps set for it."""
        if self.rewire is not None:
            self.rewire.step()

    def evaluate(self) -> dict[str, float]:
        """Return the rounded layer's error on new vectors, and the share of places it found.

        A tuple between two ones of a band represents both, unless it is rounded: for a band the
        error of the layer's expectation is returned too.
        """
        n = self.args.size
        held = flat_index(rounded(self.layer.wiring().means, (n, n)), (n, n))
        found = torch.isin(self.rows * n + self.cols, held).float().mean().item()
        metrics = {"error": self.error("rounded"), "found": found}
        if self.args.target == "band":
            metrics["expected_error"] = self.error("expected")
        return metrics

    def error(self, mode: Mode) -> float:
        """Return the mean squared error on new vectors, the same ones in every evaluation."""
        source = generator(10**6 + self.seed, self.device)
        total, most = 0.0, max(1, _EVALUATION_ELEMENTS // self.args.size)
        for start in self.batches(range(0, VECTORS, most)):
            count = min(most, VECTORS - start)
            x = torch.randn(count, self.args.size, generator=source, device=self.device)
            total += mse_loss(self.layer(x, mode=mode), self.answer(x)).item() * count
        return total / VECTORS

    def snapshot(self, step: int) -> dict[str, Tensor]:
        """Return the tuples, and integer tuples sampled from them."""
        if not self.args.keep_wiring or self.args.size > _SHOWN_SIZE:
            return {}
        source = generator(10**6 * self.seed + step, self.device)
        drawn = self.layer.sample(mode="sampled", generator=source)
        return {**self.layer.wiring()._asdict(), "indices": drawn.indices.flatten(0, -2).int()}

    def pictures(self, step: int, frame: dict[str, Tensor]) -> dict[str, Any]:
        """Draw the tuples over the planted matrix."""
        del step
        ones, drawn = (self.rows, self.cols), frame.get("indices")
        return {"tuples": draw_tuples(*self.layer.wiring(), self.args.size, ones, drawn)}

    def constants(self) -> dict[str, Tensor]:
        """Return the size of the matrix."""
        return {"shape": torch.tensor([self.args.size] * 2)}
