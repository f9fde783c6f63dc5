"""`SamplingAgent`: what an agent of this process has that samples its turns itself, by a chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slime_swe.rollout.agents.base import Agent
from slime_swe.rollout.chat.template import ChatTemplate
from slime_swe.rollout.client import EngineClient, Generation, Sampling
from slime_swe.rollout.episode import EpisodeStatistics, Node, Session
from slime_swe.rollout.settings import RolloutSettings
from slime_swe.rollout.turns import Turn


@dataclass(eq=False)
class SamplingAgent(Agent):
    """Holds the template and the engine's client, and records each turn that it samples."""

    settings: RolloutSettings
    client: EngineClient
    template: ChatTemplate

    @property
    def placeholder_token(self) -> int:
        return self.template.stop_token_ids[0]

    def decode(self, tokens: Sequence[int]) -> str:
        return self.template.decode(tokens)

    def room_after(self, head: Node) -> int:
        """Tokens that the episode may still grow by."""
        return self.settings.max_context - head.end

    async def sample(
        self, head: Node, session: Session, sampling: Sampling, statistics: EpisodeStatistics
    ) -> tuple[Node, Generation]:
        """The policy's turn behind `head`, in the session with an empty text."""
        params = sampling.for_turn(statistics.turns, self.room_after(head), self.template.stop_token_ids)
        experts_from = head.experts_end if self.settings.routing_replay else None
        tolerance = sampling.grammar.tolerance if sampling.grammar else None
        began = session.seconds
        with statistics.engine_time():
            said = await self.client.generate(
                head.encoded_path(), params, experts_from=experts_from, headers=sampling.headers, tolerance=tolerance
            )
        turn = Turn("assistant", "", 0, len(said.tokens), began, session.seconds)
        node = session.add_sampled(said, turn)
        statistics.add(said, head)
        return node, said
