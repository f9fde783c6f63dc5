"""PyTorch's `meta` device in CUDA's place: its tensors have sizes and no values, so that a step of any model runs.

Megatron-core asks for CUDA by name. Its requests are answered here, for as long as `meta_device` lasts.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch.distributed._meta_registrations import create_fakework
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

NOTHING = ("synchronize", "manual_seed", "set_device", "empty_cache", "_lazy_call")
IDLE = ("Stream", "Event", "current_stream", "default_stream")


class TensorMeter(TorchDispatchMode):
    """Bytes of a device's tensors that operators return, by the life of their storages: those there are (`now`), and
    the most there were since `reset` (`peak`).

    Not seen: what a kernel takes and gives back within itself: cuBLAS workspaces, flash attention's fp32 sums.
    """

    def __init__(self, kind: str = "meta") -> None:
        super().__init__()
        self._kind, self.now, self.peak = kind, 0, 0
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
            self.now -= size

        self._known[key] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)

    def reset(self) -> None:
        self.peak = self.now


@contextlib.contextmanager
def meta_device() -> Iterator[TensorMeter]:
    """A process group of one, what is asked for on CUDA put on `meta`, and the meter of its memory."""
    state = torch.get_rng_state()
    replacements: dict[str, Any] = dict.fromkeys(NOTHING, _nothing) | dict.fromkeys(IDLE, _Idle)
    replacements["current_device"] = lambda: torch.device("meta")
    replacements["get_rng_state"] = lambda *_: state
    replacements["stream"] = lambda *_: contextlib.nullcontext()
    with (
        mock.patch.multiple(torch.cuda, **replacements),
        mock.patch.multiple(torch.cuda.random, get_rng_state=lambda *_, **__: state),
        torch.compiler.set_stance("force_eager"),  # compiling takes longer than such a step
        torch.library._scoped_library("c10d", "IMPL") as library,
        _Redirect(),
        TensorMeter() as meter,
    ):
        # The two collectives of the distributed optimizer that PyTorch doesn't answer on `meta` itself.
        for name in ("reduce_scatter_tensor_coalesced_", "allgather_into_tensor_coalesced_"):
            library.impl(name, lambda *args: create_fakework(args, return_first_arg=False), "Meta")
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
        try:
            yield meter
        finally:
            torch.distributed.destroy_process_group()


class _Redirect(TorchFunctionMode):
    """`device="cuda"` means `meta`; `Tensor.type()` says `torch.cuda...`, which Megatron's optimizer compares with."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if str(options.get("device")).startswith("cuda"):
            options["device"] = "meta"
        if func is torch.Tensor.cuda:
            return args[0].to("meta")
        if func is torch.Tensor.type and len(args) == 1 and not options:
            return f"torch.cuda.{func(args[0]).rsplit('.', 1)[-1]}"
        return func(*args, **options)


class _Idle:
    """A stream or an event: here, what was asked for first is done first."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: self


def _nothing(*_: Any, **__: Any) -> None: ...
