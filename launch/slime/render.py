"""Recipe -> `Job`: what `engine=slime` or `engine=miles` starts, and the environment that its Ray workers need."""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import slime_swe
from slime_swe.launch.args import Attributes, ours
from slime_swe.launch.plan.admission import most_an_engine
from slime_swe.launch.ray.network import by_interface
from slime_swe.launch.slime import flags
from slime_swe.launch.slime.checkouts import Checkouts
from slime_swe.launch.slime.evaluation import as_yaml, evaluation_config
from slime_swe.launch.slime.job import Job
from slime_swe.launch.slime.paths import EVALUATION, SETTINGS, TENSORBOARD
from slime_swe.launch.slime.upstream import SLIME, Upstream
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.rules import at_once

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
    kept = flags.without_replaced(recipe, attributes, upstream)
    groups = {heading: upstream.manifest.to_argv(group) for heading, group in kept.items()}
    groups[flags.HEADING] = flags.argv_of(recipe, upstream)
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
