"""Tests against SLiME's and Megatron's own code, on a CPU. They run where both checkouts and their packages are:

    SLIME_HOME=... MEGATRON_HOME=... .venv-slime/bin/python -m pytest tests/contract

`docs/slime_on_a_cpu.md` says how to get these. Run them by themselves: the shims change `torch` for the whole process.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

CHECKOUTS = {"SLIME_HOME": "train.py", "MEGATRON_HOME": "megatron/core/__init__.py"}


def why_not() -> str | None:
    for name, file in CHECKOUTS.items():
        if not os.environ.get(name):
            return f"{name} is not set"
        if not (Path(os.environ[name]) / file).is_file():
            return f"{name}={os.environ[name]} holds no {file}"
    return None


if why_not() is None:  # before a test module is imported: `slime_swe.sample` looks for SLiME once
    sys.path[:0] = [os.environ[name] for name in CHECKOUTS]


@pytest.fixture(scope="session", autouse=True)
def slime_home():
    """SLiME's checkout, with the shims in place."""
    reason = why_not()
    if reason:
        pytest.skip(f"needs SLiME and Megatron: {reason}")
    from slime_swe.launch.slime_cpu.shims import install

    install()
    return Path(os.environ["SLIME_HOME"])


@pytest.fixture(scope="session")
def one_process(slime_home, tmp_path_factory):
    """Megatron's process groups for a world of one, over gloo."""
    import torch.distributed as dist
    from megatron.core import mpu

    store = dist.FileStore(str(tmp_path_factory.mktemp("gloo") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    mpu.initialize_model_parallel()
    yield
    mpu.destroy_model_parallel()
    dist.destroy_process_group()
