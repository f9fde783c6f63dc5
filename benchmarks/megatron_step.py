"""Training steps of each recipe's rank in megatron-core on one GPU: memory and time, beside what the planner says.

A rank's shape (heads / tp, feed-forward width / tp, vocabulary / tp, experts / ep, layers / pp; fewer layers where
they don't fit one GPU, which the table says) gets random weights, fp32 gradients and AdamW, and trains on packed
sequences of `parallel.max_tokens_per_gpu` tokens with the recipe's recomputation. The planner is asked about that same
shape on one GPU, with even routing and without what isn't there: fragmentation, CUDA context, communicators, a paused
server. So this measures its formulae, not the cut, and not the communication between ranks.

    python -m benchmarks.megatron_step [RECIPE ...] [--device cuda|meta|cpu] [--tiny] [--json] [--check] [--save]

`--device meta` needs no GPU and computes nothing: megatron-core runs at full size on tensors that have shapes alone,
and their bytes are counted. So it was run on dense models; mixtures of experts take minutes and were run with `--tiny`
alone. `--device cpu --tiny` runs a toy size, to see that all of it works. Neither says anything of time on a GPU.
Wants megatron-core 0.16.1 (`pip install --no-deps megatron-core==0.16.1`) and packaging.

A machine with a GPU, PyTorch, NumPy, packaging and no network wants one wheel of 2.6 MB carried along, made where there
is a network by `pip download --no-deps -d wheels megatron-core==0.16.1`. Then, in the repository, all in a line:

    pip install --no-index --no-deps --target site wheels/* && PYTHONPATH=site python -m benchmarks.megatron_step --save

NOT YET RUN ON A GPU: there is no `baselines/megatron_step.json` until it has been.
"""

from __future__ import annotations

import argparse
import gc
import logging
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.baseline import add_options, conclude
from benchmarks.megatron_device import BACKENDS, Meter, device
from benchmarks.megatron_shape import fitting, plan_memory, sequence_lengths, tiny

from slime_swe.launch.plan import roofline
from slime_swe.launch.plan.formulae import GIB
from slime_swe.recipes.base import Architecture, Recipe
from slime_swe.recipes.gpus import GPUS, Gpu
from slime_swe.recipes.registry import RECIPES, load_recipe

BASELINES = Path(__file__).parent / "baselines"
FILES = {"cuda": BASELINES / "megatron_step.json", "meta": BASELINES / "megatron_memory.json"}
NAMES = [name for name in RECIPES if name != "tiny_cpu"]
TOLERANCE = 0.10  # of the planner's memory; and of the baseline's share of the GEMM roof
WARM_UP = 3
LASTING = ("weights", "gradients", "optimizer states")
Figures = dict[str, Any]


def measure(recipe: Recipe, shape: Architecture, kind: str, steps: int) -> Figures:
    """Bytes and seconds of one rank's steps on one micro-batch, and the planner's of the same."""
    from benchmarks.megatron_rank import Batch, Rank

    lengths = sequence_lengths(recipe.parallel.max_tokens_per_gpu)
    with device(kind) as meter:
        roof = 0.0 if kind == "meta" else gemm_tflops(kind)
        meter.reset()
        with Rank(shape, recipe, kind) as rank:
            memory = _build(rank, meter, max(lengths))
            batch = Batch.random(shape.vocab, lengths, kind)
            seconds, losses = _steps(rank, batch, 1 if kind == "meta" else WARM_UP + steps)
            memory |= _weigh_step(rank, batch, meter)
    planned = plan_memory(recipe, shape)
    figures = {"layers": shape.layers, "tokens": sum(lengths), "measured_bytes": memory, "planned_bytes": planned}
    figures["memory_ratio"] = memory["peak"] / sum(planned.values())
    if kind == "meta":
        return figures
    losses_of_batch = {"first_loss": losses[0].item(), "last_loss": losses[-1].item()}
    return figures | losses_of_batch | _rates(recipe, shape, lengths, seconds, roof, kind)


def _build(rank: Any, meter: Meter, longest: int) -> dict[str, float]:
    """What each part adds. Sequence positions are looked up to `longest`."""
    sizes = [meter.allocated()]
    for build in (lambda: rank.build_model(longest), rank.build_gradients, rank.build_optimizer):
        build()
        sizes.append(meter.allocated())
    return {"weights": sizes[1] - sizes[0], "gradients": sizes[2] - sizes[1]}


def _steps(rank: Any, batch: Any, steps: int) -> tuple[list[float], list[torch.Tensor]]:
    """Seconds of each step after the warm-up, and all losses. The first step makes the optimizer's moments."""
    seconds, losses = [], []
    for _ in range(steps):
        _finish()
        started = time.perf_counter()
        losses.append(rank.forward_backward(batch))
        rank.update()
        _finish()
        seconds.append(time.perf_counter() - started)
    return seconds[WARM_UP:], losses


def _finish() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _weigh_step(rank: Any, batch: Any, meter: Meter) -> dict[str, float]:
    """What lasts, what the forward pass keeps, the peak beyond it, and the peak of the update."""
    lasting, kept = meter.allocated(), []
    hook = rank.decoder().register_forward_hook(lambda *_: kept.append(meter.allocated()))
    meter.reset()
    rank.forward_backward(batch)
    peak = meter.peak()
    hook.remove()
    meter.reset()
    rank.update()
    update = meter.peak()
    return {
        "lasting": lasting,
        "activations": kept[0] - lasting,
        "loss or backward": peak - kept[0],
        "update": update - lasting,
        "peak": max(peak, update),
    }


def gemm_tflops(kind: str) -> float:
    """Of one square bf16 matrix product, the best of several, for a roof that this very machine reaches."""
    size = 8192 if kind == "cuda" else 512
    left, right = (torch.randn(size, size, device=kind, dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / min(_timed(lambda: left @ right) for _ in range(20)) / 1e12


def _timed(work: Callable[[], object]) -> float:
    _finish()
    started = time.perf_counter()
    work()
    _finish()
    return time.perf_counter() - started


def _rates(
    recipe: Recipe, shape: Architecture, lengths: list[int], seconds: list[float], roof: float, kind: str
) -> Figures:
    """MFU counts the model's own FLOPs, those of recomputation left out; the planner's time counts them."""
    tokens, median = sum(lengths), statistics.median(seconds)
    length = sum(part * part for part in lengths) / tokens  # what a token of this micro-batch lies in, on average
    rate = tokens * roofline.train_flops(shape, length) / median / 1e12
    figures = {"step_seconds": median, "tokens_per_second": tokens / median, "tflops": rate}
    figures |= {"gemm_tflops": roof, "gemm_share": rate / roof}
    if kind != "cuda":
        return figures
    gpu = card()
    work = tokens * roofline.train_flops(shape, length, recipe.parallel.recompute)
    reached = gpu.flops * 1e12 * (gpu.moe_mfu if shape.experts else gpu.mfu)
    update = roofline.OPTIMIZER_TRAFFIC * shape.parameters / (gpu.bandwidth * 1e12)
    return figures | {"mfu": rate / gpu.flops, "planned_seconds": work / reached + update}


def card() -> Gpu:
    """The GPU that is here, as the planner knows it: of the same name, nearest in memory. Raises `ValueError`."""
    name, memory = torch.cuda.get_device_name(), torch.cuda.mem_get_info()[1] / GIB
    known = [gpu for kind, gpu in GPUS.items() if kind.partition("-")[0] in name]
    if not known:
        raise ValueError(f"the planner doesn't know {name}: it knows {', '.join(GPUS)}")
    return min(known, key=lambda gpu: abs(gpu.memory - memory))


def table(figures: Figures) -> str:
    lines = [f"{figures['device']}, torch {figures['torch']}, megatron-core {figures['megatron_core']}"]
    for name, one in figures["recipes"].items():
        if "failed" in one:
            lines += ["", f"{name}: {one['failed']}"]
            continue
        lines += ["", f"{name}: {one['layers']} of a rank's {one['rank_layers']} layers, {one['tokens']} tokens"]
        lines += _memory_lines(one) + [f"  {key:<20} {one[key]:12.4g}" for key in one if isinstance(one[key], float)]
    return "\n".join(lines)


def _memory_lines(one: Figures) -> list[str]:
    planned, measured = dict(one["planned_bytes"]), dict(one["measured_bytes"])
    measured["optimizer states"] = measured["lasting"] - measured["weights"] - measured["gradients"]
    passing = [name for name in planned if name not in (*LASTING, "activations")]
    rows = [(name, planned[name], measured[name]) for name in (*LASTING, "activations")]
    rows += [(name, planned[name], measured["loss or backward"]) for name in passing]
    rows.append(("peak", sum(planned.values()), measured["peak"]))
    head = f"  {'GiB':<26} {'planned':>9} {'measured':>9}"
    return [head, *(f"  {name:<26} {plan / GIB:9.3f} {found / GIB:9.3f}" for name, plan, found in rows)]


def worse(figures: Figures, baseline: Figures) -> list[str]:
    """Memory off the planner's by more than the tolerance, and steps further from the GEMM roof than the baseline's."""
    found = []
    for name, one in figures["recipes"].items():
        if "failed" in one:
            found.append(f"{name}: {one['failed']}")
            continue
        if abs(one["memory_ratio"] - 1) > TOLERANCE:
            found.append(f"{name}: memory is {one['memory_ratio']:.2f} of what the planner says")
        expected = baseline["recipes"].get(name, {}).get("gemm_share", 0.0)
        if one.get("gemm_share", 0.0) < expected * (1 - TOLERANCE):
            found.append(f"{name}: {one['gemm_share']:.2f} of the GEMM roof; the baseline is {expected:.2f}")
    return found


def _one(name: str, options: argparse.Namespace) -> Figures:
    recipe = load_recipe(name)
    kind, rank_layers = options.device, recipe.model.architecture.layers // recipe.parallel.pp
    if options.tiny:
        recipe, shape = tiny(recipe)
    else:
        shape = fitting(recipe, torch.cuda.mem_get_info()[0] if kind == "cuda" else float("inf"))
    try:
        return {"rank_layers": rank_layers, **measure(recipe, shape, kind, options.steps)}
    except torch.cuda.OutOfMemoryError as error:
        return {"failed": f"with {shape.layers} of a rank's {rank_layers} layers: {error}"}
    finally:
        gc.collect()
        torch.cuda.empty_cache()


def _machine(kind: str) -> Figures:
    from importlib.metadata import version

    where = torch.cuda.get_device_name() if kind == "cuda" else f"{kind}: not a GPU, says nothing of its speed"
    return {"device": where, "torch": torch.__version__, "megatron_core": version("megatron-core")}


def _options(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", help=f"default: {' '.join(NAMES)}")
    parser.add_argument("--device", choices=list(BACKENDS), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a toy size")
    parser.add_argument("--steps", type=int, default=10, help="timed steps of each")
    add_options(parser)
    options = parser.parse_args(words)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU here: --device meta counts memory without, --device cpu --tiny runs a toy size")
    if (options.save or options.check) and (options.tiny or options.device not in FILES):
        parser.error("--save and --check want recipes in full size, on --device cuda or meta")
    if options.check and not FILES[options.device].exists():
        parser.error(f"there is no baseline {FILES[options.device].name} yet: --save makes it")
    return options


def main(words: list[str] | None = None) -> int:
    options = _options(words)
    if options.device == "cuda":
        card()  # known, or no use going on
    warnings.simplefilter("ignore")  # Megatron's, of optional packages that are not there
    logging.getLogger("megatron").setLevel(logging.ERROR)
    recipes = {name: _one(name, options) for name in options.recipes or NAMES}
    figures = {**_machine(options.device), "recipes": recipes}
    return conclude(options, figures, table(figures), FILES.get(options.device, Path()), worse)


if __name__ == "__main__":
    sys.exit(main())
