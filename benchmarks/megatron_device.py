"""Where a Megatron step runs: a GPU, the CPU, or PyTorch's `meta` device, which knows sizes and computes nothing.

Megatron-core asks for CUDA by name. On the other two its requests are answered here, for as long as `device` lasts.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any, Protocol
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

NOTHING = ("synchronize", "manual_seed", "set_device", "empty_cache", "_lazy_call")
IDLE = ("Stream", "Event", "current_stream", "default_stream")
BACKENDS = {"cuda": "nccl", "cpu": "gloo", "meta": "fake"}


class Meter(Protocol):
    """Bytes of tensors: those there are, and the most there were since `reset`."""

    def allocated(self) -> int: ...
    def peak(self) -> int: ...
    def reset(self) -> None: ...


class CudaMeter:
    """What PyTorch's allocator has handed out since; not what it holds in reserve, nor the CUDA context."""

    def __init__(self) -> None:
        self._before = torch.cuda.memory_allocated()

    def allocated(self) -> int:
        return torch.cuda.memory_allocated() - self._before

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated() - self._before

    def reset(self) -> None:
        torch.cuda.reset_peak_memory_stats()


class TensorMeter(TorchDispatchMode):
    """The same of tensors that operators return, by the life of their storages.

    Not seen: what a kernel takes and gives back within itself: cuBLAS workspaces, flash attention's fp32 sums.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind, self._now, self._most = kind, 0, 0
        self._known: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_iter(result):
            if isinstance(value, torch.Tensor) and value.device.type == self._kind:
                self._add(value.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return

        def gone(_: Any) -> None:
            del self._known[key]
            self._now -= size

        self._known[key] = weakref.ref(storage, gone)
        self._now += size
        self._most = max(self._most, self._now)

    def allocated(self) -> int:
        return self._now

    def peak(self) -> int:
        return self._most

    def reset(self) -> None:
        self._most = self._now


@contextlib.contextmanager
def device(kind: str) -> Iterator[Meter]:
    """A process group of one on `kind`, and the meter of its memory."""
    with contextlib.ExitStack() as stack:
        if kind != "cuda":
            stack.enter_context(_cuda_is(kind))
        if kind == "meta":
            stack.enter_context(_collectives_of_sizes())
        meter: Meter = CudaMeter() if kind == "cuda" else stack.enter_context(TensorMeter(kind))
        stack.enter_context(_process_group(BACKENDS[kind]))
        yield meter


@contextlib.contextmanager
def _process_group(backend: str) -> Iterator[None]:
    if backend == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        store: Any = FakeStore()
    else:
        store = torch.distributed.HashStore()
    torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


@contextlib.contextmanager
def _collectives_of_sizes() -> Iterator[None]:
    """The two collectives of the distributed optimizer that PyTorch doesn't answer on `meta` itself."""
    from torch.distributed._meta_registrations import create_fakework

    with torch.library._scoped_library("c10d", "IMPL") as library:
        for name in ("reduce_scatter_tensor_coalesced_", "allgather_into_tensor_coalesced_"):
            library.impl(name, lambda *args: create_fakework(args, return_first_arg=False), "Meta")
        yield


@contextlib.contextmanager
def _cuda_is(kind: str) -> Iterator[None]:
    """Answer for `torch.cuda`, and put what is asked for on CUDA on `kind`."""
    state = torch.get_rng_state()
    replacements: dict[str, Any] = dict.fromkeys(NOTHING, _nothing) | dict.fromkeys(IDLE, _Idle)
    replacements["current_device"] = lambda: torch.device(kind)
    replacements["get_rng_state"] = lambda *_: state
    replacements["stream"] = lambda *_: contextlib.nullcontext()
    with (
        mock.patch.multiple(torch.cuda, **replacements),
        mock.patch.multiple(torch.cuda.random, get_rng_state=lambda *_, **__: state),
        torch.compiler.set_stance("force_eager"),  # compiling takes longer than such a step
        _Redirect(kind),
    ):
        yield


class _Redirect(TorchFunctionMode):
    """`device="cuda"` means `kind`; `Tensor.type()` says `torch.cuda...`, which Megatron's optimizer compares with."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if str(options.get("device")).startswith("cuda"):
            options["device"] = self._kind
        if func is torch.Tensor.cuda:
            return args[0].to(self._kind)
        if func is torch.Tensor.type and len(args) == 1 and not options:
            return f"torch.cuda.{func(args[0]).rsplit('.', 1)[-1]}"
        return func(*args, **options)


class _Idle:
    """A stream or an event: here, what was asked for first is done first."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self


def _nothing(*_: Any, **__: Any) -> None: ...
