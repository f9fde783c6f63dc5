"""Real SGLang in float32 on a CPU, from PyPI's wheel and without `sgl-kernel`: its arguments, environment and shims.

    env PYTHONPATH=launch/slime_cpu/sglang_site SGLANG_USE_CPU_ENGINE=1 python -m sglang.launch_server ...

`command` and `environment` are those of a server by itself. Where SLiME's own engine actors start the servers, the job
has the flags `sglang_attributes` and the same environment.

Replaced in each process that imports `sglang` (`sglang_site/sitecustomize.py`): `torchvision`'s CUDA operators have
schemas alone, pinned memory is ordinary memory, and compiled functions run as they are written. Nothing of SGLang's own
code is.

Not covered: SGLang's deterministic mode, whose kernels are CUDA's; processors of other kinds than x86-64.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import slime_swe
from slime_swe.launch.slime.manifest import Attributes
from slime_swe.recipes.base import Recipe

SITE = Path(__file__).parent / "sglang_site"
CACHE_TOKENS = 1 << 17  # of the KV cache: 0.3 GB in a toy of four layers and a width of 64
GRAMMAR_BACKEND = "llguidance"  # the one whose mask is PyTorch's and the tokenizer any: xgrammar's is for GPUs
WITHOUT_GPU: Attributes = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "dtype": "float32",
    "grammar_backend": "none",
    "cuda_graph_backend_decode": "disabled",
    "cuda_graph_backend_prefill": "disabled",
    "disable_overlap_schedule": True,  # with it, a CPU answers with the routed experts of other tokens
    "sleep_on_idle": True,
}


def processes(recipe: Recipe) -> int:
    """Count the processes of the engine: as many as a GPU recipe has GPUs to one."""
    return max(1, recipe.serving.gpus_per_engine)


def serving(recipe: Recipe) -> Attributes:
    """Return attributes of `args` by which SLiME starts one engine, or as many as `cluster.rollout_gpus` hold."""
    count = processes(recipe)
    everything = count * max(1, recipe.cluster.rollout_gpus // count)
    given = server_arguments(recipe.serving.concurrency, recipe.rollout.max_context)
    return {
        "num_gpus_per_node": everything,  # of the node that serves: ports are found for as many engines as fit into it
        "rollout_num_gpus": everything,
        "rollout_num_gpus_per_engine": count,
        "sglang_mem_fraction_static": recipe.serving.mem_fraction,
        "sglang_ep_size": recipe.serving.ep,
        **{f"sglang_{name}": value for name, value in given.items()},
        **({"sglang_grammar_backend": GRAMMAR_BACKEND} if recipe.rollout.grammar else {}),
    }


def server_arguments(requests: int, context: int) -> Attributes:
    """Return `ServerArgs` by name, for `requests` at once of at most `context` tokens each."""
    sizes = {"max_running_requests": requests, "max_total_tokens": max(context, CACHE_TOKENS)}
    return {**WITHOUT_GPU, **sizes}


def environment(path: str, tp: int = 1) -> dict[str, str]:
    """Return the variables of each process that starts or is an engine of `tp` processes. path: its PYTHONPATH so far.

    SGLang wants to know the cores of each process, but binds them with `sgl-kernel` alone.
    """
    own = str(Path(slime_swe.__file__).parents[1])
    return {
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, (str(SITE), *path.split(os.pathsep), own)))),
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_CPU_OMP_THREADS_BIND": "|".join(map(str, range(tp))),
        "TORCHDYNAMO_DISABLE": "1",
    }


def command(checkpoint: Path, port: int, *, requests: int = 32, tp: int = 1, **more: object) -> list[str]:
    """Return the argv of a server by itself; `more` are SGLang's own arguments by name."""
    given = {"model_path": checkpoint, "port": port, "tp_size": tp, **server_arguments(requests, 0), **more}
    flags = ((f"--{name.replace('_', '-')}", value) for name, value in given.items())
    words = (word for name, value in flags for word in ([name] if value is True else [name, str(value)]))
    return [sys.executable, "-m", "sglang.launch_server", *words]


def install() -> None:
    """Put the shims in place, before `sglang` is imported."""
    from slime_swe.launch.slime_cpu import shims

    shims.prepare_torch()
    shims.declare_torchvision_operators()
    shims.map_factories_to_cpu()
