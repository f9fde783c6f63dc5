"""An endpoint that is not the tests' own: the recording proxy, which has a model with a tokenizer and a template."""

from __future__ import annotations

from slime_swe.rollout.client import EngineClient, Sampling
from slime_swe.rollout.episode import EpisodeStatistics, Session, StopReason
from slime_swe.rollout.proxy.server import open_proxy
from slime_swe.rollout.proxy.sessions import Policy, ProxySession
from slime_swe.rollout.proxy.templates import Templates
from slime_swe.rollout.scripted import by_turn as by_sampled_turn
from slime_swe.rollout.scripted import scripted_engine
from tests.rollout.endpoint.served import ChatEndpoint, by_turn
from tests.rollout.endpoint.test_native import play
from tests.rollout.support import FIX, PARAMS, SUBMIT, VIEW


async def test_both_sides_record_the_same_episode(tokenizer, tmp_path, monkeypatch):
    """One by its messages alone, the other with the tokens."""
    async with (
        scripted_engine(tokenizer, by_sampled_turn(VIEW, FIX, SUBMIT)) as engine,
        EngineClient(engine.url) as client,
        open_proxy() as proxy,
    ):
        policy = Policy(client, Templates(tokenizer, "hermes"), "hermes", max_context=4096, max_turns=9)
        statistics = EpisodeStatistics()
        served = ProxySession(policy, Session(), Sampling(PARAMS), statistics)
        monkeypatch.setenv("PROXY_KEY", served.key)
        async with proxy.serve(served) as path:
            endpoint = ChatEndpoint(by_turn(), url=f"{proxy.url}{path}/v1")
            episode = await play(endpoint, tmp_path, endpoint_key="PROXY_KEY")
    assert (episode.stop_reason, episode.counters.edits) == (StopReason.SUBMITTED, 1)
    (theirs,), (ours,) = served.session.segments(), episode.segments
    assert [(turn.role, turn.text, turn.calls) for turn in ours.turns[:7]] == [
        (turn.role, turn.text, turn.calls) for turn in theirs.turns
    ]
    assert episode.counters.completion_tokens == sum(theirs.loss_mask) == statistics.completion_tokens
    assert [*ours.tools] == [*theirs.tools]
