"""Episodes over SLiME's own router, which loses one of its two engines."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from slime_swe.data_sources.slime_plugin import TaskDataSource
from slime_swe.rollout.hooks import RolloutHooks
from slime_swe.rollout.play import Play, Player, gather
from slime_swe.rollout.records import episode_of
from tests.contract.conftest import router_of, workers_of

requests = pytest.importorskip("requests", reason="comes with SLiME's environment")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


# All but the first keep an episode where it began, by its name.
@pytest.fixture(params=["cache_aware", "manual", "consistent_hashing"])
def args(args, request):
    args.router_policy = args.sglang_router_policy = request.param
    return args


def running_on(server):
    (load,) = requests.get(f"http://{server.host}:{server.port}/v1/loads", timeout=10).json()["loads"]
    return load["num_running_reqs"]


async def play_and_lose(routed, server, lose):
    """What 16 episodes come to, of which some have a request on this server when it is lost."""
    player = Player(routed, RolloutHooks.load(routed))
    groups = TaskDataSource(routed).get_samples(4)
    playing = asyncio.ensure_future(gather(player.play_group([Play(sample) for sample in group]) for group in groups))
    while not await asyncio.to_thread(running_on, server):
        assert not playing.done(), "the router uses both"
    await asyncio.to_thread(lose)
    samples = [sample for group in await playing for sample in group]
    assert not any(sample.metadata.get("infrastructure") for sample in samples)
    causes = Counter()
    for sample in samples:
        causes.update(episode_of(sample).counters.engine_retries)
    return causes


async def test_turns_go_on_elsewhere_when_an_engine_dies(routed, servers):
    """SLiME's router never notices by itself."""
    living, dying = servers
    causes = await play_and_lose(routed, dying, dying._process.kill)
    assert set(causes) == {"call_upstream_request_error"}
    assert causes.total() <= 3 * 16, "nothing is sent to a dead engine for long"
    assert [worker["url"] for worker in workers_of(routed)] == [f"http://{living.host}:{living.port}"]


async def test_turns_go_on_when_the_router_loses_a_worker(routed, servers):
    lost = servers[1]
    (name,) = [worker["id"] for worker in workers_of(routed) if worker["url"].endswith(f":{lost.port}")]
    causes = await play_and_lose(routed, lost, lambda: requests.delete(f"{router_of(routed)}/workers/{name}"))
    assert len(workers_of(routed)) == 1
    assert causes.total() <= 16
