"""Sessions that the Hugging Face Hub shows as agent traces: those of the Pi agent, in a data set's folder.

Source: `docs/session-format.md` of @mariozechner/pi-coding-agent 0.73.1, version 3, and the Hub's page on agent traces.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from slime_swe.launch.episodes import RecordedEpisode, utc
from slime_swe.launch.evaluation import in_words
from slime_swe.launch.export import ExportedRun, Exporter
from slime_swe.rollout.episode import UNNAMED, Turn
from slime_swe.rollout.proxy.conversation import read_arguments

VERSION = 3
PRODUCT = "slime-swe"
CARD = """\
---
pretty_name: {quoted}
viewer_mode: traces
tags:
- agent-traces
- format:agent-traces
- traces
- {product}
configs:
- config_name: default
  data_files:
  - split: train
    path: sessions/*.jsonl
---

# {title}

{episodes} episodes of the agent `{agent}` with `{model}`, of {limits}; {solved} solved their task. Each session ends
with a `custom` entry: the task, the outcome, the reward, and the patch.
"""


class Traces(Exporter):
    """A session for each episode: all that was said, each turn once, in order of time."""

    what = "a data set of agent traces for the Hugging Face Hub, a session for each episode"
    opened = "hf upload --repo-type=dataset USER/NAME {path}"

    def __init__(self, path: Path, run: ExportedRun) -> None:
        super().__init__(path, run)
        self._episodes = self._solved = 0
        (path / "sessions").mkdir()

    def add(self, episode: RecordedEpisode) -> None:
        self._episodes += 1
        self._solved += episode.first.solved
        name = f"{episode.moment}-{episode.number}"
        lines = [orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in self._session(episode, name)]
        (self.path / "sessions" / f"{name}.jsonl").write_bytes(b"".join(lines))

    def close(self) -> None:
        title = f"Agent traces of {self.run.name}"
        about = {"title": title, "quoted": orjson.dumps(title).decode(), "product": PRODUCT}
        run = {"agent": self.run.agent, "model": self.run.model, "limits": in_words(self.run.limits)}
        card = CARD.format(**about, **run, episodes=self._episodes, solved=self._solved)
        (self.path / "README.md").write_text(card, encoding="utf-8")

    def _session(self, episode: RecordedEpisode, name: str) -> Iterator[dict[str, Any]]:
        """Yield the header, then entries of which each names the one before it. Its folder is the task's name, since
        no run records where a repository lay."""
        begun = utc(episode.started)
        session = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{PRODUCT}:{self.run.name}:{name}"))
        yield {"type": "session", "version": VERSION, "id": session, "timestamp": begun, "cwd": f"/{episode.task_file}"}
        before = None
        for number, (time, entry) in enumerate(self._entries(episode), 1):
            yield {"id": f"{number:08x}", "parentId": before, "timestamp": utc(time), **entry}
            before = f"{number:08x}"

    def _entries(self, episode: RecordedEpisode) -> Iterator[tuple[float, dict[str, Any]]]:
        """Yield each entry with its Unix time."""
        title = f"{episode.task}: {episode.first.outcome}, reward {episode.first.reward}"
        yield episode.started, {"type": "session_info", "name": title}
        names = dict[str, str]()
        end = episode.started
        for turn in episode.turns:
            names |= {call.id: call.name for call in turn.calls}
            end = episode.started + turn.ended
            yield end, self._entry(turn, end, names)
        yield end, {"type": "custom", "customType": PRODUCT, "data": {**episode.about(), "patch": episode.patch}}

    def _entry(self, turn: Turn, time: float, names: dict[str, str]) -> dict[str, Any]:
        """Make the entry of a turn. names: the tool of each call so far, by the call's id."""
        if turn.role == "system":  # which sessions of Pi leave out
            return {"type": "custom_message", "customType": "system", "content": turn.text, "display": True}
        message: dict[str, Any] = {"role": turn.role, "content": [{"type": "text", "text": turn.text}]}
        if turn.role == "assistant":
            message |= {
                "content": [*_said(turn)],
                "api": "openai-completions",
                "provider": PRODUCT,
                "model": self.run.model,
                "usage": _usage(turn),
                "stopReason": "toolUse" if turn.calls else "stop",
            }
        elif turn.role == "tool":
            called = {"toolCallId": turn.call_id, "toolName": names.get(turn.call_id, UNNAMED)}
            message |= {"role": "toolResult", **called, "isError": turn.failed}
        return {"type": "message", "message": {**message, "timestamp": round(1000 * time)}}


def _said(turn: Turn) -> Iterator[dict[str, Any]]:
    if turn.reasoning:
        yield {"type": "thinking", "thinking": turn.reasoning}
    if turn.text:
        yield {"type": "text", "text": turn.text}
    for call in turn.calls:
        arguments = read_arguments(call)
        written = {"written": call.arguments} if arguments is None else arguments
        yield {"type": "toolCall", "id": call.id, "name": call.name, "arguments": written}


def _usage(turn: Turn) -> dict[str, Any]:
    """Count the tokens of a reply's prompt and of the reply. Which of the prompt were cached, no turn says."""
    costs = dict.fromkeys(("input", "output", "cacheRead", "cacheWrite", "total"), 0)
    counts = {"input": turn.start, "output": turn.end - turn.start, "cacheRead": 0, "cacheWrite": 0}
    return {**counts, "totalTokens": turn.end, "cost": costs}
