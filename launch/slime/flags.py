"""The rules of `slime.flags`: flags of SLiME or its fork, Megatron and SGLang that no field of a recipe sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from slime_swe.errors import UserError
from slime_swe.launch.config import with_value
from slime_swe.launch.slime.manifest import Attributes
from slime_swe.launch.slime.render import HEADING, sections
from slime_swe.launch.slime.upstream import Upstream
from slime_swe.recipes.base import CHOICES, Recipe
from slime_swe.recipes.checks import Violation, field_types, listed, lookup
from slime_swe.recipes.families import FAMILIES, load_family
from slime_swe.recipes.registry import load_recipe

_BATCH = "only SLiME's rollout function reads it, and ours fills the batch"
_EVALUATION = "only SLiME's evaluation reads it, and ours plays `data.eval` as training samples, at eval-temperature"
# Flag -> why it would do nothing here, or harm, and what to do. SLiME's parser takes each.
UNREAD: Mapping[str, tuple[str, str]] = {
    "partial-rollout": (_BATCH, "use rollout.schedule=carry"),
    "mask-offpolicy-in-partial-rollout": (_BATCH, "use rollout.max_staleness"),
    "rollout-all-samples-process-path": (_BATCH, "use rollout.log"),
    "rollout-sample-filter-path": (_BATCH, "use algorithm.group_filter or rollout.mask_truncated"),
    "rollout-sample-hook-path": (_BATCH, "use rollout.log or reward.function"),
    "log-passrate": (
        "it counts as many samples of each task as there are episodes, and an episode may become several samples",
        "leave it out: metrics.jsonl says how many episodes of a group solve it",
    ),
    **dict.fromkeys(
        (
            *("eval-prompt-data", "eval-max-context-len", "eval-max-prompt-len", "eval-max-response-len"),
            *("eval-min-new-tokens", "eval-top-k", "eval-top-p"),
        ),
        (_EVALUATION, "leave it out"),
    ),
    "release-train": (
        "SLiME refuses it at the start, as it has its own engines read new weights from a disk, and no recipe does",
        "leave it out: with cluster.colocate=true the trainer's memory is freed while the engines sample",
    ),
    "train-backend": (
        "a recipe's layout, flags and plan are Megatron's, and FSDP, which miles has beside it, takes none of them",
        "leave it out",
    ),
    "router-dp-aware": (
        "SGLang 0.5.15 ignores the GPU that such a router chooses, and the router keeps an engine that is gone",
        "leave it out: with serving.dp_attention=true each request names the GPU that has its episode's prefix",
    ),
}
# Of what every run sets: no field and no plug-in of ours depends on it.
REPLACEABLE = (
    "attention_backend",
    "log_probs_chunk_size",
    "moe_token_dispatcher_type",
    "rollout_data_postprocess_path",
)
USUAL = "qwen3_coder_30b_a3b"  # a recipe with something in every section: a mixture, on GPUs


def violations(recipe: Recipe, upstream: Upstream, taken: Collection[str] = ()) -> Iterator[Violation]:
    """Refuse names that there are not, values that are not taken, and what is set already: by a field, by every run or
    by another of these flags. taken: further attributes that an engine sets."""
    seen: dict[str, str] = {}
    for name, value in recipe.slime.flags.items():
        key, flag = f"{HEADING}.{name}", upstream.flag(name)
        if flag is None or flag.action in ("help", "version"):
            yield Violation(key, f"{key} is no flag of {upstream.title}, Megatron or SGLang", _nearest(name, upstream))
        elif name in UNREAD and value is not False:
            why, fix = UNREAD[name]
            yield Violation(key, f"{key} is of no use: {why}", fix)
        elif flag.dest == "update_weight_mode" and value == "delta" and not recipe.serving.external_engines:
            why = "SLiME hands differences of weights over by a disk, which its own engines here do not read"
            yield Violation(key, f"{key}=delta: {why}", "name servers in serving.external_engines, or leave it out")
        elif fields := owners(upstream).get(flag.dest):
            yield Violation(key, f"{key} sets args.{flag.dest}, which {listed(fields)} sets", f"change {fields[0]}")
        elif flag.dest in taken or (flag.dest in owners(upstream) and flag.dest not in REPLACEABLE):
            yield Violation(key, f"{key} sets args.{flag.dest}, which every run sets by itself", "leave it out")
        elif other := seen.get(flag.dest):
            yield Violation(key, f"{key} sets args.{flag.dest}, which {HEADING}.{other} sets", "give one of them")
        else:
            seen[flag.dest] = name
            try:
                upstream.manifest.check(upstream.manifest.words_of(upstream.own_name(name), value))
            except UserError as error:
                yield Violation(key, f"{key}={value!r} is not allowed", str(error))


@cache
def owners(upstream: Upstream) -> dict[str, list[str]]:
    """Map each attribute of `args` to the recipe's fields that change it, that which changes the least else first; to
    none where every run sets it alike.

    Found by giving each field another value, so that there is no table to be kept in step with `render.sections`.
    """
    usual = with_value(load_recipe(USUAL), "algorithm.kl_coef", 0.1)
    before = _attributes(usual, upstream)
    found: dict[str, list[str]] = {dest: [] for dest in before}
    for key, hint in field_types().items():
        for value in _others(lookup(usual, key), hint):
            with suppress(UserError):  # another family than any that there is
                after = _attributes(with_value(usual, key, value), upstream)
                for dest in before | after:
                    if before.get(dest) != after.get(dest) and key not in found.setdefault(dest, []):
                        found[dest].append(key)
    for family in FAMILIES:
        toy = _attributes(with_value(usual, "model.config", load_family(family).toy()), upstream)
        for dest in toy:
            if before.get(dest) != toy[dest] and "model.config" not in found.setdefault(dest, []):
                found[dest].append("model.config")
    fields = Counter(key for keys in found.values() for key in keys)
    return {dest: sorted(keys, key=lambda key: fields[key]) for dest, keys in found.items()}


def _attributes(recipe: Recipe, upstream: Upstream) -> Attributes:
    groups = sections(recipe, Path("/run"), resume=True, upstream=upstream).values()
    return {dest: value for group in groups for dest, value in group.items()}


def _others(value: Any, hint: Any) -> list[Any]:
    """List other values of a field: all of its choices, or one; of a mapping none, and one for each of its keys."""
    if get_origin(hint) is Annotated and (extra := get_args(hint)[1].extra):
        return [choice for choice in extra[CHOICES] if choice != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1]
    if isinstance(value, list):
        return [[choice] for choice in _choices_of_a_list(hint)] or [["a:1"]]
    if isinstance(value, dict):
        return [{}, *({**value, name: other} for name, held in value.items() for other in _others(held, None))]
    return [f"{value}x"]


def _choices_of_a_list(hint: Any) -> Iterable[str]:
    """Return what the type of a list's elements allows, if that is a choice."""
    kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    metas = [meta for element in get_args(kind) for meta in get_args(element)[1:]]
    return [choice for meta in metas for choice in (meta.extra or {}).get(CHOICES, ())]


def _nearest(name: str, upstream: Upstream) -> str:
    names = [flag.removeprefix("--") for flag in upstream.manifest.flags]
    plain = name.lstrip("-").replace("_", "-")
    same = [flag for flag in (plain, f"sglang-{plain}") if flag in names]  # SGLang's own name, as its documents have it
    nearest = same or get_close_matches(plain, names, n=3, cutoff=0.6)
    return f"did you mean {listed(nearest)}?" if nearest else "`--dry-run` shows what is given already"
