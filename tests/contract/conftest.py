"""Tests against SLiME's and Megatron's own code, on a CPU. They run where both checkouts and their packages are:

    SLIME_HOME=... MEGATRON_HOME=... .venv-slime/bin/python -m pytest tests/contract

`docs/slime_on_a_cpu.md` says how to get these. Run them by themselves: the shims change `torch` for the whole process.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from slime_swe.launch.slime.checkouts import MEGATRON, SLIME
from tests.contract.checkouts import first_or_skip, put_on_path, why_not

SMALL = ["rollout.batch_size=2", "rollout.samples_per_task=4", "rollout.max_turns=3", "run.num_rollouts=1"]
SMALL += ["rollout.time_budget=600"]  # on a machine that does much else

PACKAGES = Path(__file__).parents[2] / "launch" / "slime_cpu" / "packages"  # stand-ins for those of GPU kernels

put_on_path(SLIME, MEGATRON)
if why_not(SLIME, MEGATRON) is None:
    sys.path.insert(0, str(PACKAGES))


@pytest.fixture(scope="session", autouse=True)
def slime_home():
    """SLiME's checkout, with the shims in place."""
    home = first_or_skip(SLIME, MEGATRON)
    from slime_swe.launch.slime_cpu.shims import install

    install()
    return home


@pytest.fixture(scope="module", autouse=True)
def own_environment():
    """Megatron writes its choice of attention there, and asserts that no process that it starts has another."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def manager_class(slime_home):
    """SLiME's rollout manager without Ray's wrapping."""
    ray = pytest.importorskip("ray", reason="comes with SLiME's environment")
    from slime.ray.rollout import RolloutManager

    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    yield RolloutManager.__ray_metadata__.modified_class
    ray.shutdown()


@pytest.fixture(scope="module")  # other modules have groups of their own
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


@pytest.fixture
def server_class():
    from slime_swe.embedded.server_process import ServerProcess

    return ServerProcess


@pytest.fixture
async def servers(slime_home, server_class, tmp_path):
    """Two that serve the seed policy."""
    seed = Path(__file__).parents[2] / "embedded" / "seed" / "checkpoint"
    options = {"threads": 1, "seed": 0, "slots": 16, "context_length": 640}
    async with AsyncExitStack() as stack:
        started = [server_class(seed, tmp_path / f"server-{number}.log", **options) for number in range(2)]
        yield [await stack.enter_async_context(server) for server in started]


@pytest.fixture
def args(servers, tmp_path, monkeypatch):
    """What SLiME's parser makes of the job that `engine=slime_cpu` would start."""
    from slime.utils.arguments import parse_args

    from slime_swe.launch.config import resolve
    from slime_swe.launch.slime.upstream import SLIME as UPSTREAM
    from slime_swe.launch.slime_cpu.render import render

    address = f"{servers[0].host}:{servers[0].port}"
    job = render(resolve("tiny_cpu", SMALL), tmp_path, address, checkouts=UPSTREAM.checkouts())
    job.write_files()
    monkeypatch.setattr(sys, "argv", ["train.py", *(word for words in job.flags.values() for word in words)])
    return parse_args()


@pytest.fixture
def routed(args, servers):
    """The same, with SLiME's router before both servers."""
    import requests
    from slime.ray.rollout import _start_router
    from slime.rollout.sglang_rollout import GenerateState
    from slime.utils.http_utils import init_http_client

    GenerateState.clear_instances()  # it keeps the arguments that it first saw
    args.sglang_router_ip, args.sglang_router_port = _start_router(args)
    for server in servers:
        body = {"url": f"http://{server.host}:{server.port}"}
        requests.post(f"{router_of(args)}/workers", json=body, timeout=10).raise_for_status()
    while len(workers_of(args)) < len(servers):  # it takes them in later
        time.sleep(0.05)
    init_http_client(args)
    return args


def workers_of(args):
    import requests

    return requests.get(f"{router_of(args)}/workers", timeout=10).json()["workers"]


def router_of(args):
    return f"http://{args.sglang_router_ip}:{args.sglang_router_port}"
