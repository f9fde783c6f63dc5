"""What tasks made of packages cost: `slime-swe make-tasks` on eight packages of PyPI, from nothing to the file.

    python -m benchmarks.make_tasks [--packages "NAME FILE ..."] [--tasks N] [--jobs N] [--json] [--check] [--save]

`largest_share` is that of the modifier with the most tasks. `sound_share` is that of the tasks of a sample which the
grader of training, with its negative control, finds sound in fresh sandboxes. `--tasks` is of one package, at most.
Needs the extra `factory`, and PyPI where names are given.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.command import Figures, run
from slime_swe.errors import InfrastructureError

PACKAGES = "boltons cachetools inflection more-itertools parse sqlparse tabulate toolz"
LIMITS = {"seconds": 1800.0, "largest_share": 0.334}
FLOORS = {"tasks": 500.0, "releases": 10.0, "sound_share": 1.0}


async def measure(packages: str, tasks: int, releases: int, jobs: int, sample: int) -> Figures:
    """Raises `InfrastructureError` where the command fails."""
    with tempfile.TemporaryDirectory(prefix="make-tasks-") as folder:
        command = [sys.executable, "-m", "slime_swe.launch.cli", "make-tasks", *packages.split(), "--json"]
        command += ["--out", str(Path(folder, "made.jsonl")), "--tasks", str(tasks), "--releases", str(releases)]
        command += ["--jobs", str(jobs), "--check", str(sample)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise InfrastructureError(f"make-tasks ended with {done.returncode}")
    found = json.loads(done.stdout)
    for one in found["unsound"]:
        print(f"{one['task']} is not sound: {one['detail']}", file=sys.stderr)
    by_kind = {kind: count for kind, count in found["by_kind"].items() if kind.startswith(("func_", "combine_"))}
    return {
        "tasks": found["tasks"],
        "faults": found["by_source"].get("faults", 0),
        "releases": found["by_source"].get("releases", 0),
        "packages": len(found["by_package"]),
        "kinds": len(by_kind),
        "largest_share": max(by_kind.values(), default=0) / found["tasks"],
        "sound_share": 1 - len(found["unsound"]) / found["checked"] if found["checked"] else 0.0,
        "seconds": found["seconds"],
    }


if __name__ == "__main__":
    sys.exit(
        run(
            __doc__,
            "make_tasks",
            measure,
            limits=LIMITS,
            floors=FLOORS,
            packages=PACKAGES,
            tasks=70,
            releases=3,
            jobs=2,
            sample=20,
        )
    )
