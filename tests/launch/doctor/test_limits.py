"""Limits of this very process, changed where a test wants others."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

from slime_swe.launch.doctor import Machine, Status
from slime_swe.launch.doctor.capacity import check_capacity, check_limits, memory_bytes
from tests.recipes.changes import variant

ROOT = Path(__file__).parents[3]
# Each row in a fork of one process, since a hard limit can't be raised again and an import costs more than the check.
ASK = """
import os, resource, sys
from slime_swe.launch.doctor.capacity import check_limits
from slime_swe.launch.doctor import Machine
from slime_swe.recipes.registry import load_recipe
for row in sys.argv[1:]:
    soft, hard, name = row.split()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_NOFILE, (int(soft), int(hard)))
        for finding in check_limits(load_recipe(name), Machine()):
            print(row, finding.check, finding.status, finding.message, sep="|", flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, row
"""
OPEN_FILES = {  # soft and hard limit, recipe -> status
    "256 256 tiny_cpu": "failure",
    "800 800 tiny_cpu": "warning",
    "2048 2048 tiny_cpu": "ok",
    "1024 4096 qwen25_coder_7b": "failure",
    "1024 10000 qwen25_coder_7b": "warning",  # Ray raises it itself, up to the hard one
}


def test_open_files():
    asked = subprocess.run(
        [sys.executable, "-c", ASK, *OPEN_FILES], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert asked.returncode == 0, asked.stderr
    rows = [line.split("|") for line in asked.stdout.splitlines()]
    found = {row: (status, message) for row, check, status, message in rows if check == "open files"}
    assert {row: status for row, (status, _) in found.items()} == OPEN_FILES, found


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
