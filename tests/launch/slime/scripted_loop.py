"""Train loops that ask as SLiME and miles do, and keep in the file `heard` what they were answered."""

from __future__ import annotations

from pathlib import Path

MISC = """
def should_run_periodic_action(rollout_id, interval, num_rollout_per_epoch=None, num_rollout=None):
    return rollout_id + 1 == num_rollout or (rollout_id + 1) % interval == 0
"""
GROUP = {
    "slime": """
class RayTrainGroup:
    def save_model(self, rollout_id, force_sync=False):
        done("save", rollout_id, force_sync)
""",
    "miles": """
class RayTrainGroup:
    async def save_model(self, rollout_id, force_sync=False):
        done("save", rollout_id, force_sync)
""",
}
HEARD = """
import json
def done(what, *of):
    with open("heard", "a") as file:
        file.write(json.dumps([what, *of]) + "\\n")
"""
SCRIPTS = {
    "slime": """
import sys, time
from slime.ray.actor_group import RayTrainGroup
from slime.utils.misc import should_run_periodic_action
if __name__ == "__main__":
    first, last, minutes = map(int, sys.argv[1:])
    for rollout_id in range(first, last):
        time.time = lambda now=time.time() + 60 * minutes: now
        if should_run_periodic_action(rollout_id, 20, None, last):
            RayTrainGroup().save_model(rollout_id, force_sync=rollout_id == last - 1)
        if should_run_periodic_action(rollout_id, 4, None):
            done("evaluate", rollout_id)
    done("end")
""",
    "miles": """
import asyncio, sys, time
from miles.ray.actor_group import RayTrainGroup
from miles.utils.misc import should_run_periodic_action
async def train(first, last, minutes):
    for rollout_id in range(first, last):
        time.time = lambda now=time.time() + 60 * minutes: now
        if should_run_periodic_action(rollout_id, 20, None, last):
            await RayTrainGroup().save_model(rollout_id, rollout_id == last - 1)
        if should_run_periodic_action(rollout_id, 4, None, last):
            done("evaluate", rollout_id)
    done("end")
if __name__ == "__main__":
    asyncio.run(train(*map(int, sys.argv[1:])))
""",
}


ASYNC = """
import json, sys
from types import SimpleNamespace
from slime.ray.actor_group import RayTrainGroup
from slime.ray.placement_group import create_rollout_manager
if __name__ == "__main__":
    args = SimpleNamespace(start_rollout_id=None, **json.loads(sys.argv[1]))
    manager, per_epoch = create_rollout_manager(args, None)
    args.start_rollout_id = args.found  # by the checkpoint, once the trainers have loaded it
    trainers = RayTrainGroup()
    trainers.update_weights()
    manager.generate.remote(args.start_rollout_id)
    for rollout_id in range(args.start_rollout_id, args.num_rollout):
        trainers.update_weights()
"""
PLACEMENT = """
from types import SimpleNamespace
def create_rollout_manager(args, pg):
    remote = lambda what: SimpleNamespace(remote=lambda rollout_id: done(what, rollout_id))
    return SimpleNamespace(eval=remote("evaluate"), generate=remote("generate")), None
"""
RAY = """
def get(found):
    return found
"""


def make_async_checkout(home: Path) -> Path:
    """SLiME's `train_async.py` up to its first rollouts, with a Ray that does at once what it is asked."""
    group = GROUP["slime"] + "    def update_weights(self):\n        done('update')\n"
    files = {"misc": MISC, "actor_group": HEARD + group, "placement_group": HEARD + PLACEMENT}
    places = {"misc": "utils", "actor_group": "ray", "placement_group": "ray"}
    for name, text in files.items():
        path = home / "slime" / places[name] / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (home / "ray.py").write_text(RAY)
    (home / "train_async.py").write_text(ASYNC)
    return home / "train_async.py"


def make_checkout(home: Path, name: str, script: str) -> Path:
    """The entry script, with the package `slime` or `miles` beside it."""
    files = {f"{name}/utils/misc.py": MISC, f"{name}/ray/actor_group.py": HEARD + GROUP[name], "train.py": script}
    for path, text in files.items():
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text)
    return home / "train.py"
