"""What SLiME's three parts refuse of a recipe, found before any of them starts. Pure: no file, no GPU.

Sources: Megatron-LM 1dcf0daf (`core/parallel_state.py`, `core/transformer/transformer_config.py`,
`training/arguments.py`), SLiME 624b824a (`utils/arguments.py`, `utils/dp_schedule.py`, `train_async.py`, `loss.py`)
and SGLang 0.5.15 (`models/qwen*.py`). No rule is about the hidden size, which none of them
splits, or about the trainer's vocabulary, which Megatron pads.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from slime_swe.recipes.base import EMBEDDED, RECORDED_GENERATE, Recipe, Rollout
from slime_swe.recipes.checks import Violation, against, divisors, listed, lookup
from slime_swe.recipes.layers import ONE_SERVER, Cut, SglangEngine, legal_sizes
from slime_swe.rollout.scheduling.schedulers import SCHEDULES

MEGATRON_LENGTH = 4096  # --seq-length as SLiME sets it; packed sequences don't have this length
VOCAB_BLOCK = 64  # rows that SGLang pads the vocabulary to


def violations(recipe: Recipe) -> Iterator[Violation]:
    """Yield every rule of the engine `slime` that the recipe breaks; fields are taken to be valid one by one."""
    for rule in (
        trainer_sizes,
        trainer_groups,
        placement,
        engine_sizes,
        engine_experts,
        engine_requests,
        on_any_machine,
    ):
        yield from rule(recipe)


def trainer_sizes(recipe: Recipe) -> Iterator[Violation]:
    """Refuse sizes by which Megatron can't cut parts of a layer, layers, experts, and a sequence of fixed length."""
    no, shape, parallel = against(recipe), recipe.model.shape, recipe.parallel
    for way in ("tp", "ep", "etp"):
        cuts = shape.trainer_cuts(way)
        if wrong := [cut.what for cut in cuts if not cut.allows(getattr(parallel, way))]:
            yield no(f"parallel.{way}", f"can't share out {' and '.join(wrong)}", f"use {listed(legal_sizes(cuts))}")
    if (layers := len(shape.layers)) % parallel.pp:
        yield no("parallel.pp", f"does not divide the {layers} layers", f"use {listed(divisors(layers))}")
    for key in ("parallel.ep", "parallel.etp", "serving.ep"):
        if not shape.experts and lookup(recipe, key) > 1:
            yield no(key, "splits experts, and the model has no experts", "use 1")
    if shape.experts and parallel.ep == 1 and parallel.etp != parallel.tp:
        why = (
            f"is not parallel.tp={parallel.tp}: without expert parallelism Megatron sums the gradients of experts as "
            "those of other weights, which it leaves unsummed over tensor-parallel ranks"
        )
        yield no("parallel.etp", why, f"use {parallel.tp}, or give a parallel.ep")
    if parallel.cp > 1 and MEGATRON_LENGTH % (2 * parallel.cp):
        why = f"is not a power of 2: Megatron wants 2 x cp to divide its --seq-length {MEGATRON_LENGTH}"
        yield no("parallel.cp", why, "use 1, 2, 4, 8 or 16")


def trainer_groups(recipe: Recipe) -> Iterator[Violation]:
    """tp x pp x cp GPUs hold one copy of the model, and as many etp x ep x pp GPUs one of the experts, whose
    data-parallel groups differ from the others'. Each copy of the model gets as many of a step's episodes."""
    cluster, rollout, steps = recipe.cluster, recipe.rollout, recipe.algorithm.steps_per_rollout
    for ways in (("tp", "pp", "cp"), ("etp", "ep", "pp") if recipe.model.shape.experts else ()):
        sizes = {f"parallel.{way}": int(getattr(recipe.parallel, way)) for way in ways}
        group = prod(sizes.values())
        if cluster.train_gpus % group:
            yield Violation(
                max(sizes, key=lambda key: sizes[key]),
                f"{' x '.join(f'{key}={size}' for key, size in sizes.items())} makes groups of {group} GPUs, which do "
                f"not divide the {cluster.train_gpus} of cluster.nodes={cluster.nodes} x "
                f"cluster.gpus_per_node={cluster.gpus_per_node}",
                f"make their product {listed(divisors(cluster.train_gpus))}",
            )
    episodes, copies = rollout.batch_size * rollout.samples_per_task, recipe.data_parallel
    if copies and episodes % steps == 0 and episodes // steps % copies:
        yield Violation(
            "rollout.batch_size",
            f"the {episodes // steps} episodes of a step (rollout.batch_size={rollout.batch_size} x "
            f"rollout.samples_per_task={rollout.samples_per_task} / algorithm.steps_per_rollout={steps}) can't be "
            f"dealt to {copies} copies of the model (GPUs / (parallel.tp x parallel.pp x parallel.cp))",
            f"make them a multiple of {copies}",
        )


def placement(recipe: Recipe) -> Iterator[Violation]:
    """Either the trainer's GPUs serve too, or others do, or servers that run already, which take the place of all of
    SLiME's own; co-located ones are reached by memory handles. `train_async.py` works on both halves at once."""
    no, cluster, external = against(recipe), recipe.cluster, recipe.serving.external_engines
    if recipe.serving.server == EMBEDDED:
        yield no("serving.server", "serves without a GPU: engine=slime has SGLang", "use sglang, or leave it out")
    if not cluster.gpus_per_node:
        yield no("cluster.gpus_per_node", "leaves nothing to train on: engine=slime wants GPUs", "give at least 1")
    if not cluster.gpu:
        yield no("cluster.gpu", "is no kind of GPU", "name the kind of GPU, e.g. H100-80GB")
    if cluster.colocate and cluster.rollout_gpus:
        why = "beside cluster.colocate=true, which serves on the trainer's GPUs"
        yield no("cluster.rollout_gpus", why, "set rollout_gpus to 0 or colocate to false")
    if not (cluster.colocate or cluster.rollout_gpus or external):
        fix = "give rollout_gpus, set colocate to true, or name serving.external_engines"
        yield no("cluster.rollout_gpus", "with cluster.colocate=false leaves no GPU to serve on", fix)
    if external and cluster.colocate:
        why = "serve on other machines, and cluster.colocate=true on the trainer's"
        yield no("serving.external_engines", why, "set cluster.colocate to false")
    if external and cluster.rollout_gpus:
        why = f"replace SLiME's own servers, and cluster.rollout_gpus={cluster.rollout_gpus} asks for these"
        yield no("serving.external_engines", why, "set rollout_gpus to 0")
    if SCHEDULES[recipe.rollout.schedule].overlaps and cluster.colocate:
        fix = "use sync, or set cluster.colocate to false and give cluster.rollout_gpus"
        yield no("rollout.schedule", "trains and samples at once, which cluster.colocate=true can't", fix)


def engine_sizes(recipe: Recipe) -> Iterator[Violation]:
    """Engines fill their GPUs, and each lies within one node or takes whole nodes; it shares out parts of layers, of
    which attention is each GPU's own with `dp_attention`, and the padded vocabulary."""
    no, cluster, serving, shape = against(recipe), recipe.cluster, recipe.serving, recipe.model.shape
    key, size, node = "serving.gpus_per_engine", serving.gpus_per_engine, cluster.gpus_per_node
    if serving.external_engines:
        pass
    elif not size:
        yield no(key, "leaves no GPU, and SGLang serves on GPUs", "give at least 1")
    elif cluster.serve_gpus % size:
        which = "train too" if cluster.colocate else "only serve (cluster.rollout_gpus)"
        why = f"does not divide the {cluster.serve_gpus} GPUs that {which}"
        yield no(key, why, f"use {listed(divisors(cluster.serve_gpus))}")
    elif node and node % size and size % node:
        why = f"neither divides nor is a multiple of cluster.gpus_per_node={node}"
        yield no(key, why, f"use {listed(divisors(node))}, or whole nodes")
    if size:
        vocab = -(-shape.vocab // VOCAB_BLOCK) * VOCAB_BLOCK
        attention = () if serving.dp_attention else shape.engine_cuts("attention")
        rows = Cut("gpus", f"the {vocab} rows of the padded vocabulary", vocab)
        whole = (*attention, *shape.engine_cuts("gpus"), rows)
        expert = shape.engine_cuts("expert")
        wrong = [cut.what for cut in whole if not cut.allows(size)]
        wrong += [cut.what for cut in expert if not cut.allows(max(1, size // serving.ep))]
        if wrong:
            yield no(key, f"can't share out {' and '.join(wrong)}", f"use {listed(legal_sizes((*whole, *expert)))}")


def engine_experts(recipe: Recipe) -> Iterator[Violation]:
    """Expert parallelism divides an engine, and what is left of it splits each expert. With `dp_attention` each GPU
    keeps all heads of its own requests."""
    no, serving, shape = against(recipe), recipe.serving, recipe.model.shape
    size = serving.gpus_per_engine
    known = (Rollout.generate, RECORDED_GENERATE)  # the second asks no engine
    if shape.experts and (size % serving.ep or shape.experts % serving.ep):
        why = f"must divide both serving.gpus_per_engine={size} and the {shape.experts} experts"
        legal = [way for way in divisors(size or 1) if shape.experts % way == 0]
        yield no("serving.ep", why, f"use {listed(legal)}")
    if serving.dp_attention and not recipe.model.kind.dp_attention:
        why = f"is not there for {recipe.model.config['model_type']} models"
        yield no("serving.dp_attention", why, "set it to false")
    elif serving.dp_attention and size and shape.cache(SglangEngine(size)) * size <= shape.cache(ONE_SERVER):
        why = f"saves nothing: serving.gpus_per_engine={size} GPUs share the cache of a token without copies"
        yield no("serving.dp_attention", why, "set it to false")
    elif serving.dp_attention and recipe.rollout.generate not in known:
        why = (
            "gives each GPU of an engine a prefix cache of its own, and rollout.generate="
            f"{recipe.rollout.generate} is not known to send all turns of an episode to one of them"
        )
        yield no("serving.dp_attention", why, f"set it to false, or use rollout.generate={Rollout.generate}")


def engine_requests(recipe: Recipe) -> Iterator[Violation]:
    """Refuse speculative decoding without a number of requests: SGLang then runs 48 at once
    (`srt/arg_groups/speculative_hook.py`)."""
    flags, most = recipe.slime.flags, "sglang-max-running-requests"
    if flags.get("sglang-speculative-algorithm") and most not in flags:
        key = "slime.flags.sglang-speculative-algorithm"
        why = "has SGLang run 48 requests at once, whatever serving.concurrency admits"
        yield Violation(key, f"{key} {why}", f"give slime.flags.{most} too: an engine's episodes at once")


def on_any_machine(recipe: Recipe) -> Iterator[Violation]:
    """Yield what the recipe asks for that SLiME can't combine wherever it runs."""
    yield from _losses(recipe)
    yield from schedules(recipe)
    if "trackio" in recipe.run.trackers:
        yield against(recipe)("run.trackers", "names trackio, which SLiME does not log to", "use wandb or tensorboard")


def _losses(recipe: Recipe) -> Iterator[Violation]:
    """`--use-unbiased-kl` is read where the loss adds its own penalty, `--custom-pg-loss-reducer-function-path` is
    called for the policy-gradient term alone, and `train` records routes in the log-probability pass."""
    no, algorithm = against(recipe), recipe.algorithm
    in_loss = algorithm.kl_coef * (algorithm.kl_in == "loss")
    if algorithm.kl_unbiased and not in_loss:
        left_out = f"algorithm.kl_coef={algorithm.kl_coef:g} and algorithm.kl_in={algorithm.kl_in} leave out"
        fix = "give a kl_coef with kl_in=loss, or set kl_unbiased to false"
        yield no("algorithm.kl_unbiased", f"weighs a penalty in the loss, which {left_out}", fix)
    for name, value in {"kl_coef": in_loss, "entropy_coef": algorithm.entropy_coef}.items():
        if value and algorithm.reduction == "constant":
            why = "beside algorithm.reduction=constant: SLiME reduces that term by trajectory, so that the two would "
            fix = f"set {name} to 0, or use reduction=trajectory"
            yield no(f"algorithm.{name}", f"{why}not be weighed against each other", fix)
    key = "algorithm.routing_replay"
    if algorithm.routing_replay != "none" and not recipe.model.shape.experts:
        yield no(key, "replays routes, but the model has no experts to route to", "use none")
    elif algorithm.routing_replay == "train" and algorithm.rollout_logprobs:
        why = "records routes in the log-probability pass, which algorithm.rollout_logprobs=true leaves out"
        yield no(key, why, "use rollout, or set rollout_logprobs to false")
    if algorithm.keep_old_actor and not at_once(recipe):
        why = (
            f"keeps the weights before the last update, and rollout.schedule={recipe.rollout.schedule} samples with "
            "those after it"
        )
        yield no("algorithm.keep_old_actor", why, "set it to false, or use async or continuous")


def staleness(recipe: Recipe) -> int:
    """Return `rollout.max_staleness` in training steps: weights change once in each."""
    return recipe.rollout.max_staleness // recipe.algorithm.steps_per_rollout


def at_once(recipe: Recipe) -> bool:
    """Say whether SLiME samples the next rollout while it trains on one (`train_async.py`), so with weights of the step
    before."""
    schedule = SCHEDULES[recipe.rollout.schedule]
    return schedule.overlaps and (not schedule.carries or staleness(recipe) > 0)


def schedules(recipe: Recipe) -> Iterator[Violation]:
    """Before weights change, engines drop what they sample: of an episode that goes on, the turn must be taken up
    again. Between two rollouts of `carry` their memory is the trainer's besides, and calls must wait."""
    rollout = recipe.rollout
    if SCHEDULES[rollout.schedule].carries and rollout.generate != Rollout.generate:
        why = f"but rollout.generate={rollout.generate} is not known to go on with a turn that an engine has dropped"
        yield against(recipe)("rollout.schedule", why, "use sync")
