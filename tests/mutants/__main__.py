"""Does the suite notice faults? Makes each fault of `mutants.toml` in a copy of the checkout, and runs the tests.

    python -m tests.mutants [--only NAME ...] [--jobs N] [--tests PATH ...] [--json FILE]
                            [--root CHECKOUT --mutants FILE]

A mutant names a file, a text that is in it once, what stands there instead, and the tests that are to notice it, which
run as by default (`tests/selection.py`), up to the first failure. They must pass without it. The exit code is 1 if one
goes unnoticed. `--root` asks another checkout, of which the file has other names and texts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECONDS = 900.0  # for the tests of one mutant; a mutant whose tests never end is noticed
OUTCOMES = {0: "MISSED", 1: "caught"}  # pytest's exit codes


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def make(self, folder: Path) -> bool:
        """Whether the file has the text once, as it must."""
        path = folder / self.file
        text = path.read_text() if path.exists() else ""
        if text.count(self.old) != 1:
            return False
        path.write_text(text.replace(self.old, self.new))
        return True


@dataclass(frozen=True)
class Result:
    name: str
    outcome: str
    by: str  # the test that noticed it, or why none was asked
    seconds: float


def read(path: Path) -> list[Mutant]:
    groups = tomllib.loads(path.read_text())["group"]
    return [
        Mutant(f"{group['name']}: {name}", **{"tests": tuple(group["tests"])} | mutant)
        for group in groups
        for name, mutant in group["mutants"].items()
    ]


def copy(root: Path, folder: Path) -> None:
    """The files that git tracks, as they are now."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, check=True).stdout
    archive = ["tar", "--create", "--null", "--files-from=-", "--ignore-failed-read"]
    packed = subprocess.run(archive, cwd=root, input=files, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    subprocess.run(["tar", "--extract"], cwd=folder, input=packed.stdout, check=True)


def sound(root: Path, mutants: Iterable[Mutant], tests: Iterable[str]) -> bool:
    """Whether the tests pass where nothing is wrong."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        copy(root, Path(name))
        asked = dict.fromkeys(test for mutant in mutants for test in [*tests] or mutant.tests)
        code, output = run(Path(name), asked)
    if code:
        failed = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        print("without a fault the tests fail:", *(failed or output.splitlines()[-20:]), sep="\n")
    return code == 0


def play(mutant: Mutant, root: Path, tests: Iterable[str]) -> Result:
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        folder = Path(name)
        copy(root, folder)
        if not mutant.make(folder):
            return Result(mutant.name, "OUTDATED", f"{mutant.file} does not hold {mutant.old!r} once", 0.0)
        started = time.monotonic()
        code, output = run(folder, [*tests] or mutant.tests)
        seconds = round(time.monotonic() - started, 1)
    failed = [line.split(" ")[1] for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return Result(mutant.name, OUTCOMES.get(code, f"caught ({code})"), (failed or [""])[0], seconds)


def run(folder: Path, tests: Iterable[str]) -> tuple[int, str]:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return -1, f"FAILED (goes on for more than {SECONDS:.0f} s)"
    assert done.returncode not in (4, 5), f"no such tests: {done.stdout[-500:]}{done.stderr[-500:]}"
    return done.returncode, done.stdout + done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME", help="those whose name holds one of these")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--tests", nargs="+", default=[], metavar="PATH", help="instead of those that the mutant names")
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--mutants", type=Path, default=Path(__file__).with_name("mutants.toml"))
    parser.add_argument("--json", type=Path, metavar="FILE", help="the results")
    options = parser.parse_args()
    mutants = [mutant for mutant in read(options.mutants) if any(part in mutant.name for part in options.only)]
    if not sound(options.root, mutants, options.tests):
        return 1
    results = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for result in pool.map(lambda mutant: play(mutant, options.root, options.tests), mutants):
            results.append(result)
            print(f"{result.outcome:<10} {result.seconds:>6} s  {result.name:<60} {result.by}", flush=True)
    missed = sum(not result.outcome.startswith("caught") for result in results)
    print(f"{len(results) - missed} of {len(results)} caught")
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1))
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
