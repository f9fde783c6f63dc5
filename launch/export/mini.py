"""mini-SWE-agent's trajectories, for its inspector.

Source: `DefaultAgent.serialize` (`agents/default.py`) and the messages of `models/litellm_model.py`, version 2.4.6.
"""

from __future__ import annotations

from typing import Any

import orjson

from slime_swe.launch.episodes import RecordedEpisode
from slime_swe.launch.export import Exporter
from slime_swe.rollout.episode import StopReason, Turn
from slime_swe.rollout.proxy.conversation import chat_message, read_arguments

FORMAT = "mini-swe-agent-1.1"
_STATUS = {StopReason.SUBMITTED.value: "Submitted", StopReason.MAX_TURNS.value: "LimitsExceeded"}


class Mini(Exporter):
    """A file for each episode. Agents' other tools than bash have no action there, and are messages like the rest."""

    what = "mini-SWE-agent's trajectories, a file for each episode"
    opened = "mini-extra inspector {path}"

    def add(self, episode: RecordedEpisode) -> None:
        folder = self.path / episode.moment
        folder.mkdir(exist_ok=True)
        status = _STATUS.get(episode.stop_reason, episode.stop_reason or "unknown")
        end = {"exit_status": status, "submission": episode.patch}
        content = {
            "info": {
                "model_stats": {
                    "instance_cost": 0.0,
                    "api_calls": sum(turn.role == "assistant" for turn in episode.turns),
                },
                "config": {
                    "agent_type": self.run.agent,
                    "agent": {"step_limit": self.run.limits["max_turns"]},
                    "model": {"model_name": self.run.model},
                },
                **end,
                "episode": {**episode.about(), **self.run.limits},
            },
            "messages": [
                *(_message(turn, episode) for turn in episode.turns),
                {"role": "exit", "content": episode.error or episode.patch or status, "extra": end},
            ],
            "trajectory_format": FORMAT,
            "instance_id": episode.task,
        }
        file = folder / f"{episode.task_file}-{episode.number}.traj.json"
        file.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))


def _message(turn: Turn, episode: RecordedEpisode) -> dict[str, Any]:
    extra: dict[str, Any] = {"timestamp": episode.started + turn.ended} if episode.started else {}
    if turn.role == "assistant":
        found = [(read_arguments(call), call.id) for call in turn.calls if call.name == "bash"]
        extra["actions"] = [
            {"command": arguments["command"], "tool_call_id": id}
            for arguments, id in found
            if arguments and "command" in arguments
        ]
    elif turn.role == "tool":
        extra["raw_output"] = turn.text
    return {**chat_message(turn), "extra": extra}
