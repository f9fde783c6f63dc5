"""A recipe -> the seconds of one step, phase by phase."""

from __future__ import annotations

from dataclasses import dataclass

from slime_swe.launch.args import at_once
from slime_swe.launch.plan import formulae, roofline, serving
from slime_swe.launch.plan.assumptions import Assumptions
from slime_swe.launch.plan.memory import cache_tokens, layout_of, sandbox_nodes, sglang_engine
from slime_swe.launch.plan.result import Phase, Timing
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.gpus import GPUS, Gpu


@dataclass(frozen=True)
class Workload:
    """Episodes as assumed: `length` tokens at the end, `sampled` of them by the policy in `turns` model calls."""

    length: float
    sampled: float
    turns: float
    sampled_episodes: int
    trained_episodes: int


def workload_of(recipe: Recipe, assumed: Assumptions) -> Workload:
    rollout = recipe.rollout
    length, turns = assumed.context * rollout.max_context, max(assumed.turns * rollout.max_turns, 1.0)
    return Workload(
        length=length,
        sampled=min(assumed.sampled * length, turns * rollout.max_response),
        turns=turns,
        sampled_episodes=rollout.batch_size * rollout.samples_per_task,
        trained_episodes=rollout.batch_size * rollout.samples_per_task,
    )


def time_step(recipe: Recipe, assumed: Assumptions) -> Timing:
    work, cluster = workload_of(recipe, assumed), recipe.cluster
    rollout, training = _rollout(recipe, work, assumed), _training(recipe, work, assumed)
    tokens = work.trained_episodes * work.length
    rollout_seconds = sum(phase.seconds for phase in rollout)
    serving_gpus = engines(recipe) * sglang_engine(recipe).gpus
    return Timing(
        rollout=rollout,
        training=training,
        overlap=at_once(recipe),
        episodes=work.trained_episodes,
        tokens=tokens,
        train_rate=tokens / (training[0].seconds * layout_of(recipe).gpus),
        sample_rate=work.sampled_episodes * work.sampled / (rollout_seconds * serving_gpus),
        gpus=layout_of(recipe).gpus + cluster.rollout_gpus,
        gpu_hour_price=cluster.gpu_hour_price,
    )


def engines(recipe: Recipe) -> int:
    """Copies of the model that sample."""
    if recipe.serving.external_engines:
        return len(recipe.serving.external_engines)
    return max(recipe.cluster.serve_gpus // sglang_engine(recipe).gpus, 1)


def in_flight(recipe: Recipe, work: Workload) -> tuple[float, str]:
    """Episodes that run at once, and what holds them at that."""
    copies = engines(recipe)
    limits = {
        "the episodes of a rollout (rollout.batch_size x rollout.samples_per_task)": float(work.sampled_episodes),
        "serving.concurrency": float(copies * recipe.serving.concurrency),
        "the KV cache (serving.mem_fraction, serving.gpus_per_engine)": copies * cache_tokens(recipe) / work.length,
        "rollout.sandbox_concurrency": float(recipe.rollout.sandbox_concurrency),
    }
    if recipe.serving.external_engines:
        del limits["the KV cache (serving.mem_fraction, serving.gpus_per_engine)"]
    reason = min(limits, key=lambda name: limits[name])
    return max(limits[reason], 1.0), reason


def _rollout(recipe: Recipe, work: Workload, assumed: Assumptions) -> tuple[Phase, ...]:
    """Little's law: episodes / (those in flight) x seconds of one. Prefill of one episode delays the decoding of the
    others on its engine; what earlier turns left in the cache is not computed again."""
    flying, reason = in_flight(recipe, work)
    waves, batch = work.sampled_episodes / flying, flying / engines(recipe)
    decode = work.sampled * _decode_step(recipe, batch, work.length / 2, assumed)
    new = work.length - work.sampled  # tokens of an episode
    flops = new * roofline.forward_flops(recipe.model.architecture, work.length)
    prefill = batch * flops / (sglang_engine(recipe).gpus * _gpu(recipe).flops * 1e12 * assumed.prefill_mfu)
    cores = recipe.cluster.cpus_per_node * sandbox_nodes(recipe)
    slow = max(flying * assumed.sandbox_cpus / cores, 1.0)
    commands = min(work.turns * assumed.turn_seconds, recipe.rollout.time_budget)
    sandbox = slow * (commands + assumed.grade_seconds)
    turns = f"{work.turns:.0f} turns of {assumed.turn_seconds:g} s, grading, {flying:.0f} at once"
    turns += f", {slow:.1f} x for want of cores" if slow > 1 else ""
    longest = max(_longest(recipe, work, assumed) - waves * (decode + prefill + sandbox), 0.0)
    return (
        Phase("sample", waves * decode, f"{flying:.0f} episodes in flight: {reason}"),
        Phase("prefill", waves * prefill, f"{new:.0f} new tokens an episode"),
        Phase("sandboxes", waves * sandbox, turns),
        Phase("longest episode", longest, "waits for it; 0 with carry and continuous"),
    )


def _longest(recipe: Recipe, work: Workload, assumed: Assumptions) -> float:
    """Seconds of an episode of `rollout.max_turns` turns and `rollout.max_context` tokens, alone on its engine."""
    rollout = recipe.rollout
    if rollout.schedule in ("carry", "continuous"):
        return 0.0
    sampled = work.sampled * rollout.max_context / work.length
    step = _decode_step(recipe, 1, rollout.max_context / 2, assumed)
    commands = rollout.max_turns * assumed.turn_seconds
    return sampled * step + min(commands, rollout.time_budget) + assumed.grade_seconds


def _decode_step(recipe: Recipe, batch: float, context: float, assumed: Assumptions) -> float:
    gpu = _gpu(recipe)
    return serving.decode_seconds(
        recipe.model.architecture,
        sglang_engine(recipe),
        batch,
        context,
        bandwidth=gpu.bandwidth * 1e12 * assumed.decode_bandwidth,
        flops=gpu.flops * 1e12 * assumed.prefill_mfu,
        layer_latency=assumed.layer_latency * 1e-6,
    )


def _training(recipe: Recipe, work: Workload, assumed: Assumptions) -> tuple[Phase, ...]:
    """The order is kept: training itself first."""
    model, layout, steps = recipe.model.architecture, layout_of(recipe), recipe.algorithm.steps_per_rollout
    tokens = work.trained_episodes * work.length
    gpu = _gpu(recipe)
    mfu = assumed.mfu or (gpu.moe_mfu if model.experts else gpu.mfu)
    rate = layout.gpus * gpu.flops * 1e12 * mfu
    packed = tokens / steps / layout.dp / (layout.cp * recipe.parallel.max_tokens_per_gpu)
    longer = roofline.bubble(layout.pp, packed)
    trained = longer * tokens * roofline.train_flops(model, work.length, recipe.parallel.recompute) / rate
    forwards = _forward_passes(recipe)
    stepped = "in the machine's memory" if recipe.optimizer.cpu_offload else "on the GPU"
    changed = "states to the machine's memory and back" if recipe.cluster.colocate else ""
    synchronised = formulae.WEIGHT_BYTES * model.parameters / (assumed.sync_rate * 1e9)
    evaluated = longer * tokens * forwards * roofline.forward_flops(model, work.length) / rate
    return (
        Phase("train", trained, f"{tokens / 1e6:.1f} M tokens, MFU {mfu:.0%} assumed"),
        Phase("log-probabilities", evaluated, f"{forwards} forward passes"),
        Phase("optimizer", steps * _optimizer_step(recipe, assumed), stepped),
        Phase("change over", _change_over(recipe, assumed), changed),
        Phase("weights to the server", synchronised, f"{assumed.sync_rate:g} GB/s assumed"),
    )


def _forward_passes(recipe: Recipe) -> int:
    """Of the policy, for the ratio's denominator, and of the reference. SLiME takes the policy's from the training pass
    where nothing has changed since (`backends/megatron_utils/actor.py`, `can_reuse_log_probs_in_loss`)."""
    algorithm = recipe.algorithm
    penalised = algorithm.kl_coef > 0
    reused = (
        algorithm.steps_per_rollout == 1
        and not (penalised and algorithm.kl_in == "reward")
        and algorithm.estimator != "gspo"
        and algorithm.routing_replay != "train"
    )
    return int(not algorithm.rollout_logprobs and not reused) + int(penalised)


def _optimizer_step(recipe: Recipe, assumed: Assumptions) -> float:
    layout = layout_of(recipe)
    updated = max(
        formulae.owned(formulae.shard(recipe.model.architecture, layout, stage), layout) for stage in range(layout.pp)
    )
    if recipe.optimizer.cpu_offload:
        return roofline.offloaded_step_seconds(
            updated, recipe.cluster.gpus_per_node, assumed.pcie * 1e9, assumed.host_bandwidth * 1e9
        )
    return roofline.OPTIMIZER_TRAFFIC * updated / (_gpu(recipe).bandwidth * 1e12)


def _change_over(recipe: Recipe, assumed: Assumptions) -> float:
    """Co-located: the optimizer's states go over PCIe twice, the weights once each way."""
    if not recipe.cluster.colocate:
        return 0.0
    layout = layout_of(recipe)
    held = formulae.shard(recipe.model.architecture, layout, 0)
    states = formulae.optimizer_bytes(held, layout, offload=recipe.optimizer.cpu_offload)
    return 2 * (states + formulae.weight_bytes(held)) / (assumed.pcie * 1e9)


def _gpu(recipe: Recipe) -> Gpu:
    return GPUS[recipe.cluster.gpu]
