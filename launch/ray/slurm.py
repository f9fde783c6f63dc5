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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

import orjson

from slime_swe.errors import InfrastructureError, UserError
from slime_swe.files import replace_file
from slime_swe.launch.config import resolve
from slime_swe.launch.engines import engine_of
from slime_swe.launch.extras import CLUSTER, require
from slime_swe.launch.overrides import DEFAULT_RECIPE, split_recipe, value_of
from slime_swe.launch.ray.dashboard import POLL_SECONDS, gpus_by_node, ray_version, reaching, wait_until
from slime_swe.launch.ray.jobs import INTERRUPTED, STOP_SECONDS, RayJob
from slime_swe.launch.ray.node import Head, Node
from slime_swe.launch.ray.processes import interrupting, lives
from slime_swe.launch.runs import RECIPE_FILE
from slime_swe.recipes.base import Recipe

HEAD_FILE, DONE_FILE = "head.json", "done"  # in the rendezvous; the batch script writes the second
JOIN_SECONDS = 600.0
SEEN_SECONDS = 70.0  # until a file of another node is seen, on a file system that caches names for a minute


@dataclass(frozen=True)
class Place:
    """Which node of a SLURM job this is, from the environment that srun gives its tasks.

    launcher: address of the node that srun ran on, which is the first. gpus: None where SLURM hands out none.
    """

    rank: int
    launcher: str
    cpus: int
    gpus: int | None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Place:
        gpus = environment.get("SLURM_GPUS_ON_NODE")
        return cls(
            rank=int(environment["SLURM_PROCID"]),
            launcher=environment["SLURM_LAUNCH_NODE_IPADDR"],
            cpus=int(environment["SLURM_CPUS_ON_NODE"]),
            gpus=int(gpus) if gpus else None,
        )


def serve_node(folder: Path, place: Place) -> None:
    """Be one node of the cluster until the job is over. Raises `InfrastructureError` where Ray ends before."""
    resources = [f"--num-cpus={place.cpus}", *([] if place.gpus is None else [f"--num-gpus={place.gpus}"])]
    if place.rank == 0:
        node, head = Node.head(place.launcher, place.launcher, resources)
    else:
        node = Node.member(_find_head(folder), resources)
    with node:
        if place.rank == 0:
            _announce(head, node, folder)
        _wait_for_end(node, folder / DONE_FILE)


def _wait_for_end(node: Node, done: Path) -> None:
    """A node that loses the head before it sees that the job is over waits for that too."""
    while not done.exists():
        if not node.alive() and not wait_until(done.exists, SEEN_SECONDS):
            node.require_alive()
        time.sleep(POLL_SECONDS)


def submit(folder: Path, nodes: int, srun: int, argv: Sequence[str]) -> int:
    """Run `slime-swe ARGV` as a job on the cluster; its exit code."""
    on_cluster = engine_of(recipe_of(argv)).on_cluster  # a wrong recipe is refused now, not when the nodes are there
    head = _find_head(folder, srun)

    def complete() -> bool:
        _require_running(srun)
        return ray_version(head.dashboard) is not None and len(gpus_by_node(head.dashboard)) >= nodes

    with reaching(head.dashboard, head.token):
        if not wait_until(complete, JOIN_SECONDS):
            raise InfrastructureError(f"not all of {nodes} nodes joined the Ray cluster within {JOIN_SECONDS:g} s")
        gpus = gpus_by_node(head.dashboard)
        print(f"Ray cluster at {head.dashboard}: {len(gpus)} nodes, {sum(gpus)} GPUs", file=sys.stderr, flush=True)
        here = [f"cluster.ray_address={head.dashboard}"] if on_cluster else []
        command = [sys.executable, "-m", "slime_swe.launch.cli", *argv, *here]
        # Where the command submits a job of its own, it has that to stop before it can stop itself.
        return RayJob(head.dashboard, folder, stop_seconds=2 * STOP_SECONDS).run(command, {}, Path.cwd()).code


def recipe_of(argv: Sequence[str]) -> Recipe:
    """The recipe that `slime-swe train ...` asks for. Raises `UserError` where there is none such."""
    name, overrides = split_recipe([text for text in argv if "=" in text])
    saved = Path(value_of("run.dir", overrides, "runs"), value_of("run.name", overrides, ""), RECIPE_FILE)
    return resolve(name or (str(saved) if "--resume" in argv else DEFAULT_RECIPE), overrides)


def _announce(head: Head, node: Node, folder: Path) -> None:
    """Leave the cluster's address once it takes members: when it lists the head among its nodes."""

    def takes_members() -> bool:
        node.require_alive()
        return ray_version(head.dashboard) is not None and len(gpus_by_node(head.dashboard)) > 0

    with reaching(head.dashboard, head.token):
        if not wait_until(takes_members, JOIN_SECONDS):
            raise InfrastructureError(f"Ray's head did not start within {JOIN_SECONDS:g} s")
    with _private():  # it holds the token
        replace_file(folder / HEAD_FILE, orjson.dumps(asdict(head)))


@contextmanager
def _private() -> Iterator[None]:
    """Files that are made here are this user's alone."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _find_head(folder: Path, srun: int | None = None) -> Head:
    """The head's address, as soon as it is there."""

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
                serve_node(options.folder, Place.of(os.environ))
                sys.exit()
            sys.exit(submit(options.folder, options.nodes, options.srun, options.argv))
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except (UserError, InfrastructureError) as error:
            sys.exit(f"slime-swe: {error}")


if __name__ == "__main__":
    main()
