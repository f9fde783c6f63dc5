"""Run one job of a recipe on Ray: on the cluster that the recipe names, or on one of this machine's own."""

from __future__ import annotations

import shutil
from pathlib import Path

from slime_swe.errors import UserError
from slime_swe.launch.extras import CLUSTER, require
from slime_swe.launch.ray.dashboard import gpus_by_node, hosts, ray_version, reaching
from slime_swe.launch.ray.jobs import RayJob
from slime_swe.launch.ray.network import past_proxies
from slime_swe.launch.ray.node import Node, wait_for_nodes
from slime_swe.launch.ray.processes import interrupting, running_ray
from slime_swe.launch.slime.job import Job
from slime_swe.recipes.base import Cluster, Recipe

START_SECONDS = 300.0
NODE_LOGS = "ray_logs"


def run_job(job: Job, recipe: Recipe, folder: Path) -> int:
    """The job's exit code. Its log is shown on standard error; log and outcome are left in `folder`.

    Raises `UserError` where the recipe's cluster can't be had, `InfrastructureError` where Ray breaks, and
    `KeyboardInterrupt` on Ctrl-C and SIGTERM, when the job and everything else that this started have ended.
    """
    require(*CLUSTER, extra="cluster")
    with interrupting():
        if recipe.cluster.ray_address:
            return _submit(job, recipe, existing(recipe.cluster.ray_address)[0], folder)
        if recipe.cluster.nodes > 1:
            raise UserError(
                f"cluster.nodes={recipe.cluster.nodes}, but without cluster.ray_address Ray is started on this machine "
                "alone: submit launch/slurm/train.sbatch, or start Ray on the nodes and give its dashboard as "
                "cluster.ray_address=http://host:port"
            )
        require_no_ray()
        return _on_own_node(job, recipe, folder)


def _submit(job: Job, recipe: Recipe, dashboard: str, folder: Path) -> int:
    with reaching(dashboard):
        require_gpus(recipe.cluster, dashboard)
        job.write_files()
        driver = [job.program[0], "-m", "slime_swe.launch.ray.driver", *job.argv]
        direct, said = past_proxies(hosts(dashboard))
        ray_job = RayJob(dashboard, folder)
        for line in said:
            ray_job.say(f"{line}\n")
        return ray_job.run(driver, {**direct, **job.environment}, job.directory)


def _on_own_node(job: Job, recipe: Recipe, folder: Path) -> int:
    """The same on a cluster of this machine alone, which ends with the job."""
    node, head = Node.head("127.0.0.1", "127.0.0.1")
    code = 1
    with node:
        try:
            wait_for_nodes(head, 1, START_SECONDS, node.require_alive)
            with reaching(head.dashboard, head.token):
                code = _submit(job, recipe, head.dashboard, folder)
        finally:
            if code:
                _keep_logs(node, folder)
    return code


def existing(address: str) -> tuple[str, str]:
    """The address without a closing slash, and the version there. Raises `UserError` where no Ray answers."""
    dashboard = address.rstrip("/")
    version = ray_version(dashboard)
    if version is None:
        raise UserError(
            f"cluster.ray_address={address}: no Ray dashboard answers there. Give the http://host:port that `ray start "
            "--head` printed, or leave the field empty to have a cluster started on this machine"
        )
    return dashboard, version


def require_no_ray() -> None:
    """Raise `UserError` where this machine is part of a Ray cluster already."""
    found = running_ray()
    if found is not None:
        pid, gcs = found
        where = f" of the cluster at {gcs}" if gcs else ""
        raise UserError(
            f"Ray runs on this machine already (process {pid}{where}), and two of them would share the GPUs unawares. "
            "Use it: cluster.ray_address=http://host:port of its dashboard (port 8265 by default); or end "
            "it first, with `ray stop` if it is yours"
        )


def require_gpus(cluster: Cluster, dashboard: str) -> None:
    """Raise `UserError` where the cluster has fewer GPUs than the recipe asks for."""
    asked = cluster.nodes * cluster.gpus_per_node + cluster.rollout_gpus
    found = gpus_by_node(dashboard)
    if sum(found) < asked:
        raise UserError(
            f"the recipe asks for {asked} GPUs (cluster.nodes={cluster.nodes}, cluster.gpus_per_node="
            f"{cluster.gpus_per_node}, cluster.rollout_gpus={cluster.rollout_gpus}), and the Ray cluster at "
            f"{dashboard} has {sum(found)} on {len(found)} nodes: choose a smaller recipe, or a larger cluster"
        )


def _keep_logs(node: Node, folder: Path) -> None:
    """What Ray's own processes wrote, which goes with the node otherwise."""
    for logs in node.folder.glob("session_*/logs"):
        if not logs.parent.is_symlink():
            shutil.copytree(logs, folder / NODE_LOGS, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))
