"""A training step as one CUDA graph: forward, backward and optimiser, replayed together."""

import contextlib
import gc
import inspect
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from sparsewire.checks import check_count

P = ParamSpec("P")
R = TypeVar("R")

_FAILED = """\
the step could not be captured in a CUDA graph ({error}). The usual causes:
- the host waits for the device: .item(), .cpu(), print(tensor), `if tensor`, nonzero, unique, a
  boolean mask as an index, torch.cuda.synchronize();
- the host makes data in the step: torch.tensor(…, device="cuda"), x.to("cuda"), a list as an index;
  make it before, or pass it as an argument;
- random numbers come from a torch.Generator that was not passed as generators=;
- a result of an earlier pass is still referenced, such as a loss: store loss.detach() instead.
The error above this one shows the line. Parameters are as they were before this call.
capture(…, enabled=False) makes the same steps without a graph."""

# The type of device that has graphs; on others a step is a plain call.
_DEVICE = "cuda"

# Graphs whose capture CUDA aborted: torch may still ask them whether they are capturing.
_broken: list[torch.cuda.CUDAGraph] = []


class CapturedStep(Generic[P, R]):
    """A training step that runs as one CUDA graph on a GPU, and as a plain call elsewhere.

    Every call is exactly one step, on every device. On a GPU the first `warmup` calls run eagerly,
    the next one is captured and replayed, and later ones copy their arguments into the buffers of
    the graph and replay it. Calls begin without gradients and return detached copies.

    `sparsewire.capture` is another name of this class.

    Args:
        function: Makes one step. Its arguments are tensors, whose shape and dtype must not change
            between calls, and other values, which must stay equal; it returns tensors or None.
            Tuples, lists and dicts of these are accepted too.
        optimizer: The optimisers that it steps: SGD, or any with the option `capturable`. On a GPU
            that option is set, and learning rates become tensors, which schedulers can change.
        generators: The generators that it uses, besides the default one.
        device: The device of the step; by default that of the parameters of the optimiser, or of
            the first tensor argument. Arguments from other devices are copied there.
        warmup: How many calls on a GPU run eagerly before the capture, at least 1.
        enabled: False runs all calls eagerly.

    Raises:
        RuntimeError: From the call that captures, and from the next ones, if something in the step
            cannot be captured, with a list of usual causes. Other work can go on.

    Examples:
        >>> import sparsewire as sw
        >>> layer = sw.SparseLayer((8,), (8,), tuples=8)
        >>> optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
        >>> def step(x, y):
        ...     optimizer.zero_grad()
        ...     loss = torch.nn.functional.mse_loss(layer(x), y)
        ...     loss.backward()
        ...     optimizer.step()
        ...     return loss
        >>> step = sw.capture(step, optimizer=optimizer)
        >>> losses = [step(x, x) for x in torch.randn(5, 16, 8)]
        >>> step
        CapturedStep(step: eager on cpu)
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        optimizer: Optimizer | Iterable[Optimizer] = (),
        generators: torch.Generator | Iterable[torch.Generator] = (),
        device: torch.device | str | None = None,
        warmup: int = 3,
        enabled: bool = True,
    ) -> None:
        self.function: Callable[..., Any] = function
        self.optimizers = (optimizer,) if isinstance(optimizer, Optimizer) else tuple(optimizer)
        single = isinstance(generators, torch.Generator)
        self.generators = (generators,) if single else tuple(generators)
        self.device = None if device is None else torch.device(device)
        # At least 1: optimisers create their state in the first step, before the capture.
        self.warmup = check_count("warmup", warmup, least=1)
        self.enabled = enabled
        for one in self.optimizers if enabled else ():
            if "capturable" not in one.defaults and not isinstance(one, SGD):
                raise ValueError(
                    "optimizer must be SGD or have the option capturable; "
                    f"{type(one).__name__} computes on the host. enabled=False allows it"
                )
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = inspect.signature(function).parameters.values()
        self._names = [parameter.name for parameter in parameters if parameter.kind in kinds]
        self._home = self._find_home({"none yet": torch.empty(0)})
        self.reset()

    @property
    def captured(self) -> bool:
        """Whether calls replay a graph by now."""
        return self._graph is not None

    def reset(self) -> None:
        """Forget the graph, its memory and the arguments; the next calls capture anew."""
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: Any = None
        self._calls = 0  # made while warming up
        self._stream: torch.cuda.Stream | None = None
        self._buffers: dict[str, Any] = {}  # arguments that the graph reads, by name
        self._arguments: tuple[Any, Any] = ((), {})  # the same, as args and kwargs
        self._rates: list[Tensor] = []  # learning rates, one for each group of parameters
        self._known: list[Any] = []  # the optimisers as they were at capture
        self._states: list[Any] = []  # referenced, so that no later one has the same id

    def __repr__(self) -> str:
        if not self.enabled or self._home.type != _DEVICE:
            state = f"eager on {self._home}" if self.enabled else "eager, not enabled"
        elif self.captured:
            state = f"captured on {self._home}"
        else:
            state = f"{self._calls} of {self.warmup} warm-up calls on {self._home}"
        return f"CapturedStep({getattr(self.function, '__name__', self.function)}: {state})"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Make one training step; return what the function returns, detached and copied."""
        parts: dict[str, Any] = {}
        self._over_arguments(parts.__setitem__, args, kwargs)
        for name, part in parts.items():
            if torch.is_tensor(part) and (part.requires_grad or part.layout != torch.strided):
                raise ValueError(
                    f"argument {name} must be a dense tensor without gradient; got {part.layout}, "
                    f"requires_grad={part.requires_grad}. Arguments are data: detach it, or let "
                    "the function use it without passing it"
                )
        home = self._find_home(parts)
        if home != self._home or (self.captured and self._marks() != self._known):
            self.reset()
            self._home = home
        if not self.enabled or home.type != _DEVICE:
            result = self._run(*self._over_arguments(self._at_home, args, kwargs))
        else:
            self._load(parts, args, kwargs)
            self._set_rates()
            if self._calls < self.warmup:
                result = self._warm_up()
                self._calls += 1
            else:
                self._graph = self._graph or self._capture()
                self._graph.replay()
                result = self._result
        return _each(lambda _, part: None if part is None else part.clone(), result, "result")

    def _over_arguments(self, visit: Callable[[str, Any], Any], args: Any, kwargs: Any) -> Any:
        names = [*self._names, *map(str, range(len(self._names), len(args)))]
        return (
            tuple(_each(visit, part, name) for part, name in zip(args, names, strict=False)),
            {name: _each(visit, part, name) for name, part in kwargs.items()},
        )

    def _find_home(self, parts: dict[str, Any]) -> torch.device:
        """Return the device of the step: that of the parameters, for data may be on the host."""
        tensors = [p for one in self.optimizers for p in one.param_groups[0]["params"][:1]]
        tensors += [part for part in parts.values() if torch.is_tensor(part)]
        if self.device is None and not tensors:
            raise ValueError("device must be given for a step without optimizer and tensors")
        home = self.device or tensors[0].device
        if home.type == "cuda" and home.index is None:
            return torch.device("cuda", torch.cuda.current_device())
        return home

    def _at_home(self, _: str, part: Any) -> Any:
        return part.to(self._home) if torch.is_tensor(part) else part

    def _run(self, args: Any, kwargs: Any) -> Any:
        # Otherwise the graph would add to gradients that exist at its capture, even freed ones.
        for one in self.optimizers:
            one.zero_grad(set_to_none=True)
        torch.clear_autocast_cache()  # holds parameters as they were before this step
        try:
            return _each(self._check_result, self.function(*args, **kwargs), "result")
        finally:
            torch.clear_autocast_cache()

    def _check_result(self, name: str, part: Any) -> Tensor | None:
        if part is None:
            return None
        if not isinstance(part, Tensor):
            raise TypeError(
                f"{name} must be a tensor or None, or a tuple, list or dict of them; got "
                f"{type(part).__name__}. A graph would return the same value in every call"
            )
        if part.device.type != self._home.type:
            raise ValueError(f"{name} must be on {self._home} as the step is; got {part.device}")
        return part.detach()

    def _load(self, parts: dict[str, Any], args: Any, kwargs: Any) -> None:
        """Copy the arguments into the buffers of the graph, which the first call allocates."""
        if not self._calls:
            self._buffers = buffers = {
                name: torch.empty_like(part, device=self._home) if torch.is_tensor(part) else part
                for name, part in parts.items()
            }
            self._arguments = self._over_arguments(lambda name, _: buffers[name], args, kwargs)
        if parts.keys() != self._buffers.keys():
            raise ValueError(
                f"arguments must be those of the first call, {list(self._buffers)}; "
                f"got {list(parts)}"
            )
        for name, part in parts.items():
            if not _alike(self._buffers[name], part):
                raise ValueError(
                    f"argument {name} must be as in the first call, {_form(self._buffers[name])}; "
                    f"got {_form(part)}. A graph has fixed shapes and values: leave out a smaller "
                    "last batch, pass numbers that change as tensors, or call reset()"
                )
        for name, part in parts.items():
            if torch.is_tensor(part):
                self._buffers[name].copy_(part, non_blocking=True)

    def _set_rates(self) -> None:
        """Write each learning rate into one tensor on the device, wherever it was changed."""
        groups = [group for one in self.optimizers for group in one.param_groups]
        for number, group in enumerate(groups):
            rate = group["lr"]
            if number == len(self._rates):
                there = torch.is_tensor(rate) and rate.device == self._home
                new = torch.empty((), dtype=torch.float32, device=self._home)
                self._rates.append(rate if there else new)
            if rate is not self._rates[number]:
                self._rates[number].fill_(torch.as_tensor(rate).squeeze())
                group["lr"] = self._rates[number]

    def _marks(self) -> list[Any]:
        """Return what a graph fixes at capture; if it changes, the step is captured again."""
        return [
            (
                id(one.state),  # another after load_state_dict
                [p.data_ptr() for p in group["params"][:1]],  # elsewhere after model.to
                {key: group[key] for key in one.defaults if key != "lr"},
            )
            for one in self.optimizers
            for group in one.param_groups
        ]

    def _warm_up(self) -> Any:
        """Run eagerly, on the stream that will capture, with optimisers that can be captured."""
        for generator in self.generators:
            if generator.device.type != self._home.type:
                raise ValueError(f"generators must be on {self._home}; got {generator.device}")
        for one in self.optimizers:
            # Or Adam warns that it is capturable and not captured.
            one._warned_capturable_if_run_uncaptured = True  # pyright: ignore[reportAttributeAccessIssue]
            for group in one.param_groups:
                # Only the fused form of SGD reads its learning rate from the device.
                sgd = {"fused": True, "foreach": False}
                group.update({"capturable": True} if "capturable" in group else sgd)
            for parameter, state in one.state.items():
                for key, value in state.items():
                    if torch.is_tensor(value):  # counts of steps may be on the host
                        state[key] = value.to(parameter.device)
        self._stream = self._stream or torch.cuda.Stream(self._home)
        current = torch.cuda.current_stream(self._home)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            result = self._run(*self._arguments)
        current.wait_stream(self._stream)
        return result

    def _capture(self) -> torch.cuda.CUDAGraph:
        gc.collect()  # reference cycles may hold memory and results of earlier passes
        graph, pool = self._new_graph(), torch.cuda.graph_pool_handle()
        states = [{key: dict(state) for key, state in one.state.items()} for one in self.optimizers]
        failure: Exception | None = None
        try:
            # The outer context restores the stream even if the inner one fails.
            # "thread_local" lets threads that load data go on.
            with (
                torch.cuda.stream(self._stream),
                torch.cuda.graph(graph, pool, self._stream, capture_error_mode="thread_local"),
                _waiting_is_an_error(),
            ):
                try:
                    self._result = self._run(*self._arguments)
                except Exception as error:
                    failure = error  # the first one: ending an aborted capture raises another
        except Exception as error:
            failure = failure or error
        made = (
            torch.is_tensor(value) and value is not state.get(parameter, {}).get(key)
            for one, state in zip(self.optimizers, states, strict=True)
            for parameter, values in one.state.items()
            for key, value in values.items()
        )
        if failure is None and any(made):
            failure = RuntimeError(
                "an optimizer created state, and every replay would create it again; a parameter "
                "that has its first gradient this late needs a larger warmup"
            )
        if failure is not None:
            traceback.clear_frames(failure.__traceback__)  # which reference captured tensors
            self._abandon(graph, pool, states)
            error = f"{type(failure).__name__}: {str(failure).partition(chr(10))[0]}"
            raise RuntimeError(_FAILED.format(error=error)) from failure
        self._known, self._states = self._marks(), [one.state for one in self.optimizers]
        return graph

    def _new_graph(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        return graph

    def _abandon(self, graph: torch.cuda.CUDAGraph, pool: Any, states: list[Any]) -> None:
        """Restore the optimisers and torch after a capture that failed."""
        for one, state in zip(self.optimizers, states, strict=True):
            one.zero_grad(set_to_none=True)  # nothing was computed
            one.state.clear()
            one.state.update(state)
        if self._home.type != "cuda":
            return
        with contextlib.suppress(RuntimeError, AttributeError):
            torch.cuda.synchronize(self._home)
            graph.reset()
            # An aborted capture is still open for torch: memory comes from its pool, and generators
            # count for it until a later capture ends. This short one ends it.
            torch._C._cuda_endAllocateToPool(self._home.index, pool)
            torch._C._cuda_releasePool(self._home.index, pool)
            _broken.append(graph)
            stream, mode = self._stream, "thread_local"
            with torch.cuda.graph(self._new_graph(), stream=stream, capture_error_mode=mode):
                torch.zeros((), device=self._home)


capture = CapturedStep


def _each(visit: Callable[[str, Any], Any], value: Any, name: str) -> Any:
    """Replace every part of nested tuples, lists and dicts by `visit(name, part)`."""
    if isinstance(value, dict):
        return {key: _each(visit, part, f"{name}[{key!r}]") for key, part in value.items()}
    if isinstance(value, list | tuple):
        parts = [_each(visit, part, f"{name}[{i}]") for i, part in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return visit(name, value)


def _alike(old: Any, new: Any) -> bool:
    if torch.is_tensor(old) and torch.is_tensor(new):
        return old.shape == new.shape and old.dtype == new.dtype
    try:
        return old is new or (type(old) is type(new) and bool(old == new))
    except (RuntimeError, ValueError):  # an array, whose truth value is ambiguous
        return False


def _form(value: Any) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if torch.is_tensor(value) else repr(value)


@contextlib.contextmanager
def _waiting_is_an_error() -> Iterator[None]:
    """Let torch refuse to wait for the device, before CUDA does so and aborts the capture."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns, once, that it does not detect every wait
        torch.cuda.set_sync_debug_mode(2)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
