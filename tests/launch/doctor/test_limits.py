"""Limits of this very process, changed where a test wants others."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from slime_swe.launch.doctor.capacity import check_capacity, check_limits, memory_bytes
from slime_swe.launch.doctor.finding import Status
from slime_swe.launch.doctor.machine import Machine
from tests.recipes.changes import variant

ROOT = Path(__file__).parents[3]
ASK = """
import sys
from slime_swe.launch.doctor.capacity import check_limits
from slime_swe.launch.doctor.machine import Machine
from slime_swe.recipes.registry import load_recipe
for finding in check_limits(load_recipe(sys.argv[1]), Machine()):
    print(finding.check, finding.status, finding.message, sep="|")
"""


def under(limits: str, recipe: str) -> dict[str, list[str]]:
    """What a process with these limits finds: check -> status, message."""
    command = f'{limits}; exec "$0" -c "$1" "$2"'
    asked = subprocess.run(
        ["sh", "-c", command, sys.executable, ASK, recipe], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert asked.returncode == 0, asked.stderr
    return {line.split("|")[0]: line.split("|")[1:] for line in asked.stdout.splitlines()}


@pytest.mark.parametrize(
    ("limits", "recipe", "status"),
    [
        ("ulimit -n 256", "tiny_cpu", "failure"),
        ("ulimit -n 800", "tiny_cpu", "warning"),
        ("ulimit -n 2048", "tiny_cpu", "ok"),
        ("ulimit -Sn 1024; ulimit -Hn 4096", "qwen25_coder_7b", "failure"),
        ("ulimit -Sn 1024; ulimit -Hn 10000", "qwen25_coder_7b", "warning"),  # Ray raises it itself, up to the hard one
    ],
)
def test_open_files(limits, recipe, status):
    found = under(limits, recipe)["open files"]
    assert found[0] == status, found


def test_locked_memory_matters_between_machines():
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    one = {f.check: f for f in check_limits(variant("qwen25_coder_7b"), Machine())}["locked memory"]
    two = {f.check: f for f in check_limits(variant("qwen25_coder_7b", cluster__nodes=2), Machine())}["locked memory"]
    assert one.status == Status.OK
    assert two.status == (Status.OK if soft == resource.RLIM_INFINITY else Status.WARNING)


def test_this_machine_against_what_the_recipe_counts_on():
    (large,) = check_capacity(variant("tiny_cpu", cluster__cpus_per_node=100_000), Machine())
    assert large.status == Status.WARNING and "counts on 100000" in large.message
    (small,) = check_capacity(variant("tiny_cpu", cluster__cpus_per_node=1, cluster__memory_per_node=0), Machine())
    assert small.status == Status.OK


def test_memory_is_that_of_the_machine_or_of_its_group():
    total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    assert 1 << 28 <= memory_bytes() <= int(total.split()[1]) * 1024
