"""The shims in Ray's workers, whichever of SLiME's modules is imported first."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FIRST = """
import os, sys
from slime_swe.launch.slime_cpu.fork_server import set_up
set_up()
import {module}
from slime.utils.accelerator import get_accelerator
import torch
print(get_accelerator().name, os.environ["SLIME_ACCELERATOR"], torch.ones(1, device="cuda").device)
"""
NO_SHIMS_YET = """
import sys, ray
from slime_swe.launch.slime_cpu.fork_server import set_up
@ray.remote
class Light:  # as SLiME's InfoActor is, which says the number of a GPU
    def heavy(self):
        return "torch" in sys.modules
ray.init(address="local", num_cpus=1, include_dashboard=False, runtime_env={
    "worker_process_setup_hook": "slime_swe.launch.slime_cpu.fork_server.set_up"})
print(ray.get(Light.remote().heavy.remote()))
"""


def said(code: str) -> list[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}  # the checkouts are there
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.stdout.split(), done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    "module", ["torch", "slime.utils.accelerator", "slime.ray.train_actor", "megatron.core", "transformers"]
)
def test_they_are_there_whatever_is_imported_first(slime_home, module):
    assert said(FIRST.format(module=module)) == ["cpu", "cpu", "cpu"]


@pytest.mark.slow
def test_a_worker_that_needs_no_pytorch_has_none(slime_home):
    assert said(NO_SHIMS_YET) == ["False"]
