"""What real SLiME and Megatron-LM need of a GPU machine, stood in for on a CPU.

`install` is called in every process of a run before anything of SLiME's or Megatron's is imported: by
`launch.slime_cpu.main` in the driver, and by `fork_server` in each of Ray's. Nothing here changes what is computed,
only where.

- `torchvision`'s operators, which its CUDA build registers when it loads: their schemas alone. Transformers imports
  torchvision; nothing here calls it.
- SLiME's CUDA accelerator: `CpuAccelerator`, registered by SLiME's own `register_accelerator`.
- `torch.cuda`'s current device, streams and random state, in Megatron: the CPU, nothing, the CPU's. The properties that
  it asks of a GPU: those of a Hopper.
- `device="cuda"` where Megatron makes tensors: the CPU. `pin_memory=True`: ordinary memory.
- `torch.compile`: the function as it is written.
- What PyTorch calls of a process group and SLiME's wrapper of one lacks.
- Megatron's copy of a checkpoint into the optimizer: without gradients.
- Counts of tokens that Megatron copies from a GPU to its host: as they are.

Transformer Engine and flash-linear-attention are in `packages/`, on these processes' PYTHONPATH.

Not covered: memory offload between training and serving (`--colocate`), fused kernels, CUDA graphs.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

CPU = torch.device("cpu")
ACCELERATOR = "cpu"
_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_FACTORIES = ("arange", "empty", "empty_like", "full", "ones", "rand", "randn", "tensor", "zeros", "zeros_like")
HOPPER = SimpleNamespace(major=9, minor=0, multi_processor_count=132)  # the GPU whose branches Megatron takes
_kept: list[Any] = []  # a library's operators are there as long as it is


@functools.cache
def install() -> None:
    """Put every shim in place, once a process."""
    without_cuda()
    os.environ["SLIME_ACCELERATOR"] = ACCELERATOR
    _register_accelerator()
    forward_single_collectives()
    load_without_gradients()
    give_splits_to_host()


def give_splits_to_host() -> None:
    """Make Megatron's counts of tokens for each rank of a mixture of experts an array on a CPU too, not a tensor.

    Megatron copies these counts from the GPU to the host, where they become numpy's, as all-to-all takes them. Of a
    tensor that is on the host already it makes no copy, and leaves a tensor, which all-to-all does not take.
    """
    from megatron.core.transformer.moe import token_dispatcher

    token_dispatcher.maybe_move_tensor_to_cpu = on_host


def on_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """Return what Megatron's function returns of a tensor on a GPU."""
    return tensor.numpy() if as_numpy and isinstance(tensor, Tensor) else tensor


# Megatron's distributed optimizer loads a checkpoint of float32 weights.
#
# On a GPU weights are in half precision, and a checkpoint is copied into their float32 copies, which need no gradients.
# In float32 there are no copies: it is copied into the model's own parameters, which PyTorch refuses while it records.
COPY = "_set_main_param_and_optimizer_states"


def load_without_gradients() -> None:
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    optimizer: Any = DistributedOptimizer
    original = getattr(optimizer, COPY)

    @functools.wraps(original)
    def copy(*args: Any, **options: Any) -> None:
        with torch.no_grad():
            original(*args, **options)

    setattr(optimizer, COPY, copy)


# What PyTorch 2.13 calls of a process group and SLiME's wrapper of one, `ReloadableProcessGroup`, does not pass on.
#
# `reduce_scatter_tensor` and its like call the group's `reduce_scatter_single`, a method of the class that the wrapper
# derives from, which knows no backend. The wrapper is of older PyTorch, as SLiME's image has it.
METHODS = ("all_gather_single", "reduce_scatter_single", "all_to_all_single")


def forward_single_collectives() -> None:
    """Let the wrapper pass these on, as it does the others."""
    from slime.utils.reloadable_process_group import ReloadableProcessGroup

    for name in METHODS:
        if name not in vars(ReloadableProcessGroup):
            setattr(ReloadableProcessGroup, name, _forward(name))


def _forward(name: str) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **options: Any) -> Any:
        return self._fwd(name, *args, **options)

    return call


@functools.cache
def without_cuda() -> None:
    """Put in place the shims that are not about SLiME: all that its fork, which has no accelerators of its own, needs
    to be imported and to read a command line."""
    prepare_torch()
    declare_torchvision_operators()
    _map_cuda_to_cpu()
    map_factories_to_cpu()


def prepare_torch() -> None:
    """Have PyTorch compile nothing, so that functions of `torch` can be replaced."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # its tables of `torch`'s functions admit no replaced ones
    importlib.import_module("torch._dynamo")  # lists `torch`'s functions when it loads, and refuses replaced ones


def declare_torchvision_operators() -> None:
    make: Any = torch.library.Library
    library = make("torchvision", "FRAGMENT")
    _kept.append(library)
    for schema in _OPERATORS:
        with contextlib.suppress(RuntimeError):  # a build of torchvision for the CPU has them
            library.define(schema)


def _map_cuda_to_cpu() -> None:
    cuda: Any = torch.cuda
    cuda.current_device = lambda: CPU  # Megatron passes it on as `device=`
    for name in ("set_device", "synchronize", "empty_cache", "ipc_collect", "manual_seed", "_lazy_call"):
        setattr(cuda, name, _nothing)
    # Megatron keeps a random stream per parallel rank for dropout and fresh weights, of which there are none here.
    cuda.get_rng_state = cuda.random.get_rng_state = lambda *_, **__: torch.get_rng_state()
    cuda.set_rng_state = cuda.random.set_rng_state = _nothing
    cuda.Stream = cuda.Event = cuda.current_stream = cuda.default_stream = _Idle
    cuda.stream = lambda *_: contextlib.nullcontext()
    cuda.get_device_capability = _always((HOPPER.major, HOPPER.minor))
    cuda.get_device_properties = _always(HOPPER)
    cuda.FloatTensor = torch.FloatTensor
    tensor: Any = torch.Tensor
    tensor.cuda = lambda self, *_, **__: self
    tensor.type = _cuda_type(tensor.type)


class _Idle:
    """A stream or an event: on a CPU what was asked for first is done first."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record_event(self, *_: Any) -> _Idle:
        return _Idle()

    def __getattr__(self, name: str) -> Callable[..., None]:
        return _nothing


def _always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


_nothing = _always(None)


def _cuda_type(original: Callable[..., Any]) -> Callable[..., Any]:
    """Have `tensor.type()` name a tensor of a GPU: Megatron's optimizer asks for `"torch.cuda.FloatTensor"`."""

    @functools.wraps(original)
    def type_of(self: torch.Tensor, *args: Any, **options: Any) -> Any:
        answer = original(self, *args, **options)
        return answer.replace("torch.", "torch.cuda.", 1) if isinstance(answer, str) else answer

    return type_of


def map_factories_to_cpu() -> None:
    for name in _FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    tensor: Any = torch.Tensor
    tensor.to = _on_cpu(tensor.to)


def _on_cpu(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **options: Any) -> Any:
        if _is_cuda(options.get("device")):
            options["device"] = CPU
        options.pop("pin_memory", None)
        if len(args) > 1 and _is_cuda(args[1]):  # `tensor.to("cuda")`
            args = (args[0], CPU, *args[2:])
        return original(*args, **options)

    return call


def _is_cuda(device: Any) -> bool:
    return isinstance(device, str | torch.device) and str(device).startswith("cuda")


def _register_accelerator() -> None:
    from slime.utils import accelerator
    from slime.utils.accelerator.base import Accelerator

    class CpuAccelerator(Accelerator):  # type: ignore[misc]
        """SLiME's accelerator on a CPU: one device, no streams, all of the machine's memory."""

        name = device_type = ACCELERATOR
        communication_backend_name = "gloo"
        is_available = _always(True)
        device = _always(CPU)
        device_name = current_device = _always(ACCELERATOR)
        device_count = _always(1)
        set_device = synchronize = current_stream = empty_cache = distributed_device_id = _nothing

        def mem_get_info(self, device: Any = None) -> tuple[int, int]:
            import psutil  # of SLiME's environment

            memory = psutil.virtual_memory()
            return memory.available, memory.total

        def memory_allocated(self, device: Any = None) -> int:
            import psutil

            return int(psutil.Process().memory_info().rss)

        memory_reserved = memory_allocated

        def autocast(self, *args: Any, **options: Any) -> Any:
            return torch.autocast(ACCELERATOR, *args, **options)

        def resolve_visible_device_id(self, physical_device_id: Any) -> int:
            return int(physical_device_id)

    accelerator.register_accelerator(
        ACCELERATOR, CpuAccelerator, lambda: True, priority=1000, communication_backends=("gloo",)
    )
