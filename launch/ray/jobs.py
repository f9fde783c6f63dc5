"""Submit one job to a Ray cluster, show its log as it comes, and stop it when asked to."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from slime_swe.errors import InfrastructureError, UserError
from slime_swe.launch.extras import CLUSTER, require
from slime_swe.launch.ray.dashboard import gpus_by_node, headers, hosts, ray_version, reaching
from slime_swe.launch.ray.network import past_proxies
from slime_swe.launch.ray.node import Node, wait_for_nodes
from slime_swe.launch.ray.processes import deferring, interrupting, running_ray
from slime_swe.launch.slime.job import Job
from slime_swe.recipes.base import Cluster, Recipe

LOG_FILE = "ray_job.log"
RECORD_FILE = "ray_job.json"
STOP_SECONDS = 60  # that a job has to end by itself
PATIENCE_SECONDS = 60.0  # without an answer from the cluster before the job is given up
ACCEPT_SECONDS = 300.0  # until the cluster takes the job
POLL_SECONDS = 0.5
INTERRUPTED = 130
STOPPED, SUCCEEDED = "STOPPED", "SUCCEEDED"
_NOT_YET = "No available agent"  # the words of Ray's job server before the node's agent has reported to it
_TERMINAL = frozenset({STOPPED, SUCCEEDED, "FAILED"})


class RayJob:
    """One job on the cluster whose dashboard is given; its log goes to standard error and into `folder`."""

    def __init__(self, dashboard: str, folder: Path, stop_seconds: int = STOP_SECONDS) -> None:
        from ray.job_submission import JobSubmissionClient

        self.dashboard, self.folder, self.stop_seconds = dashboard, folder, stop_seconds
        self.id = f"slime-swe-{uuid.uuid4().hex[:12]}"
        self.entrypoint = ""
        self._cluster = f"the Ray cluster at {dashboard}"
        self._shown = 0  # characters
        self._submitted = False
        try:
            self._client: Any = JobSubmissionClient(dashboard, headers=headers())
        except (RuntimeError, OSError) as error:
            raise InfrastructureError(f"{self._cluster} takes no jobs: {error}") from error

    def run(self, argv: Sequence[str], environment: Mapping[str, str], directory: Path) -> int:
        """Submit the job, follow it to the end, and record it; return the exit code for the shell.

        Ctrl-C stops the job and is raised again when that is done.
        """
        self.entrypoint = entrypoint(argv, directory)
        try:
            self._submit(environment)
            asyncio.run(self._follow())
        except BaseException:  # whatever ends this, the job doesn't outlive it
            if self._submitted:
                with deferring():
                    self._stop()
                    self._record()
            raise
        return self._record()

    def _submit(self, environment: Mapping[str, str]) -> None:
        """Hand the job over. A cluster that has just started takes none for some seconds."""
        stopping = {"RAY_JOB_STOP_SIGNAL": "SIGINT", "RAY_JOB_STOP_WAIT_TIME_S": str(self.stop_seconds)}
        runtime = {"env_vars": {**stopping, **environment}}
        deadline = time.monotonic() + ACCEPT_SECONDS
        self._submitted = True  # an interruption may come at any moment
        while True:
            try:
                self._client.submit_job(entrypoint=self.entrypoint, submission_id=self.id, runtime_env=runtime)
                return
            except RuntimeError as error:
                if _NOT_YET not in str(error) or time.monotonic() > deadline:
                    self._submitted = False
                    raise InfrastructureError(f"{self._cluster} refused the job: {error}") from error
            time.sleep(POLL_SECONDS)

    async def _follow(self) -> None:
        """Show the log until the job is over. A broken connection is made anew, and what was shown is left out."""
        heard = time.monotonic()
        while True:
            shown = self._shown
            try:
                await self._show()
                over = str(self._client.get_job_status(self.id)) in _TERMINAL
                heard = time.monotonic()
            except (RuntimeError, OSError, aiohttp.ClientError) as error:
                over = False
                heard = time.monotonic() if self._shown > shown else heard
                if time.monotonic() - heard > PATIENCE_SECONDS:
                    raise InfrastructureError(f"{self._cluster} no longer answers: {error}") from error
            if over:
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _show(self) -> None:
        skip = self._shown
        async for text in self._client.tail_job_logs(self.id):
            new, skip = text[skip:], max(0, skip - len(text))
            self._shown += len(new)
            self.say(new)

    def say(self, text: str) -> None:
        """Put it into the log, and show it."""
        sys.stderr.write(text)
        sys.stderr.flush()
        with (self.folder / LOG_FILE).open("a", encoding="utf-8") as log:
            log.write(text)

    def _stop(self) -> None:
        """Ask the job to stop, and wait until it has."""
        try:
            self._client.stop_job(self.id)
            asyncio.run(asyncio.wait_for(self._follow(), self.stop_seconds + PATIENCE_SECONDS))
        except (RuntimeError, OSError, TimeoutError) as error:
            print(f"it is not known whether the Ray job {self.id} has stopped: {error}", file=sys.stderr)

    def _record(self) -> int:
        """Write how the job ended, `UNKNOWN` where the cluster has gone, into the folder; return the exit code."""
        try:
            info = self._client.get_job_info(self.id)
            status, message, code = str(info.status), info.message or "", info.driver_exit_code
        except (RuntimeError, OSError) as error:
            status, message, code = "UNKNOWN", str(error), None
        record = {"submission_id": self.id, "dashboard": self.dashboard, "entrypoint": self.entrypoint}
        record |= {"status": status, "message": message, "exit_code": code}
        (self.folder / RECORD_FILE).write_bytes(orjson.dumps(record, option=orjson.OPT_INDENT_2))
        return exit_code(status, code)


def exit_code(status: str, code: int | None) -> int:
    """Return the shell's exit code. `code`: the job's own, None where it has none, such as when it was stopped."""
    if status == STOPPED:
        return INTERRUPTED
    return code if code is not None else int(status != SUCCEEDED)


def entrypoint(argv: Sequence[str], directory: Path) -> str:
    """Write one shell command, whose process is the program itself, started in `directory` and open to SIGINT."""
    return f"cd {shlex.quote(str(directory))} && exec env --default-signal=INT {shlex.join(argv)}"


# Run one job of a recipe on Ray: on the cluster that the recipe names, or on one of this machine's own.
START_SECONDS = 300.0
NODE_LOGS = "ray_logs"


def run_job(job: Job, recipe: Recipe, folder: Path) -> int:
    """Run a job and return its exit code. Its log is shown on standard error; log and outcome are left in `folder`.

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
    """Run the job on a cluster of this machine alone, which ends with the job; return the job's exit code."""
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
    """Return the address without a closing slash, and the version there. Raises `UserError` where no Ray answers."""
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
    """Copy what Ray's own processes wrote, which goes with the node otherwise, into `folder`."""
    for logs in node.folder.glob("session_*/logs"):
        if not logs.parent.is_symlink():
            shutil.copytree(logs, folder / NODE_LOGS, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))
