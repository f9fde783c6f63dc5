"""A recipe -> its budgets: a GPU in training, serving and weight synchronisation, a machine, and its disk."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path

from slime_swe.launch.plan import GIB, Assumptions, Budget, Component, TaskImages, serving, training
from slime_swe.launch.plan.admission import episodes_of, informative, sandbox_nodes, sandboxes_at_once
from slime_swe.launch.plan.images import most_at_once
from slime_swe.launch.plan.serving import cache_pool, cache_tokens, running_requests, served_bytes, sglang_engine
from slime_swe.launch.plan.training import adapter_bytes, checkpoint_bytes, layout_of, resident_bytes, trained, whole
from slime_swe.launch.warm_start import stage_of
from slime_swe.recipes import adapters
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.gpus import GPUS
from slime_swe.recipes.layers import WEIGHT_BYTES, Layout
from slime_swe.rollout.scheduling.schedulers import SCHEDULES
from slime_swe.rollout.warm_start import RecordedEpisode, read_recorded
from slime_swe.sandbox.pool import make_backend

SYNC_BUFFER = 512 * 2**20  # SLiME's default --update-weight-buffer-size
FORMATS = {1: "Hugging Face format", 2: "Hugging Face and Megatron format"}


def budgets(recipe: Recipe, assumed: Assumptions, images: tuple[TaskImages, ...]) -> tuple[Budget, ...]:
    """Return all budgets; none of serving GPUs where SGLang servers run already. images: those of `task_images`."""
    served = () if recipe.serving.external_engines else (_serving(recipe, assumed), _synchronising(recipe, assumed))
    return (_training(recipe, assumed), *served, _machine(recipe, assumed), _disk(recipe, assumed, images))


def _training(recipe: Recipe, assumed: Assumptions) -> Budget:
    """Return the budget of the fullest pipeline stage."""
    stages = (_stage(recipe, assumed, stage) for stage in range(recipe.parallel.pp))
    return max(stages, key=lambda budget: budget.bytes)


def _stage(recipe: Recipe, assumed: Assumptions, stage: int) -> Budget:
    lasting = _lasting(recipe, stage)
    passing = _passing(recipe, assumed, stage)
    slack = assumed.fragmentation * sum(part.bytes for part in passing)
    parts = [*lasting, *passing, Component("fragmentation", slack, f"{assumed.fragmentation:.0%} of activations")]
    parts.append(_context(layout_of(recipe), assumed))
    if recipe.cluster.colocate:
        parts.append(Component("paused server", assumed.server_rest * GIB, "co-located"))
    where = f", stage {stage + 1} of {recipe.parallel.pp}" if recipe.parallel.pp > 1 else ""
    return Budget(f"training{where}", _gpu_bytes(recipe), tuple(parts), assumed.margin)


def _lasting(recipe: Recipe, stage: int) -> list[Component]:
    layout, offload = layout_of(recipe), recipe.optimizer.cpu_offload
    held, updated = whole(recipe, layout, stage), trained(recipe, layout, stage)
    states = "in the machine's memory" if offload else f"fp32, shared by {gpus(layout.dp * layout.cp)}"
    if held.expert and not offload:
        states += f", experts by {layout.edp}"
    return [
        Component("weights", training.weight_bytes(held), f"bf16, {held.parameters / 1e9:.2f} B parameters"),
        Component("adapters", adapter_bytes(recipe, layout, stage), f"bf16, rank {recipe.algorithm.lora_rank}"),
        Component("gradients", training.gradient_bytes(updated), "fp32"),
        Component("optimizer states", training.optimizer_bytes(updated, layout, offload=offload), states),
    ]


def _passing(recipe: Recipe, assumed: Assumptions, stage: int) -> list[Component]:
    """List the kept activations, and the larger of what the loss and one layer's backward pass need for a moment."""
    model, layout, parallel = recipe.model.shape, layout_of(recipe), recipe.parallel
    tokens, recompute = parallel.max_tokens_per_gpu, parallel.recompute
    kept = training.saved_bytes(
        model, layout, tokens, recompute=recompute, stage=stage, in_flight=layout.pp - stage, skew=assumed.skew
    )
    work = training.workspace_bytes(model, layout, tokens, recompute=recompute, stage=stage, skew=assumed.skew)
    peak = Component("one layer's backward pass", work, f"{tokens} tokens")
    if stage == layout.pp - 1:
        entropy, scaled = recipe.algorithm.entropy_coef != 0, recipe.rollout.temperature != 1
        loss = training.logits_bytes(model, layout, tokens, entropy=entropy, scaled=scaled)
        peak = max(peak, Component("logits", loss, f"fp32, {tokens} tokens"), key=lambda part: part.bytes)
    return [Component("activations", kept, f"{tokens} tokens, recompute {recompute}"), peak]


def _context(layout: Layout, assumed: Assumptions) -> Component:
    sizes = (layout.gpus, layout.tp, layout.pp, layout.cp, layout.dp, layout.ep, layout.etp)
    groups = sum(size > 1 for size in sizes)
    total = assumed.context_gib + groups * assumed.group_gib
    return Component("CUDA and NCCL", total * GIB, f"{groups} communicators")


def _serving(recipe: Recipe, assumed: Assumptions) -> Budget:
    tokens, most = cache_tokens(recipe), recipe.rollout.max_context
    detail = f"{tokens} tokens an engine, {tokens // most} full episodes"
    if math.isfinite(states := running_requests(recipe)):
        detail += f"; states of {states:.0f} requests"
    cache = Component("KV cache", max(cache_pool(recipe), 0.0), detail)
    parts = [*_served_weights(recipe), cache, _runtime(recipe, assumed), *_paused_trainer(recipe, assumed)]
    return Budget("serving", _gpu_bytes(recipe), tuple(parts), assumed.margin)


def _served_weights(recipe: Recipe) -> tuple[Component, Component]:
    engine = sglang_engine(recipe)
    held = serving.weight_bytes(recipe.model.shape, engine)
    return (
        Component("weights", held, f"bf16, {gpus(engine.gpus)} an engine"),
        Component("adapters", served_bytes(recipe), f"bf16, rank {recipe.algorithm.lora_rank}"),
    )


def _paused_trainer(recipe: Recipe, assumed: Assumptions) -> tuple[Component, ...]:
    """Return what a co-located trainer leaves on a GPU that serves."""
    if not recipe.cluster.colocate:
        return ()
    kept = resident_bytes(recipe, layout_of(recipe))
    return (
        Component("paused trainer", assumed.trainer_rest * GIB, "co-located"),
        Component("adapters to train", kept, "they and their gradients stay there"),
    )


def _runtime(recipe: Recipe, assumed: Assumptions) -> Component:
    needed = serving.runtime_bytes(recipe.model.shape, sglang_engine(recipe), int(assumed.prefill_chunk))
    return Component("CUDA graphs and workspace", needed, f"prefill of {assumed.prefill_chunk:.0f} tokens")


def _synchronising(recipe: Recipe, assumed: Assumptions) -> Budget:
    """Return the budget while weights are sent: co-located, the server has its weights but no cache yet; else the
    trainer has all that lasts."""
    buffers = training.sync_buffer_bytes(recipe.model.shape, SYNC_BUFFER)
    parts = [
        Component("buffers", buffers, "three times the largest tensor or 512 MiB"),
        Component("adapter", WEIGHT_BYTES * adapters.exported(recipe).parameters, "whole, as it is sent"),
    ]
    if recipe.cluster.colocate:
        parts += [*_served_weights(recipe), _runtime(recipe, assumed), *_paused_trainer(recipe, assumed)]
        return Budget("weight synchronisation", _gpu_bytes(recipe), tuple(parts), assumed.margin)
    stages = [_lasting(recipe, stage) for stage in range(recipe.parallel.pp)]
    parts += max(stages, key=lambda found: sum(part.bytes for part in found))
    parts.append(_context(layout_of(recipe), assumed))
    return Budget("weight synchronisation", _gpu_bytes(recipe), tuple(parts), assumed.margin)


def _machine(recipe: Recipe, assumed: Assumptions) -> Budget:
    """Return the budget for the memory of the machine that the rollout manager runs on: sandboxes of the backend
    `local` and of containers run there too, of `ray:BACKEND` its share of them. Each of its GPUs is charged as the
    fullest stage is."""
    layout, count = layout_of(recipe), recipe.cluster.gpus_per_node
    offload, paused, reference = recipe.optimizer.cpu_offload, recipe.cluster.colocate, recipe.algorithm.kl_coef > 0
    stages = range(layout.pp)
    held = [whole(recipe, layout, stage) for stage in stages]
    updated = [trained(recipe, layout, stage) for stage in stages]
    states = max(training.host_state_bytes(part, layout, offload=offload, paused=paused) for part in updated)
    older = recipe.algorithm.keep_old_actor
    copies = max(training.host_weight_bytes(part, reference=reference, old_actor=older) for part in held)
    runs_here = make_backend(recipe.rollout.sandbox).runs_here
    sandboxes = math.ceil(sandboxes_at_once(recipe) / sandbox_nodes(recipe)) if runs_here else 0
    parts = (
        Component("optimizer states", count * states, "offloaded" if offload else "while the server has the GPUs"),
        Component("copies of the weights", count * copies, _copies(reference, older)),
        Component("processes", (count * assumed.process_gib + assumed.node_gib) * GIB, f"of {count} GPUs, and Ray"),
        Component("sandboxes", sandboxes * assumed.sandbox_gib * GIB, f"{sandboxes} at {assumed.sandbox_gib:g} GiB"),
        Component("routes", _routes(recipe, assumed), f"of a batch, whole to each of {count} GPUs (slime#2384)"),
    )
    return Budget("machine", recipe.cluster.memory_per_node * GIB, parts, assumed.margin)


def _routes(recipe: Recipe, assumed: Assumptions) -> float:
    """Return the bytes of the experts that each token was sampled with, where training replays them: int32 a layer.

    The rollout holds those of the groups that the filter drops too, until its batch is complete. SLiME then sends each
    GPU of the trainer those of all episodes that its copy of the model sees, and not its part of them.
    """
    if recipe.algorithm.routing_replay != "rollout":
        return 0.0
    sizes, rollout, layout = recipe.model.shape.megatron, recipe.rollout, layout_of(recipe)
    token: int = 4 * sizes["num_layers"] * sizes["moe_router_topk"]
    batch = token * rollout.batch_size * rollout.samples_per_task * episodes_of(recipe, assumed).length
    sampled = batch / informative(recipe, assumed)
    trained = batch + recipe.cluster.gpus_per_node * batch / layout.dp
    return sampled + trained if SCHEDULES[rollout.schedule].overlaps else max(sampled, trained)


def _copies(reference: bool, older: bool) -> str:
    return "pinned" + (", the reference's too" if reference else "") + (", and two older" if older else "")


def _disk(recipe: Recipe, assumed: Assumptions, images: tuple[TaskImages, ...]) -> Budget:
    """Return the budget of one node's disk, if all lies there: the images of all tasks that the run meets, the model
    twice, and what a run keeps."""
    model = recipe.model.shape
    formats = 1 if recipe.algorithm.lora_rank else 2  # LoRA starts from Hugging Face's
    parts = (
        Component("task images", most_at_once(recipe, images, assumed) * GIB, _images(recipe, images)),
        Component("kept free", recipe.rollout.keep_disk_free * GIB, "by removing images"),
        Component("model", formats * WEIGHT_BYTES * model.parameters, FORMATS[formats]),
        *_kept(recipe),
    )
    return Budget("disk", recipe.cluster.disk_per_node * GIB, parts)


def _images(recipe: Recipe, found: tuple[TaskImages, ...]) -> str:
    return "of one rollout" if recipe.rollout.keep_disk_free else "; ".join(map(str, found))


def _kept(recipe: Recipe) -> tuple[Component, Component]:
    """Return what lies in the run's folder when it holds the most."""
    (checkpoints, exports), stage = most_kept(recipe), supervised(recipe)
    of_stage = [f", {count} of the warm start" for count in most_kept(stage)] if stage else ["", ""]
    one = (checkpoint_bytes(recipe), WEIGHT_BYTES * recipe.model.shape.parameters)
    return (
        Component("checkpoints", checkpoints * one[0], f"{checkpoints} of weights and optimizer states{of_stage[0]}"),
        Component("exports", exports * one[1], f"{exports} of weights in Hugging Face format{of_stage[1]}"),
    )


def most_kept(recipe: Recipe) -> tuple[int, int]:
    """Count the checkpoints and exports that lie in the run's folder at once. Those of a warm start stay while its
    rollouts run, one more than `run.keep_checkpoints`, as the oldest goes when another rollout begins."""
    stages = [stage for stage in (recipe, supervised(recipe)) if stage]
    return sum(stage.most_checkpoints for stage in stages), sum(stage.most_exports for stage in stages)


# A plan needs two things of a recipe's `warm_start`: its episodes, and the recipe of its stage.
#
# A step of the stage needs no more of a GPU and of a machine than one of the rollouts: the same layout and the same
# `parallel.max_tokens_per_gpu`, without a server, a reference policy or an entropy bonus. That holds while its longest
# sample has at most `rollout.max_context` tokens, for which a micro-batch has room; a longer one is a problem.
Episodes = tuple[RecordedEpisode, ...]


def recorded(recipe: Recipe) -> Episodes:
    """Read the episodes of `warm_start.data`; none if it is empty or not here. Raises `UserError` for another file."""
    path = Path(recipe.warm_start.data)
    if not recipe.warm_start.data or not path.is_file():
        return ()
    found = path.stat()
    return _read(path, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=1)  # a search for proposals asks for each of thousands of recipes
def _read(path: Path, changed: int, size: int) -> Episodes:
    return tuple(read_recorded(path))


def supervised(recipe: Recipe) -> Recipe | None:
    """Return the recipe of the warm start's stage; None without one."""
    episodes = recorded(recipe)
    return stage_of(recipe, Path(recipe.run.dir), episodes) if episodes else None


def gpus(count: int) -> str:
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def _gpu_bytes(recipe: Recipe) -> float:
    return GPUS[recipe.cluster.gpu].memory * GIB
