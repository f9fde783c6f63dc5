"""A Ray cluster inside a SLURM job, and one `slime-swe` command on it. `launch/slurm/cluster.sh` calls this.

python -m slime_swe.launch.ray.slurm node FOLDER
    on every node, by srun: the first becomes the head
python -m slime_swe.launch.ray.slurm submit FOLDER --nodes N --srun PID -- ARGV ...
    once, beside it: waits until N nodes have joined, then submits

FOLDER is the rendezvous, on a file system that all nodes see: the head leaves its address there.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

import orjson

from slime_swe.errors import InfrastructureError, UserError
from slime_swe.files import replace_file
from slime_swe.launch.config import DEFAULT_RECIPE, resolve, value_of
from slime_swe.launch.engines import engine_of
from slime_swe.launch.extras import CLUSTER, require
from slime_swe.launch.ray.dashboard import POLL_SECONDS, reaching, wait_until
from slime_swe.launch.ray.jobs import INTERRUPTED, STOP_SECONDS, RayJob
from slime_swe.launch.ray.node import Head, Node, wait_for_nodes
from slime_swe.launch.ray.processes import interrupting, lives
from slime_swe.launch.runs import RECIPE_FILE
from slime_swe.recipes.base import Recipe

HEAD_FILE, DONE_FILE = "head.json", "done"  # in the rendezvous; the batch script writes the second
JOIN_SECONDS = 600.0
SEEN_SECONDS = 70.0  # until a file of another node is seen, on a file system that caches names for a minute


def resources(environment: Mapping[str, str]) -> list[str]:
    """Return what SLURM gives to this node, as words for `ray start`; Ray looks for GPUs where SLURM hands out none."""
    gpus = environment.get("SLURM_GPUS_ON_NODE")
    return [f"--num-cpus={environment['SLURM_CPUS_ON_NODE']}", *([f"--num-gpus={gpus}"] if gpus else [])]


def serve_node(folder: Path, environment: Mapping[str, str]) -> None:
    """Be one node of the cluster until the job is over, the head where this is the first task of srun's.

    Raises `InfrastructureError` where Ray ends before. A node that loses the head before it sees that the job is over
    waits for that too.
    """
    done = folder / DONE_FILE
    if environment["SLURM_PROCID"] == "0":
        address = environment["SLURM_LAUNCH_NODE_IPADDR"]  # of the node that srun ran on, which is the first
        node, head = Node.head(address, address, resources(environment))
    else:
        node, head = Node.member(_find_head(folder), resources(environment)), None
    with node:
        if head is not None:
            wait_for_nodes(head, 1, JOIN_SECONDS, node.require_alive)
            replace_file(folder / HEAD_FILE, orjson.dumps(asdict(head)))  # now that it takes members
        while not done.exists():
            try:
                node.require_alive()
            except InfrastructureError:
                if not wait_until(done.exists, SEEN_SECONDS):
                    raise
            time.sleep(POLL_SECONDS)


def submit(folder: Path, nodes: int, srun: int, argv: Sequence[str]) -> int:
    """Run `slime-swe ARGV` as a job on the cluster; return its exit code."""
    on_cluster = engine_of(recipe_of(argv)).on_cluster  # a wrong recipe is refused now, not when the nodes are there
    head = _find_head(folder, srun)
    gpus = wait_for_nodes(head, nodes, JOIN_SECONDS, lambda: _require_running(srun))
    with reaching(head.dashboard, head.token):
        print(f"Ray cluster at {head.dashboard}: {len(gpus)} nodes, {sum(gpus)} GPUs", file=sys.stderr, flush=True)
        here = [f"cluster.ray_address={head.dashboard}"] if on_cluster else []
        command = [sys.executable, "-m", "slime_swe.launch.cli", *argv, *here]
        # Where the command submits a job of its own, it has that to stop before it can stop itself.
        return RayJob(head.dashboard, folder, stop_seconds=2 * STOP_SECONDS).run(command, {}, Path.cwd())


def recipe_of(argv: Sequence[str]) -> Recipe:
    """Return the recipe that `slime-swe train ...` asks for. Raises `UserError` where there is none such."""
    overrides = [text for text in argv if "=" in text and not text.startswith("-")]
    saved = Path(value_of("run.dir", overrides, "runs"), value_of("run.name", overrides, ""), RECIPE_FILE)
    return resolve(str(saved) if "--resume" in argv else DEFAULT_RECIPE, overrides)


def _find_head(folder: Path, srun: int | None = None) -> Head:
    """Wait for the head's address, and return it as soon as it is there."""

    def announced() -> bool:
        if srun is not None:
            _require_running(srun)
        return (folder / HEAD_FILE).is_file()

    if not wait_until(announced, JOIN_SECONDS):
        raise InfrastructureError(
            f"Ray's head left no address in {folder} within {JOIN_SECONDS:g} s: do all nodes see this folder?"
        )
    return Head(**orjson.loads((folder / HEAD_FILE).read_bytes()))


def _require_running(srun: int) -> None:
    if not lives(srun):
        raise InfrastructureError("the nodes of the Ray cluster ended before the job began; their output stands above")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    parser = argparse.ArgumentParser(prog="python -m slime_swe.launch.ray.slurm", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("node", "submit"):
        commands.add_parser(name).add_argument("folder", type=Path)
    commands.choices["submit"].add_argument("--nodes", type=int, required=True)
    commands.choices["submit"].add_argument("--srun", type=int, required=True, help="process id of the nodes' srun")
    commands.choices["submit"].add_argument("argv", nargs="+", help="of slime-swe")
    options = parser.parse_args(argv)
    with interrupting():
        try:
            require(*CLUSTER, extra="cluster")
            if options.command == "node":
                os.umask(0o077)  # what a node leaves in the folder holds the token
                serve_node(options.folder, os.environ)
                sys.exit()
            sys.exit(submit(options.folder, options.nodes, options.srun, options.argv))
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except (UserError, InfrastructureError) as error:
            sys.exit(f"slime-swe: {error}")


if __name__ == "__main__":
    main()
