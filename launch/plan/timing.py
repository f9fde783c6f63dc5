"""A recipe -> the seconds of one step, phase by phase."""

from __future__ import annotations

import math
from dataclasses import replace

from slime_swe.launch.engines import engine_of
from slime_swe.launch.plan import HOUR, Assumptions, Evaluations, Outlook, Phase, Plan, Supervised, Timing, WholeRun
from slime_swe.launch.plan.admission import episodes_of, informative
from slime_swe.launch.plan.images import tasks_of
from slime_swe.launch.plan.memory import recorded, supervised
from slime_swe.launch.plan.rollout import evaluation_seconds, sample_step
from slime_swe.launch.plan.serving import engines, sglang_engine
from slime_swe.launch.plan.training import (
    OPTIMIZER_TRAFFIC,
    bubble,
    forward_flops,
    layout_of,
    offloaded_step_seconds,
    optimizer_bytes,
    owned,
    sent_bytes,
    shard,
    train_flops,
    trained,
    weight_bytes,
)
from slime_swe.recipes.base import Recipe, Rollout
from slime_swe.recipes.gpus import GPUS
from slime_swe.recipes.rules import at_once
from slime_swe.rollout.scheduling.schedulers import SYNC


def time_step(recipe: Recipe, assumed: Assumptions) -> Timing:
    work, cluster, gpus = episodes_of(recipe, assumed), recipe.cluster, layout_of(recipe).gpus
    episodes = recipe.rollout.batch_size * recipe.rollout.samples_per_task
    training = _training(recipe, episodes, work.length, assumed)
    update = training[-1].seconds
    rollout = sample_step(recipe, assumed, math.fsum(phase.seconds for phase in training) - update, update)
    tokens = episodes * work.length
    return Timing(
        rollout=rollout.phases,
        training=training,
        overlap=at_once(recipe),
        slot_use=rollout.slot_use,
        limit=rollout.limit,
        episodes=episodes,
        tokens=tokens,
        train_rate=tokens / (training[0].seconds * gpus),
        sample_rate=rollout.sampled / (engines(recipe) * sglang_engine(recipe).gpus),
        gpus=gpus + cluster.rollout_gpus,
        gpu_hour_price=cluster.gpu_hour_price,
    )


def time_stage(recipe: Recipe, assumed: Assumptions) -> Supervised | None:
    """Time the stage of a recipe's `warm_start`, whose samples are as long as they are recorded; None without one."""
    stage = supervised(recipe)
    if stage is None:
        return None
    lengths = [about.tokens for episode in recorded(recipe) for about in episode.abouts]
    share = stage.rollout.batch_size / len(recorded(recipe))  # of the file, in one step
    return Supervised(
        steps=stage.run.num_rollouts,
        episodes=stage.rollout.batch_size,
        tokens=share * sum(lengths),
        longest=max(lengths),
        step=_stage_step(stage, share * len(lengths), sum(lengths) / len(lengths), assumed),
        gpus=layout_of(recipe).gpus + recipe.cluster.rollout_gpus,
    )


def _stage_step(stage: Recipe, samples: float, length: float, assumed: Assumptions) -> float:
    """Return the seconds of one step of the stage. Nothing is synchronised, and the trainer keeps its GPUs
    (`launch/slime/render.py`, `_supervised`)."""
    if not engine_of(stage).on_gpus:
        return 0.0
    alone = replace(stage, cluster=replace(stage.cluster, colocate=False))
    return math.fsum(phase.seconds for phase in _training(alone, samples, length, assumed)[:-1])


def _training(recipe: Recipe, episodes: float, length: float, assumed: Assumptions) -> tuple[Phase, ...]:
    """Return the phases of training. Their order is kept: training itself first, the engines' new weights last."""
    model, layout, steps = recipe.model.shape, layout_of(recipe), recipe.algorithm.steps_per_rollout
    tokens = episodes * length
    gpu = GPUS[recipe.cluster.gpu]
    mfu = assumed.mfu or (gpu.moe_mfu if model.experts else gpu.mfu)
    rate = layout.gpus * gpu.flops * 1e12 * mfu
    packed = tokens / steps / layout.dp / (layout.cp * recipe.parallel.max_tokens_per_gpu)
    longer = bubble(layout.pp, packed)
    flops = train_flops(model, length, recipe.parallel.recompute, layout, frozen=recipe.algorithm.lora_rank > 0)
    forwards = _forward_passes(recipe)
    stepped = "in the machine's memory" if recipe.optimizer.cpu_offload else "on the GPU"
    changed = "states to the machine's memory and back" if recipe.cluster.colocate else ""
    synchronised = sent_bytes(recipe) / (assumed.sync_rate * 1e9)
    evaluated = longer * tokens * forwards * forward_flops(model, length, layout) / rate
    return (
        Phase("train", longer * tokens * flops / rate, f"{tokens / 1e6:.1f} M tokens, MFU {mfu:.0%} assumed"),
        Phase("log-probabilities", evaluated, f"{forwards} forward passes"),
        Phase("optimizer", steps * _optimizer_step(recipe, assumed), stepped),
        Phase("change over", _change_over(recipe, assumed), changed),
        Phase("weights to the server", synchronised, f"{assumed.sync_rate:g} GB/s assumed"),
    )


def _forward_passes(recipe: Recipe) -> int:
    """Count the forward passes of the policy, for the ratio's denominator, and of the reference. SLiME takes the
    policy's from the training pass where nothing has changed since (`backends/megatron_utils/actor.py`,
    `can_reuse_log_probs_in_loss`)."""
    if recipe.supervised:  # which has no old policy
        return 0
    algorithm = recipe.algorithm
    penalised = algorithm.kl_coef > 0
    reused = (
        algorithm.steps_per_rollout == 1
        and not (penalised and algorithm.kl_in == "reward")
        and algorithm.estimator != "gspo"
        and not algorithm.keep_old_actor
        and algorithm.routing_replay != "train"
    )
    return int(not algorithm.rollout_logprobs and not reused) + int(penalised)


def _optimizer_step(recipe: Recipe, assumed: Assumptions) -> float:
    layout = layout_of(recipe)
    updated = max(owned(trained(recipe, layout, stage), layout) for stage in range(layout.pp))
    if recipe.optimizer.cpu_offload:
        return offloaded_step_seconds(
            updated, recipe.cluster.gpus_per_node, assumed.pcie * 1e9, assumed.host_bandwidth * 1e9
        )
    return OPTIMIZER_TRAFFIC * updated / (GPUS[recipe.cluster.gpu].bandwidth * 1e12)


def _change_over(recipe: Recipe, assumed: Assumptions) -> float:
    """Return the seconds of changing over between rollout and training, 0 unless they are co-located: the optimizer's
    states go over PCIe twice, the weights once each way."""
    if not recipe.cluster.colocate:
        return 0.0
    layout = layout_of(recipe)
    held = shard(recipe.model.shape, layout, 0)
    states = optimizer_bytes(trained(recipe, layout, 0), layout, offload=recipe.optimizer.cpu_offload)
    return 2 * (states + weight_bytes(held)) / (assumed.pcie * 1e9)


# A recipe and the time of its step -> the hours of the whole run: steps, evaluations and the warm start.
def evaluations_of(recipe: Recipe, assumed: Assumptions) -> Evaluations | None:
    """Count and time the evaluations; None without any. Training waits for each of them, and so do all GPUs. The first
    comes before the first rollout."""
    run, sets = recipe.run, recipe.data.evaluation_sets
    if not sets:
        return None
    count = 1 + run.num_rollouts // (run.eval_interval or max(1, run.num_rollouts))
    sizes = {name: tasks_of(spec) for name, spec in sets.items()}
    episodes = recipe.data.eval_samples_per_task * sum(size or 0 for size in sizes.values())
    seconds = evaluation_seconds(recipe, assumed, episodes) if episodes else 0.0
    return Evaluations(count, episodes, seconds, tuple(name for name, size in sizes.items() if size is None))


def whole_run(
    recipe: Recipe, assumed: Assumptions, timing: Timing, evaluations: Evaluations | None, stage: Supervised | None
) -> WholeRun:
    """Return what the whole run takes. timing: that of its step. `evaluations` and `stage` take as long whatever share
    of the groups passes the filter."""
    seconds = recipe.run.num_rollouts * timing.seconds
    if evaluations:
        seconds += evaluations.count * evaluations.seconds
    hours = (seconds + (stage.seconds if stage else 0.0)) / HOUR
    return WholeRun(informative(recipe, assumed), timing.seconds, hours, hours * timing.gpus)


def with_outlook(plan: Plan, recipe: Recipe) -> Plan:
    """Return the plan with what the run comes to at the bounds of the forecast and with `carry`: up to three more
    simulations, the one of `low` the longest. A plan without times stays as it is."""
    if plan.run is None:
        return plan
    shares, low, high, carry = recipe.informative, None, None, None

    def run(other: Recipe, assumed: Assumptions) -> WholeRun:
        return whole_run(other, assumed, time_step(other, assumed), plan.evaluations, plan.warm_start)

    assumed = plan.assumptions
    if shares.expected < 1 and not assumed.informative:
        low, high = (run(recipe, replace(assumed, informative=share)) for share in (shares.low, shares.high))
    if recipe.rollout.schedule == SYNC and recipe.rollout.generate == Rollout.generate:
        carry = run(replace(recipe, rollout=replace(recipe.rollout, schedule="carry")), assumed)
    return replace(plan, outlook=Outlook(low, high, carry))
