"""A Ray cluster inside a SLURM job, and one `slime-swe` command on it. `launch/slurm/cluster.sh` calls this.

python -m launch.ray.slurm node FOLDER
    on every node, by srun: the first becomes the head
python -m launch.ray.slurm submit FOLDER --nodes N --srun PID -- WORDS ...
    once, beside it: waits until N nodes have joined, then submits

FOLDER is the nodes' meeting place, on a file system that all of them see: the head leaves its address there.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

import orjson

from launch.choice import DEFAULT_RECIPE, split_recipe, value_of
from launch.config import resolve
from launch.ray.dashboard import gpus_by_node, ray_version, reaching, wait_until
from launch.ray.errors import RayError, require_ray
from launch.ray.jobs import INTERRUPTED, STOP_SECONDS, RayJob
from launch.ray.node import Head, Node
from launch.ray.processes import lives
from launch.ray.signals import heeding
from launch.runs import RECIPE_FILE

MEETING_FILE = "head.json"
JOIN_SECONDS = 600.0


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
    """Be one node of the cluster until told to stop. Raises `RayError` should Ray end by itself."""
    resources = [f"--num-cpus={place.cpus}", *([] if place.gpus is None else [f"--num-gpus={place.gpus}"])]
    if place.rank == 0:
        node, head = Node.head(place.launcher, place.launcher, resources)
    else:
        node = Node.member(_meet(folder), resources)
    with node:
        if place.rank == 0:
            _announce(head, node, folder)
        node.wait()
        node.require_alive()


def submit(folder: Path, nodes: int, srun: int, words: Sequence[str]) -> int:
    """Run `slime-swe WORDS` as a job on the cluster; its exit code. Raises `RayError` where the nodes don't meet."""
    uses_ray = engine_of(words) == "slime"  # a wrong recipe is said now, not when the nodes have met
    head = _meet(folder, srun)

    def complete() -> bool:
        _require_running(srun)
        return ray_version(head.dashboard) is not None and len(gpus_by_node(head.dashboard)) >= nodes

    with reaching(head.dashboard, head.token):
        if not wait_until(complete, JOIN_SECONDS):
            raise RayError(f"not all of {nodes} nodes joined the Ray cluster within {JOIN_SECONDS:g} s")
        gpus = gpus_by_node(head.dashboard)
        print(f"Ray cluster at {head.dashboard}: {len(gpus)} nodes, {sum(gpus)} GPUs", file=sys.stderr, flush=True)
        here = [f"cluster.ray_address={head.dashboard}"] if uses_ray else []
        argv = [sys.executable, "-m", "launch.cli", *words, *here]
        # Where the command submits a job of its own, it has that to stop before it can stop itself.
        return RayJob(head.dashboard, folder, stop_seconds=2 * STOP_SECONDS).run(argv, {}, Path.cwd()).code


def engine_of(words: Sequence[str]) -> str:
    """The engine of the recipe that `train` and these words ask for. Raises `RecipeError` where there is none such."""
    name, overrides = split_recipe([word for word in words if "=" in word])
    saved = Path(value_of("run.dir", overrides, "runs"), value_of("run.name", overrides, ""), RECIPE_FILE)
    return resolve(name or (str(saved) if "--resume" in words else DEFAULT_RECIPE), overrides).engine


def _announce(head: Head, node: Node, folder: Path) -> None:
    """Tell the others where the cluster is, once it takes members: when it lists the head among its nodes."""

    def takes_members() -> bool:
        node.require_alive()
        return ray_version(head.dashboard) is not None and len(gpus_by_node(head.dashboard)) > 0

    with reaching(head.dashboard, head.token):
        if not wait_until(takes_members, JOIN_SECONDS):
            raise RayError(f"Ray's head did not start within {JOIN_SECONDS:g} s")
    temporary = folder / f".{MEETING_FILE}"
    temporary.touch(mode=0o600)  # it holds the token
    temporary.write_bytes(orjson.dumps(asdict(head)))
    temporary.replace(folder / MEETING_FILE)


def _meet(folder: Path, srun: int | None = None) -> Head:
    """The head's address, as soon as it is told."""

    def told() -> bool:
        if srun is not None:
            _require_running(srun)
        return (folder / MEETING_FILE).is_file()

    if not wait_until(told, JOIN_SECONDS):
        raise RayError(
            f"Ray's head left no address in {folder} within {JOIN_SECONDS:g} s: do all nodes see this folder?"
        )
    return Head(**orjson.loads((folder / MEETING_FILE).read_bytes()))


def _require_running(srun: int) -> None:
    if not lives(srun):
        raise RayError("the nodes of the Ray cluster ended before the job began; what they said stands above")


def main(argv: Sequence[str] | None = None) -> NoReturn:
    parser = argparse.ArgumentParser(prog="python -m launch.ray.slurm", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("node", "submit"):
        commands.add_parser(name).add_argument("folder", type=Path)
    commands.choices["submit"].add_argument("--nodes", type=int, required=True)
    commands.choices["submit"].add_argument("--srun", type=int, required=True, help="process id of the nodes' srun")
    commands.choices["submit"].add_argument("words", nargs="+", help="of slime-swe")
    options = parser.parse_args(argv)
    with heeding():
        try:
            require_ray()
            if options.command == "node":
                serve_node(options.folder, Place.of(os.environ))
                sys.exit()
            sys.exit(submit(options.folder, options.nodes, options.srun, options.words))
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)
        except (ValueError, RayError) as error:
            sys.exit(f"slime-swe: {error}")


if __name__ == "__main__":
    main()
