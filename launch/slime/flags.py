"""`slime.flags`: flags of SLiME or its fork, Megatron and SGLang that no field of a recipe sets, checked against the
manifest."""

from __future__ import annotations

import os
import site
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import slime_swe
from slime_swe.errors import UserError
from slime_swe.launch.args import Attributes, ours
from slime_swe.launch.config import with_value
from slime_swe.launch.plan.admission import most_an_engine
from slime_swe.launch.ray.node import by_interface
from slime_swe.launch.slime.checkouts import Checkouts
from slime_swe.launch.slime.manifest import Flag, Job, values
from slime_swe.launch.slime.paths import EVALUATION, SETTINGS, TENSORBOARD
from slime_swe.launch.slime.sections import as_yaml, evaluation_config
from slime_swe.launch.slime.upstream import SLIME, Upstream
from slime_swe.recipes.base import CHOICES, Recipe
from slime_swe.recipes.checks import Violation, field_types, listed, lookup
from slime_swe.recipes.families import FAMILIES, load_family
from slime_swe.recipes.registry import load_recipe
from slime_swe.recipes.rules import at_once

HEADING = "slime.flags"
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
    """Names that there are not, values that are not taken, and what is set already: by a field, by every run or by
    another of these flags. taken: further attributes that an engine sets."""
    seen: dict[str, str] = {}
    for name, value in recipe.slime.flags.items():
        key, flag = f"{HEADING}.{name}", _flag(name, upstream)
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
                upstream.manifest.check(_argv_of(_own(name, upstream), value, flag))
            except UserError as error:
                yield Violation(key, f"{key}={value!r} is not allowed", str(error))


def argv_of(recipe: Recipe, upstream: Upstream) -> tuple[str, ...]:
    """The flags as a command line."""
    flags = upstream.manifest.flags
    given = ((_own(name, upstream), value) for name, value in recipe.slime.flags.items())
    return tuple(word for name, value in given for word in _argv_of(name, value, flags[f"--{name}"]))


def _own(name: str, upstream: Upstream) -> str:
    return upstream.renamed.get(name, name)


def _flag(name: str, upstream: Upstream) -> Flag | None:
    return upstream.manifest.flags.get(f"--{_own(name, upstream)}")


def attributes_of(recipe: Recipe, upstream: Upstream) -> Attributes:
    """Attribute of `args` -> the value that the flags give it."""
    found = ((_flag(name, upstream), value) for name, value in recipe.slime.flags.items())
    return {flag.dest: value for flag, value in found if flag is not None}


def without_replaced(recipe: Recipe, groups: Mapping[str, Attributes], upstream: Upstream) -> dict[str, Attributes]:
    """The groups of attributes, less what the flags set."""
    replaced = attributes_of(recipe, upstream)
    return {
        heading: {dest: value for dest, value in group.items() if dest not in replaced}
        for heading, group in groups.items()
    }


@cache
def owners(upstream: Upstream) -> dict[str, list[str]]:
    """Attribute of `args` -> the recipe's fields that change it, that which changes the least else first; none
    where every run sets it alike.

    Found by giving each field another value, so that there is no table to be kept in step with `sections`.
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
    groups = upstream.sections(recipe, Path("/run"), resume=True).values()
    return {dest: value for group in groups for dest, value in group.items()}


def _others(value: Any, hint: Any) -> list[Any]:
    """Other values of a field: all of its choices, or one; of a mapping none, and one for each of its keys."""
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
    """What the type of a list's elements allows, if that is a choice."""
    kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    metas = [meta for element in get_args(kind) for meta in get_args(element)[1:]]
    return [choice for meta in metas for choice in (meta.extra or {}).get(CHOICES, ())]


def _argv_of(name: str, value: Any, flag: Flag) -> list[str]:
    """A switch that is false is left out, or is the other of `--x` and `--no-x` where there are two. Raises
    `UserError`."""
    word = f"--{name}"
    if flag.switch:
        if not isinstance(value, bool):
            raise UserError("it is a switch, and takes true or false")
        opposite = f"--{name.removeprefix('no-')}" if name.startswith("no-") else f"--no-{name}"
        return [word] if value else [opposite] if flag.action == "BooleanOptionalAction" else []
    if value is None or isinstance(value, bool):
        raise UserError(f"it takes a value; ~{HEADING}.{name} leaves the flag out")
    if flag.action == "append":
        return [part for each in (value if isinstance(value, list) else [value]) for part in (word, *values(each))]
    return [word, *values(value)]


def _nearest(name: str, upstream: Upstream) -> str:
    names = [flag.removeprefix("--") for flag in upstream.manifest.flags]
    plain = name.lstrip("-").replace("_", "-")
    same = [flag for flag in (plain, f"sglang-{plain}") if flag in names]  # SGLang's own name, as its documents have it
    nearest = same or get_close_matches(plain, names, n=3, cutoff=0.6)
    return f"did you mean {listed(nearest)}?" if nearest else "`--dry-run` shows what is given already"


# Recipe -> `Job`: what `engine=slime` or `engine=miles` starts, and the environment that its Ray workers need.
OWN_RECORD = {"swe_record_metrics": True}  # no launcher reads figures back, so the run writes `metrics.jsonl` itself
MODULE = "slime_swe.launch.slime.loop"  # runs the script, and says when it saves
PYTHON = "python3"  # of the machine that the job runs on, where this one has no SLiME, as the training image has


def render(
    recipe: Recipe,
    folder: Path,
    *,
    upstream: Upstream = SLIME,
    resume: bool = False,
    checkouts: Checkouts | None = None,
) -> Job:
    """The job of a run in `folder`. Touches no file. Raises `UserError`."""
    run, found = folder.resolve(), checkouts or upstream.checkouts()
    return Job(
        program=(
            sys.executable if find_spec(upstream.package) else PYTHON,
            "-m",
            MODULE,
            str(found.loop / script_of(recipe)),
        ),
        flags=render_flags(recipe, upstream.sections(recipe, run, resume=resume), upstream),
        environment=environment(recipe, run, found),
        files=settings_files(recipe, run),
        directory=run,
        manifest=upstream.manifest,
    )


def script_of(recipe: Recipe) -> str:
    """The entry script: one trains and samples in turns, the other at once. Without a rollout the first one evaluates
    and ends, where the other samples a batch that it never trains."""
    return "train_async.py" if at_once(recipe) and recipe.run.num_rollouts else "train.py"


def render_flags(
    recipe: Recipe, attributes: Mapping[str, Attributes], upstream: Upstream
) -> dict[str, tuple[str, ...]]:
    """Heading -> arguments, the recipe's own flags last; a group that comes to no flag is left out."""
    kept = without_replaced(recipe, attributes, upstream)
    groups = {heading: upstream.manifest.to_argv(group) for heading, group in kept.items()}
    groups[HEADING] = argv_of(recipe, upstream)
    return {heading: group for heading, group in groups.items() if group}


def settings_files(recipe: Recipe, run: Path) -> dict[Path, str]:
    """The files that the flags name."""
    files = {run / SETTINGS: as_yaml(ours(recipe, run) | OWN_RECORD | unserved(recipe))}
    return files | ({run / EVALUATION: evaluation_config(recipe)} if recipe.data.eval else {})


def unserved(recipe: Recipe) -> Attributes:
    """Of a supervised stage: what the rollout function reads of `args` that SLiME sets only where it starts servers."""
    if not recipe.supervised:
        return {}
    serving = recipe.serving
    return {
        "sglang_server_concurrency": most_an_engine(recipe),
        "sglang_enable_deterministic_inference": serving.deterministic,
    }


def environment(recipe: Recipe, run: Path, checkouts: Checkouts) -> dict[str, str]:
    """Variable -> value.

    CUDA_DEVICE_MAX_CONNECTIONS: Megatron asserts 1 with tensor or context parallelism before Blackwell, so that
        communication starts before the computation it overlaps.
    NCCL_NVLS_ENABLE: no reductions in the NVLink switches, as in SLiME's own example of training a coding agent
        (`examples/coding_agent_rl`); its scripts for mathematics have them where there is NVLink.
    PYTHONPATH: SLiME, Megatron-LM (whose `megatron.training` is in no wheel), this package where it is not installed;
        then the user's own PYTHONPATH and current folder, where their plug-ins are.
    PYTHONUNBUFFERED: the job's log is read as it grows.
    TENSORBOARD_DIR: SLiME knows no flag for it.
    GLOO_SOCKET_IFNAME, TP_SOCKET_IFNAME, NCCL_SOCKET_IFNAME: `cluster.interface`.

    What keeps the processes off the user's proxies is added when the job is submitted, and the cluster known.
    """
    found = [str(checkouts.loop), str(checkouts.megatron), *_own_folder(), *_user_folders()]
    given = {
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "NCCL_NVLS_ENABLE": "0",
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(found)),
        "PYTHONUNBUFFERED": "1",
    }
    interface = recipe.cluster.interface
    return (
        given
        | (by_interface(interface) if interface else {})
        | ({"TENSORBOARD_DIR": str(run / TENSORBOARD)} if "tensorboard" in recipe.run.trackers else {})
    )


def _user_folders() -> list[str]:
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [*(str(Path(folder).absolute()) for folder in given if folder), str(Path.cwd())]


def _own_folder() -> list[str]:
    """The checkout that this code is in; nothing where it is installed, since that folder must not come first."""
    folder = str(Path(slime_swe.__file__).parents[1].resolve())
    installed = [str(Path(path).resolve()) for path in (*site.getsitepackages(), site.getusersitepackages())]
    return [] if folder in installed else [folder]
