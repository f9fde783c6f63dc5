"""What makes a recipe legal: each field by itself, names that must exist, and fields that belong together.

An engine adds rules of its own: see `slime_swe.launch.engines.Engine.violations`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, reduce
from itertools import chain
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import msgspec

from slime_swe.data_sources.registry import FILTERS, WANTED, is_registry
from slime_swe.errors import UserError
from slime_swe.recipes.base import Recipe, Rollout
from slime_swe.recipes.families import FAMILIES, Family, read_config
from slime_swe.rewards.compose import OVERLONG, weights_in_use, wrong_weights
from slime_swe.rollout.agents.base import agent_class
from slime_swe.rollout.chat.tool_formats import TOOL_FORMATS, tool_format
from slime_swe.rollout.records import TRAINING
from slime_swe.rollout.scheduling.schedulers import SCHEDULES
from slime_swe.sandbox.pool import make_backend, names_that


# What is said of a recipe that can't run.
@dataclass(frozen=True)
class Violation:
    """A rule that a recipe breaks.

    field: dotted key of the value that is wrong, or that is the easiest to change.
    message: the value, and why it is not allowed.
    fix: what is allowed instead.
    """

    field: str
    message: str
    fix: str

    def __str__(self) -> str:
        return f"{self.message}: {self.fix}"


def refuse(violations: Sequence[Violation]) -> None:
    """Raise `UserError` with all of them, one a line; nothing where there are none."""
    if len(violations) == 1:
        raise UserError(str(violations[0]))
    if violations:
        lines = "".join(f"\n- {violation}" for violation in violations)
        raise UserError(f"{len(violations)} things of this recipe are not allowed:{lines}")


def listed(values: Iterable[object]) -> str:
    """Join values as `1, 2 or 4`."""
    *first, last = [str(value) for value in values]
    return f"{', '.join(first)} or {last}" if first else last


def divisors(number: int, limit: int | None = None) -> list[int]:
    """List the sizes that divide a positive number, up to a limit."""
    return [size for size in range(1, (limit or number) + 1) if number % size == 0]


Rule = Callable[[Recipe], Iterable[Violation]]
Fixed = tuple[str, Any, str]  # dotted key, the one value that it may have, why


def violations(recipe: Recipe, *of_engine: Rule) -> list[Violation]:
    """List every rule that the recipe breaks; where single fields are wrong already, only these."""
    return wrong_fields(recipe) or broken_rules(recipe, *of_engine)


def broken_rules(recipe: Recipe, *of_engine: Rule) -> list[Violation]:
    """List fields that don't go together, each of them allowed by itself."""
    return [*chain.from_iterable(rule(recipe) for rule in (*RULES, *of_engine))]


def wrong_fields(recipe: Recipe) -> list[Violation]:
    """List fields whose value is not allowed, whatever the others say."""
    found = ((key, lookup(recipe, key), hint) for key, hint in field_types().items())
    return [
        *(
            Violation(key, f"{key}={value!r} is not allowed", why)
            for key, value, hint in found
            if (why := _why_not(value, hint))
        ),
        *_unknown_names(recipe),
    ]


@cache
def field_types(kind: Any = Recipe, prefix: str = "", *, constrained: bool = True) -> dict[str, Any]:
    """Map the dotted key of every leaf field of a dataclass to its type, with its constraint or without."""
    types: dict[str, Any] = {}
    for name, hint in get_type_hints(kind, include_extras=constrained).items():
        key = f"{prefix}{name}"
        section = isinstance(hint, type) and dataclasses.is_dataclass(hint)
        types |= field_types(hint, f"{key}.", constrained=constrained) if section else {key: hint}
    return types


def allowed(hint: Any) -> str:
    """Say in words what the constraint of a field's type allows; empty where it has none."""
    if get_origin(hint) is not Annotated:
        return ""
    meta = get_args(hint)[1]
    bounds = (("at least", meta.ge), ("more than", meta.gt), ("at most", meta.le), ("less than", meta.lt))
    return meta.description or " and ".join(f"{words} {bound:g}" for words, bound in bounds if bound is not None)


def _why_not(value: Any, hint: Any) -> str:
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError as error:
        of_type = ", got " not in str(error)
        return f"it must be {allowed(hint)}" if of_type and allowed(hint) else str(error)
    return ""


def _unknown_names(recipe: Recipe) -> Iterator[Violation]:
    """Refuse names that no registry has, dotted paths of nothing, and a shape that the family so found can't read."""
    try:
        recipe.model.tool_format and tool_format(recipe.model.tool_format)
    except UserError as error:
        yield _unknown("model.tool_format", recipe.model.tool_format, TOOL_FORMATS, error)
    try:
        family = recipe.model.kind
    except UserError as error:
        if recipe.model.family:
            yield _unknown("model.family", recipe.model.family, FAMILIES, error)
        else:
            yield Violation("model.config.model_type", f"model.config: {error}", "or name another model_type")
    else:
        yield from _misread(family, recipe.model.config)


def _unknown(key: str, value: str, registry: Iterable[str], error: UserError) -> Violation:
    fix = f"it must be one of {', '.join(registry)}, or a dotted path: {error}"
    return Violation(key, f"{key}={value!r} is not allowed", fix)


def _misread(family: Family, content: Mapping[str, Any]) -> Iterator[Violation]:
    """Refuse a shape that can't be trained, or else keys that say nothing of it, each with the nearest that does."""
    try:
        _, config = read_config(family, content)
    except UserError as error:
        yield Violation("model.config", f"model.config: {error}", "change it, or take another model")
        return
    for key in config.unread():
        near = get_close_matches(key, config.values, n=1)
        fix = f"did you mean model.config.{near[0]}?" if near else "leave it out"
        yield Violation(f"model.config.{key}", f"model.config.{key} is not a part of the shape that is read", fix)


def lookup(recipe: Recipe, key: str) -> Any:
    """Return the value at a dotted key; None where a mapping has no such key."""
    return reduce(_inner, key.split("."), recipe)


def _inner(found: Any, name: str) -> Any:
    return found.get(name) if isinstance(found, Mapping) else getattr(found, name)


def against(recipe: Recipe) -> Callable[[str, str, str], Violation]:
    """Return a function that makes a violation `KEY=VALUE why: fix` of this recipe's value at a key."""
    return lambda key, why, fix: Violation(key, f"{key}={_shown(lookup(recipe, key))} {why}", fix)


def _shown(value: Any) -> str:
    """Write a value as it stands on the command line."""
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def only(value: object, why: str, *keys: str) -> tuple[Fixed, ...]:
    """Return the rules of an engine that takes one value of these fields."""
    return tuple((key, value, why) for key in keys)


def not_fixed(recipe: Recipe, rules: Iterable[Fixed]) -> Iterator[Violation]:
    """Refuse fields with another value than the one that an engine takes."""
    for key, value, why in rules:
        if lookup(recipe, key) != value:
            shown = "empty" if value in ("", [], {}) else _shown(value)
            yield Violation(key, f"{key}={lookup(recipe, key)!r} is not allowed", f"it must be {shown}: {why}")


def lengths(recipe: Recipe) -> Iterator[Violation]:
    """The trainer packs whole episodes, the model has positions for so many tokens, and penalties begin in between."""
    no, rollout, parallel = against(recipe), recipe.rollout, recipe.parallel
    context, most = rollout.max_context, recipe.model.shape.max_context
    if rollout.max_response >= context:
        why = f"leaves no room for a prompt in rollout.max_context={context}"
        yield no("rollout.max_response", why, "make max_context larger")
    if context > parallel.max_tokens_per_gpu * parallel.cp:
        why = f"x parallel.cp={parallel.cp} tokens do not hold an episode of rollout.max_context={context}"
        fix = f"raise max_tokens_per_gpu to {-(-context // parallel.cp)}, or cp"
        yield no("parallel.max_tokens_per_gpu", why, fix)
    if context > most:
        why = f"is more than the model was made for, {most} tokens"
        yield no("rollout.max_context", why, "make it smaller")
    for key, limit in (("overlong_tokens", "max_context"), ("overlong_turns", "max_turns")):
        if getattr(recipe.reward, key) > (bound := getattr(rollout, limit)):
            yield no(f"reward.{key}", f"is more than rollout.{limit}={bound}, whose last part it is", "make it smaller")


def rollouts(recipe: Recipe) -> Iterator[Violation]:
    """A run without a rollout is an evaluation, unless it ends with its warm start."""
    if TRAINING in recipe.data.eval:
        why = "names a set as reports and exports name the training episodes"
        yield against(recipe)(f"data.eval.{TRAINING}", why, "give it another name, such as data.eval.trained")
    if not (recipe.run.num_rollouts or recipe.data.eval or recipe.warm_start.data):
        why = "makes a run that only evaluates, and data.eval names no set"
        yield against(recipe)("run.num_rollouts", why, "give a task set as data.eval.NAME=SET, or at least 1")


def amounts(recipe: Recipe) -> Iterator[Violation]:
    no, rollout, algorithm = against(recipe), recipe.rollout, recipe.algorithm
    episodes = rollout.batch_size * rollout.samples_per_task
    if episodes % algorithm.steps_per_rollout:
        why = f"does not divide the {episodes} episodes of a rollout (rollout.batch_size x rollout.samples_per_task)"
        yield no("algorithm.steps_per_rollout", why, "change one of the three")


def over_sampling(recipe: Recipe) -> Iterator[Violation]:
    """Refuse a cap below one over the share of groups that passes the filter: each batch would need a second wave."""
    rollout, share = recipe.rollout, recipe.informative.expected
    if SCHEDULES[rollout.schedule].carries or not 0 < rollout.max_over_sampling < 1 / share:
        return
    why = f"has each batch wait for a second wave: {share:.0%} of the groups are expected to pass the filter"
    because = f" (forecast.solved={recipe.forecast.solved:g})" if share < 1 else ""
    fix = f"use at least {math.ceil(1 / share)}, or 0 for twice one over that share"
    yield against(recipe)("rollout.max_over_sampling", f"{why}{because}", fix)


def ratios(recipe: Recipe) -> Iterator[Violation]:
    """The loss's ratio is pi / pi_old. Where pi_old is taken from the weights that a rollout's only step trains, it is
    1 in every token, and what acts on it does nothing."""
    no, algorithm = against(recipe), recipe.algorithm
    if not (algorithm.steps_per_rollout > 1 or algorithm.rollout_logprobs or algorithm.keep_old_actor):
        why = (
            "acts on the ratio to the old policy alone, which is 1 throughout: algorithm.steps_per_rollout=1 with "
            "old log-probabilities from the weights that are trained"
        )
        for key in acting_on_ratio(recipe):
            off = "grpo" if key == "algorithm.estimator" else "0"
            fix = (
                f"use {off}, more steps_per_rollout, rollout_logprobs=true with mismatch=none, or keep_old_actor=true "
                "where rollouts are sampled during training"
            )
            yield no(key, why, fix)
    if 0 < algorithm.dual_clip <= 1:
        yield no("algorithm.dual_clip", "would bound a ratio that has not changed", "use more than 1, such as 3, or 0")
    if algorithm.dual_clip and algorithm.estimator == "cispo":
        why = "bounds a surrogate that algorithm.estimator=cispo does not have"
        yield no("algorithm.dual_clip", why, "use 0, or grpo")
    if algorithm.mismatch != "none" and algorithm.rollout_logprobs:
        why = "corrects the ratio's denominator, which algorithm.rollout_logprobs=true takes from the server as it is"
        yield no("algorithm.mismatch", why, "use none, or set rollout_logprobs to false")
    if algorithm.keep_old_actor and algorithm.rollout_logprobs:
        why = "names the weights of a denominator that algorithm.rollout_logprobs=true takes from the server"
        yield no("algorithm.keep_old_actor", why, "set one of them to false")


def acting_on_ratio(recipe: Recipe) -> list[str]:
    """List keys whose value changes nothing while the ratio is 1; the clip bounds, which have no off value, aside."""
    algorithm = recipe.algorithm
    acting = {
        "algorithm.estimator": algorithm.estimator != "grpo",
        "algorithm.dual_clip": algorithm.dual_clip > 0,
        "algorithm.opsm_delta": algorithm.opsm_delta > 0,
    }
    return [key for key, acts in acting.items() if acts]


def mixing(recipe: Recipe) -> Iterator[Violation]:
    """Require a weight for each training set, known filters, a valid registry, and no task both boosted and retired."""
    no, data = against(recipe), recipe.data
    if data.weights and len(data.weights) != len(data.train):
        why = f"holds {len(data.weights)} numbers, and data.train {len(data.train)} task sets"
        yield no("data.weights", why, "give one for each set, in the same order, or none")
    if not all(map(math.isfinite, data.weights)):
        yield no("data.weights", "holds a number that is not finite", "give finite numbers")
    if data.boost_below > data.retire_above:
        why = f"boosts tasks that data.retire_above={data.retire_above} retires"
        yield no("data.boost_below", why, "give at most that")
    if data.registry and not is_registry(data.registry):
        yield no("data.registry", "is no registry", f"give {WANTED}")
    for name in sorted(data.filters.keys() - set(FILTERS)):
        yield no("data.filters", f"holds {name}, which is no filter", f"use {listed(FILTERS)}")


def times(recipe: Recipe) -> Iterator[Violation]:
    """Refuse a budget of an episode with its model calls that is smaller than the one without them."""
    rollout = recipe.rollout
    if 0 < rollout.wall_time_budget < rollout.time_budget:
        why = f"counts model calls too, and is less than rollout.time_budget={rollout.time_budget:g}, which does not"
        yield against(recipe)("rollout.wall_time_budget", why, "give more, or 0 for no bound")


def tries(recipe: Recipe) -> Iterator[Violation]:
    """Refuse more than one try for any agent but the native one."""
    rollout = recipe.rollout
    if rollout.tries > 1 and rollout.agent != "native":
        why = f"is for the native agent, and rollout.agent={rollout.agent} runs tests for itself"
        yield against(recipe)("rollout.tries", why, "use 1")


def adapters(recipe: Recipe) -> Iterator[Violation]:
    """Refuse what only says how an adapter is made, where there is none."""
    no, algorithm = against(recipe), recipe.algorithm
    for key in ("lora_alpha", "lora_targets"):
        if getattr(algorithm, key) and not algorithm.lora_rank:
            why = "describes an adapter, and algorithm.lora_rank=0 trains the whole weights"
            yield no(f"algorithm.{key}", why, "give a lora_rank, or leave it out")


def components(recipe: Recipe) -> Iterator[Violation]:
    """Refuse components of the reward that are unknown, or that could make up for the outcome."""
    reward = recipe.reward
    windows = {name: getattr(reward, name) for name in OVERLONG}
    for wrong in wrong_weights(reward.mode, weights_in_use(reward.weights, windows, reward.overlong_penalty)):
        key = "reward.weights" if reward.weights else "reward.overlong_penalty"
        yield against(recipe)(key, f"is refused: {wrong}", "use less, or other names")


def grammars(recipe: Recipe) -> Iterator[Violation]:
    """Refuse what can't be combined with a grammar: each token's distribution must be known, each turn have one
    grammar."""
    no, rollout = against(recipe), recipe.rollout
    if not rollout.grammar:
        return
    if rollout.generate != Rollout.generate:
        yield no("rollout.generate", "is not known to ask for rollout.grammar", "leave one of them out")
    elif not _takes_grammar(rollout.agent):
        why = "makes model calls of its own, such as for a title, whose replies no single rollout.grammar fits"
        yield no("rollout.agent", why, "use native, or leave the grammar out")
    if SCHEDULES[rollout.schedule].carries:
        why = "has the server drop what it samples before weights change, and a turn's rollout.grammar would begin anew"
        yield no("rollout.schedule", why, f"use {listed(name for name, each in SCHEDULES.items() if not each.carries)}")
    if rollout.temperature != 1:
        why = (
            "is not 1: SGLang says what the policy would do without rollout.grammar at temperature 1 alone, so that "
            "which tokens may be trained can't be told"
        )
        yield no("rollout.temperature", why, "use 1, or leave the grammar out")


def _takes_grammar(agent: str) -> bool:
    try:
        return agent_class(agent).takes_grammar
    except UserError:
        return True  # which is said where the agent is opened


def room(recipe: Recipe) -> Iterator[Violation]:
    """Refuse to keep a disk free where the sandbox removes no images, or where nothing would be left for them."""
    no, rollout, cluster = against(recipe), recipe.rollout, recipe.cluster
    if not rollout.keep_disk_free:
        return
    try:
        removes = make_backend(rollout.sandbox).removes_images
    except UserError:
        return  # which is said where sandboxes are opened
    if not removes:
        why = f"needs a sandbox that removes images, which rollout.sandbox={rollout.sandbox} does not"
        yield no("rollout.keep_disk_free", why, f"use 0, or {listed(names_that('removes_images'))}")
    elif rollout.keep_disk_free >= cluster.disk_per_node:
        why = f"leaves nothing of cluster.disk_per_node={cluster.disk_per_node}"
        yield no("rollout.keep_disk_free", why, "give less, such as a tenth of it")


def best(recipe: Recipe) -> Iterator[Violation]:
    """An evaluation says which checkpoint is the best, so both must be of the same rollout."""
    no, run = against(recipe), recipe.run
    if not run.keep_best:
        return
    if run.keep_best not in recipe.data.eval:
        yield no("run.keep_best", "is no set of data.eval", f"use {listed([*recipe.data.eval]) or 'none, without one'}")
    if not run.eval_interval or run.eval_interval % run.save_interval:
        why = f"leaves rollouts evaluated that no checkpoint is of, with run.save_interval={run.save_interval}"
        why = why if run.eval_interval else "evaluates no checkpoint but the last, and run.keep_best compares them"
        yield no("run.eval_interval", why, f"use a multiple of {run.save_interval}, or leave run.keep_best empty")


RULES: tuple[Rule, ...] = (
    lengths,
    rollouts,
    amounts,
    over_sampling,
    ratios,
    mixing,
    times,
    tries,
    adapters,
    components,
    grammars,
    room,
    best,
)
