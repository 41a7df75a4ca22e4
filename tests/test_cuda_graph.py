"""A captured training step: the same training as a plain loop, on every device."""

import contextlib
import gc
import importlib
import shutil
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from tests.gpu import never_waits, on_cuda
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR

import sparsewire as sw
from sparsewire.cuda_graph import CapturedStep, capture


class Training:
    """A small network, its optimiser and data: the same numbers for the same arguments."""

    def __init__(
        self, device: str = "cpu", optimizer: str = "Adam", dropout: float = 0.0, **options: Any
    ) -> None:
        torch.manual_seed(0)
        layers = (nn.Linear(5, 7), nn.Tanh(), nn.Dropout(dropout), nn.Linear(7, 3))
        self.model = nn.Sequential(*layers).to(device)
        options = {"lr": 0.01, **({"momentum": 0.9} if optimizer == "SGD" else {}), **options}
        self.optimizer = getattr(torch.optim, optimizer)(self.model.parameters(), **options)
        self.data = torch.randn(60, 2, 11, 5).to(device)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(x), y[..., :3])
        loss.backward()
        self.optimizer.step()
        return loss

    def run(self, step: Callable[..., Tensor], first: int = 0, last: int = 50) -> list[Tensor]:
        return [step(x, y).detach() for x, y in self.data[first:last]]

    def parameters(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]


def assert_same(got: list[Tensor], want: list[Tensor], tolerance: float = 0.0) -> None:
    for mine, true in zip(got, want, strict=True):
        torch.testing.assert_close(mine, true, rtol=tolerance, atol=tolerance / 10)


# On every device


@pytest.mark.parametrize("enabled", [True, False])
def test_calls_are_the_plain_loop(enabled: bool) -> None:
    plain, ours = Training(), Training()
    step = capture(ours.step, optimizer=ours.optimizer, enabled=enabled)
    assert_same(ours.run(step), plain.run(plain.step))
    assert_same(ours.parameters(), plain.parameters())
    assert not step.captured
    why = "eager on cpu" if enabled else "eager, not enabled"
    assert repr(step) == f"CapturedStep(step: {why})"


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


def test_results_keep_their_structure_and_are_copies() -> None:
    x, total, weight = torch.arange(3.0), torch.zeros(3), nn.Parameter(torch.ones(3))

    def add(x: Tensor) -> Any:
        total.add_(x)
        return {"a": (total, None), "b": [Pair(weight * x, x)], 3: ()}

    step = capture(add)
    first, second = step(x), step(x)
    assert first.keys() == {"a", "b", 3}
    assert first[3] == ()
    assert isinstance(first["a"], tuple)
    assert first["a"][1] is None
    assert isinstance(first["b"], list)
    assert isinstance(first["b"][0], Pair)
    assert torch.equal(first["a"][0], x)  # not changed by the second call
    assert torch.equal(second["a"][0], 2 * x)
    assert not first["b"][0].first.requires_grad
    assert first["b"][0].second.data_ptr() != x.data_ptr()


def test_calls_begin_without_gradients() -> None:
    training = Training()

    def forget_to_drop_them(x: Tensor) -> None:
        training.model(x).sum().backward()

    step = capture(forget_to_drop_them, optimizer=training.optimizer)
    gradients = []
    for _ in range(2):
        step(training.data[0, 0])
        gradients.append([p.grad.clone() for p in training.model.parameters()])  # pyright: ignore[reportOptionalMemberAccess]
    assert_same(*gradients)


@pytest.mark.parametrize("result", [1.0, "loss", [torch.ones(2), 3], {"a": (None, 2.5)}])
def test_results_that_a_graph_would_freeze_are_refused(result: Any) -> None:
    message = r"^result\S* must be a tensor or None, .*; got (float|str|int)"
    with pytest.raises(TypeError, match=message):
        capture(lambda: result, device="cpu")()


def test_arguments_that_are_not_data_are_refused() -> None:
    step = capture(lambda x: x)
    for bad in (torch.ones(2, requires_grad=True), nn.Parameter(torch.ones(2))):
        with pytest.raises(ValueError, match="argument x must be a dense tensor without gradient"):
            step(bad)
    with pytest.raises(ValueError, match=r"argument x\['a'\]\[1\] must be a dense tensor"):
        step({"a": [torch.ones(2), torch.eye(2).to_sparse()]})


@pytest.mark.usefixtures("unchecked")
def test_what_cannot_be_captured_is_refused() -> None:
    assert capture(lambda: torch.ones(2), device="cpu")().sum() == 2
    with pytest.raises(ValueError, match="device must be given for a step without"):
        capture(lambda: torch.ones(2))()
    bad: Any
    for bad, error in ((0, ValueError), (1.5, TypeError)):
        with pytest.raises(error, match="warmup must be"):
            capture(lambda x: x, warmup=bad)
    for name in ("LBFGS", "Adagrad", "Adafactor"):  # they compute on the host
        training = Training(optimizer=name)
        with pytest.raises(ValueError, match=f"have the option capturable; {name} computes on the"):
            capture(training.step, optimizer=training.optimizer)
        capture(training.step, optimizer=training.optimizer, enabled=False)


# On a pretended device: the CPU, and graphs that call the function again. The order of things is
# tested so where there is no GPU; that CUDA does its part is tested further down.


class PretendedGraph:
    """Capturing undoes what the function did; replaying calls it again."""

    step: CapturedStep[..., Any]

    def register_generator_state(self, generator: torch.Generator) -> None: ...

    def reset(self) -> None: ...

    def replay(self) -> None:
        step = PretendedGraph.step
        step._result.copy_(step._run(*step._arguments))

    @staticmethod
    @contextlib.contextmanager
    def capturing(*_: Any, **__: Any) -> Iterator[None]:
        tensors = [
            tensor
            for one in PretendedGraph.step.optimizers
            for parameter in one.param_groups[0]["params"]
            for tensor in (parameter.data, *one.state.get(parameter, {}).values())
        ]
        before = [tensor.clone() for tensor in tensors]
        yield
        for tensor, old in zip(tensors, before, strict=True):
            tensor.copy_(old)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Callable[..., CapturedStep[..., Any]]:
    stream = types.SimpleNamespace(wait_stream=lambda _: None)
    for name, value in {
        "CUDAGraph": PretendedGraph,
        "Stream": lambda _: stream,
        "current_stream": lambda _: stream,
        "get_sync_debug_mode": lambda: 0,
        "graph": PretendedGraph.capturing,
        "graph_pool_handle": lambda: (0, 1),
        "set_sync_debug_mode": lambda _: None,
        "stream": lambda _: contextlib.nullcontext(),
        "synchronize": lambda _: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    ours, adam = map(importlib.import_module, ("sparsewire.cuda_graph", "torch.optim.adam"))
    monkeypatch.setattr(ours, "_DEVICE", "cpu")
    monkeypatch.setattr(adam, "_get_capturable_supported_devices", lambda **_: ["cpu"])

    def make(*args: Any, **kwargs: Any) -> CapturedStep[..., Any]:
        PretendedGraph.step = capture(*args, **kwargs)
        return PretendedGraph.step

    return make


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize("before", [0, 2])
def test_pretended_training_is_the_plain_one(pretended, optimizer: str, before: int) -> None:
    plain, ours = Training(optimizer=optimizer), Training(optimizer=optimizer)
    schedules = [ExponentialLR(one.optimizer, 0.9) for one in (plain, ours)]
    ours.run(ours.step, 0, before)  # leaves gradients, and counts of steps
    step = pretended(ours.step, optimizer=ours.optimizer)
    plain.run(plain.step, 0, before)
    for number, (x, y) in enumerate(plain.data[before:20]):
        assert step.captured == (number > 3)
        state = "captured" if number > 3 else f"{number} of 3 warm-up calls"
        assert repr(step) == f"CapturedStep(step: {state} on cpu)"
        assert_same([step(x, y)], [plain.step(x, y).detach()], 1e-5)
        assert_same(ours.parameters(), plain.parameters(), 1e-5)
        for schedule in schedules:
            schedule.step()


@pytest.mark.usefixtures("unchecked")
def test_pretended_training_sees_all_that_changes(pretended) -> None:
    plain, ours = Training(), Training()
    step = pretended(ours.step, optimizer=ours.optimizer)
    assert_same(ours.run(step, 0, 6), plain.run(plain.step, 0, 6), 1e-5)
    for one in (plain, ours):
        one.optimizer.param_groups[0]["lr"] = 0.1  # a number again, by hand
    assert_same(ours.run(step, 6, 12), plain.run(plain.step, 6, 12), 1e-5)
    assert step.captured
    for change in (
        lambda one: one.optimizer.load_state_dict(one.optimizer.state_dict()),
        lambda one: one.optimizer.param_groups[0].update(betas=(0.5, 0.9)),
        lambda one: one.model[0].weight.set_(one.model[0].weight.detach().clone()),
    ):
        with torch.no_grad():
            change(plain)
            change(ours)
        assert_same(ours.run(step, 12, 13), plain.run(plain.step, 12, 13), 1e-5)
        assert not step.captured
        assert_same(ours.run(step, 13, 18), plain.run(plain.step, 13, 18), 1e-5)
        assert step.captured


@pytest.mark.usefixtures("unchecked")
def test_pretended_arguments_are_fixed_by_the_first_call(pretended) -> None:
    def add(x: Any, *more: Any, scale: Any = 1.0) -> Tensor:
        return x["a"][0] * scale + sum(more)

    step = pretended(add)
    x, one = {"a": [torch.arange(3.0)]}, torch.ones(3)
    with pytest.raises(TypeError):
        step({"a": [torch.ones(2)]}, "no number")  # fails, and fixes nothing
    for number in range(6):
        want = x["a"][0] * 2 + number * one
        assert torch.equal(step(x, number * one, scale=2.0), want)
    of_scale = r"argument scale .* first call, 2\.0"
    those = r"must be those of the first call, .*'1', 'scale'\]; got .*\[0\]\", 'scale'\]$"
    for args, scale, message in (
        ((x, one[:2]), 2.0, r"argument 1 .*, torch.float32 \(3,\); got torch.float32 \(2,\)\."),
        ((x, one.double()), 2.0, r"argument 1 .*, torch.float32 \(3,\); got torch.float64 \(3,\)"),
        (({"a": [one[:2]]}, one), 2.0, r"argument x\['a'\]\[0\] must be as in the first call"),
        ((x, one), 3.0, rf"{of_scale}; got 3\.0\. A graph"),
        ((x, one), 2, rf"{of_scale}; got 2\. A graph"),
        ((x,), 2.0, those),
    ):
        with pytest.raises(ValueError, match=message):
            step(*args, scale=scale)
    assert torch.equal(step(x, one, scale=2.0), x["a"][0] * 2 + one)
    step.reset()
    assert torch.equal(step(x=x, scale=3.0), x["a"][0] * 3)
    assert torch.equal(step(x, scale=3.0), x["a"][0] * 3)  # by name or by place


@pytest.mark.usefixtures("unchecked")
def test_pretended_failures_are_explained_each_time(pretended) -> None:
    training, bad = Training(), []

    def moody(x: Tensor, y: Tensor) -> Tensor:
        loss = training.step(x, y)
        if bad:
            raise RuntimeError("called a synchronizing CUDA operation\nand more")
        return loss

    step = pretended(moody, optimizer=training.optimizer)
    training.run(step, 0, 3)
    before, state = training.parameters(), training.optimizer.state_dict()
    bad.append(True)
    for _ in range(2):
        message = r"captured .*\(RuntimeError: called a sync.*tion\)"
        with pytest.raises(RuntimeError, match=message) as e:
            training.run(step, 3, 4)
        assert "enabled=False" in str(e.value)
        assert str(e.value.__cause__).startswith("called a synchronizing")
    assert_same(training.parameters(), before)
    assert str(training.optimizer.state_dict()) == str(state)
    assert all(p.grad is None for p in training.model.parameters())
    bad.clear()
    training.run(step, 3, 5)
    assert step.captured


@pytest.mark.usefixtures("unchecked")
def test_pretended_late_gradients_are_refused(pretended) -> None:
    training = Training()
    training.model[0].requires_grad_(False)
    step = pretended(training.step, optimizer=training.optimizer)
    training.run(step, 0, 3)
    training.model[0].requires_grad_(True)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"an optimizer created state.* larger warmup"):
            training.run(step, 3, 4)
    step.reset()
    training.run(step, 3, 8)
    assert step.captured


# On a GPU


def both(**options: Any) -> tuple[Training, Training, CapturedStep[..., Tensor]]:
    """A plain training on the GPU, the same one captured, and its step."""
    plain, ours = Training("cuda", **options), Training("cuda", **options)
    return plain, ours, capture(ours.step, optimizer=ours.optimizer)


@on_cuda
@pytest.mark.parametrize(
    "options",
    [
        *({"optimizer": name} for name in ("SGD", "Adam", "AdamW", "RMSprop", "NAdam", "RAdam")),
        *({"optimizer": name} for name in ("Adamax", "Adadelta", "ASGD", "Rprop")),
        {"optimizer": "SGD", "momentum": 0.0},
        {"optimizer": "SGD", "nesterov": True, "weight_decay": 0.1},
        {"optimizer": "Adam", "amsgrad": True, "weight_decay": 0.1},
        {"optimizer": "Adam", "fused": True},
        {"optimizer": "Adam", "foreach": False},
        {"dropout": 0.5},
    ],
    ids=str,
)
def test_cuda_training_is_the_eager_one(options: dict[str, Any]) -> None:
    plain, ours, step = both(**options)
    torch.manual_seed(3)
    losses = plain.run(plain.step)
    torch.manual_seed(3)
    assert_same(ours.run(step), losses, 1e-3)
    assert_same(ours.parameters(), plain.parameters(), 1e-3)
    assert step.captured
    assert repr(step) == "CapturedStep(step: captured on cuda:0)"


@on_cuda
@pytest.mark.parametrize("own", [False, True], ids=["default generator", "own generator"])
def test_cuda_replays_draw_anew(own: bool) -> None:
    layer = sw.SparseLayer((16,), (16,), tuples=16, schedule=None).cuda()
    x = torch.randn(8, 16, device="cuda")
    generator = torch.Generator("cuda") if own else torch.cuda.default_generators[0]

    def draw(x: Tensor) -> Tensor:
        return layer(x, generator=generator if own else None)

    step = capture(draw, generators=generator if own else ())
    for _ in range(5):
        step(x)
    assert step.captured
    generator.manual_seed(1)
    ours = [step(x) for _ in range(5)]
    generator.manual_seed(1)
    assert_same(ours, [draw(x).detach() for _ in range(5)], 1e-4)
    assert torch.stack(ours).unique(dim=0).shape[0] == 5


@on_cuda
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize(
    "schedule",
    [lambda one: ExponentialLR(one, 0.8), lambda one: LambdaLR(one, lambda epoch: 1 / (1 + epoch))],
    ids=["ExponentialLR", "LambdaLR"],
)
def test_cuda_training_can_begin_eagerly_follow_a_schedule_and_load_a_state(
    optimizer: str, schedule: Callable[..., Any]
) -> None:
    plain, ours, step = both(optimizer=optimizer)
    schedules = [schedule(one.optimizer) for one in (plain, ours)]
    for number, (x, y) in enumerate(plain.data[:20]):
        mine = step if number >= 5 else ours.step  # which counts steps on the host
        assert_same([mine(x, y).detach()], [plain.step(x, y).detach()], 1e-3)
        for one in schedules:
            one.step()
    assert step.captured
    for one in (plain, ours):
        one.optimizer.load_state_dict(one.optimizer.state_dict())
    assert_same(ours.run(step, 20, 30), plain.run(plain.step, 20, 30), 1e-3)
    before = ours.parameters()
    ours.optimizer.param_groups[0]["lr"] = 0.0  # by hand, a number
    ours.run(step, 30, 32)
    assert_same(ours.parameters(), before)
    assert step.captured


@on_cuda
@pytest.mark.parametrize("enabled", [True, False])
def test_cuda_arguments_may_come_from_the_host(enabled: bool) -> None:
    plain, ours = Training("cuda"), Training("cuda")
    step = capture(ours.step, optimizer=ours.optimizer, enabled=enabled)
    for number, (x, y) in enumerate(plain.data[:10]):
        there = x.cpu().pin_memory() if number % 2 else x.cpu()
        assert_same([step(there, y)], [plain.step(x, y).detach()], 1e-3)
    assert step.captured == enabled


@on_cuda
def test_cuda_what_is_elsewhere_is_refused() -> None:
    there = torch.ones(3, device="cuda")
    with pytest.raises(ValueError, match="generators must be on cuda:0; got cpu"):
        capture(lambda x: x, generators=torch.Generator())(there)
    for result in (lambda x: x.cpu(), lambda x: x.sum().item()):
        with pytest.raises((TypeError, ValueError), match=r"^result must be"):
            capture(result)(there)


@on_cuda
@pytest.mark.parametrize(
    "spoil",
    [
        Tensor.item,
        print,
        lambda loss: 1 if loss > 0 else 0,
        lambda loss: torch.tensor([1.0, 2.0], device="cuda"),
        lambda loss: torch.cuda.synchronize(),
    ],
    ids=["item", "print", "if", "host data", "synchronize"],
)
def test_cuda_what_cannot_be_captured_is_explained(spoil: Callable[[Tensor], Any]) -> None:
    training = Training("cuda", dropout=0.5)

    def spoiled(x: Tensor, y: Tensor) -> Tensor:
        loss = training.step(x, y)
        spoil(loss)
        return loss

    step = capture(spoiled, optimizer=training.optimizer)
    training.run(step, 0, 3)
    before, stream = training.parameters(), torch.cuda.current_stream()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="could not be captured in a CUDA graph") as caught:
            training.run(step, 3, 4)
        assert caught.value.__cause__ is not None
        assert torch.cuda.current_stream() == stream
        assert torch.cuda.get_sync_debug_mode() == 0
        assert not step.captured
    assert_same(training.parameters(), before)
    training.run(training.step, 4, 6)  # eager training goes on, random numbers too
    _, ours, step = both(dropout=0.5)  # and so do other captures
    assert torch.stack(ours.run(step)).isfinite().all()
    assert step.captured


@on_cuda
def test_cuda_a_failed_capture_gives_its_memory_back() -> None:
    training = Training("cuda")

    def spoiled(x: Tensor, y: Tensor) -> Tensor:
        big = torch.ones(2**24, device="cuda")
        loss = training.step(x, y) + big[0]
        loss.item()
        return loss

    step = capture(spoiled, optimizer=training.optimizer)
    training.run(step, 0, 3)
    used = []
    for _ in range(4):
        with pytest.raises(RuntimeError, match="could not be captured"):
            training.run(step, 3, 4)
        gc.collect()
        torch.cuda.empty_cache()
        used.append((torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    assert used[0] == used[-1]


@on_cuda
def test_cuda_replays_learn_in_constant_memory_and_never_wait() -> None:
    layer = sw.SparseLayer((64,), (64,), tuples=64, values=1.0, learn_values=False).cuda()
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    x = torch.randn(64, 64, device="cuda")

    def fit(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(layer(x), x)
        loss.backward()
        optimizer.step()
        return loss

    step = capture(fit, optimizer=optimizer)
    first = torch.stack([step(x) for _ in range(10)]).mean()
    loss = step(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    with never_waits():
        for _ in range(10_000):
            loss = step(x)
    torch.cuda.synchronize()
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) == before
    assert loss.isfinite()
    assert layer.source.pace.steps > 1_000  # the layer counts replays, too
    assert torch.stack([step(x) for _ in range(100)]).mean() < first


@on_cuda
def test_cuda_reset_gives_the_memory_back() -> None:
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    step = capture(lambda x: (x + torch.ones(2**24, device="cuda")).sum(), warmup=1)
    for _ in range(3):
        step(torch.ones((), device="cuda"))
    assert torch.cuda.memory_reserved() >= before + 2**26
    step.reset()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < before + 2**26


class Halves(Training):
    """A step in two halves, in this dtype under autocast, with scaled gradients if asked."""

    def __init__(
        self, dtype: torch.dtype | None = None, scale: bool = False, **options: Any
    ) -> None:
        super().__init__("cuda", **options)
        self.dtype = dtype
        self.scaler = torch.amp.GradScaler("cuda", 2.0**10, growth_interval=5, enabled=scale)

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        losses = []
        for part in (slice(0, 5), slice(5, None)):
            with torch.autocast("cuda", dtype=self.dtype, enabled=self.dtype is not None):
                losses.append(F.mse_loss(self.model(x[part]), y[part, :3]))
            self.scaler.scale(losses[-1]).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return torch.stack(losses)


@on_cuda
@pytest.mark.parametrize(
    ("options", "outside", "tolerance"),
    [
        ({}, False, 1e-3),
        ({"dtype": torch.bfloat16}, False, 0.05),
        ({"dtype": torch.bfloat16}, True, 0.05),
        ({"dtype": torch.float16, "scale": True, "fused": True}, False, 0.05),
    ],
    ids=["two halves", "autocast in the step", "autocast around it", "scaled gradients"],
)
def test_cuda_added_and_scaled_gradients_under_autocast(
    options: dict[str, Any], outside: bool, tolerance: float
) -> None:
    plain, ours = Halves(**options), Halves(**options)
    want = plain.run(plain.step)
    step = capture(ours.step, optimizer=ours.optimizer)
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=outside):
        got = ours.run(step)
    assert_same(got, want, tolerance)
    assert step.captured


@on_cuda
@pytest.mark.skipif(shutil.which("cc") is None, reason="torch.compile needs a C compiler")
@pytest.mark.filterwarnings("ignore")
def test_cuda_compiled_parts() -> None:
    plain, ours, step = both()
    ours.model[1].compile()
    assert_same(ours.run(step), plain.run(plain.step), 1e-3)
    assert step.captured
