"""ATIF-v1.8, Harbor's trajectory interchange format, with the tokens that were sampled and their log-probabilities.

Source: `harbor/models/trajectories/` of harbor 0.26.0, which takes ATIF-v1.0 to v1.8; RFC 0001 of the same project.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from slime_swe.launch.episodes import RecordedEpisode
from slime_swe.launch.export import Exporter
from slime_swe.rollout.episode import Call, Turn
from slime_swe.rollout.proxy.conversation import read_arguments
from slime_swe.rollout.records import Record

VERSION = "ATIF-v1.8"
UNKNOWN = "unknown"  # the format wants the agent's version, which runs don't record


class Atif(Exporter):
    """A file for each sample; those of an agent that rewrites its history share a `session_id`.

    The first step that was sampled has the ids of its whole prompt. Each later one has those which its prompt adds to
    the tokens of the step before, as `metrics.extra.new_prompt_token_ids`: all prompts in full would grow with the
    square of the turns. A turn that an earlier sample trains is copied context.
    """

    what = "Harbor's ATIF-v1.8 with token ids and log-probabilities, a file for each sample"
    opened = "python -m harbor.utils.trajectory_validator {path}/FILE"
    needs_tokens = True

    def add(self, episode: RecordedEpisode) -> None:
        for number, (record, tools) in enumerate(zip(episode.records, episode.tools, strict=True), 1):
            if not record.turns:
                continue
            name = f"{episode.moment}-{episode.number}" + (f"-{number}" if number > 1 else "")
            content = orjson.dumps(self._trajectory(episode, record, tools, name), option=orjson.OPT_INDENT_2)
            (self.path / f"{name}.json").write_bytes(content)

    def _trajectory(
        self, episode: RecordedEpisode, record: Record, tools: Sequence[dict[str, Any]], name: str
    ) -> dict[str, Any]:
        agent: dict[str, Any] = {"name": self.run.agent, "version": UNKNOWN, "model_name": self.run.model}
        steps = _Steps(episode, record).made()
        return {
            "schema_version": VERSION,
            "session_id": f"{self.run.name}:{episode.moment}:{episode.number}",
            "trajectory_id": f"{self.run.name}:{name}",
            "agent": {**agent, "tool_definitions": list(tools)} if tools else agent,
            "steps": steps,
            "final_metrics": _totals(episode, record, len(steps)),
            "extra": {**episode.about(), **self.run.limits, "patch": episode.patch},
        }


def _totals(episode: RecordedEpisode, record: Record, steps: int) -> dict[str, Any]:
    counters = record.episode.counters if record.episode else None
    return {
        "total_prompt_tokens": counters.prompt_tokens if counters else None,
        "total_cached_tokens": counters.cached_tokens if counters else None,
        "total_completion_tokens": sum(sum(one.loss_mask or ()) for one in episode.records),
        "total_steps": steps,
    }


class _Steps:
    """The steps of one sample: each turn is one, and tools' results are part of the step with the calls."""

    def __init__(self, episode: RecordedEpisode, record: Record) -> None:
        self._episode, self._record = episode, record
        before = len(record.tokens) - record.response_length
        self._mask = [0] * before + (record.loss_mask or [0] * record.response_length)
        self._log_probs = [0.0] * before + (record.log_probs or [])
        self._known = 0  # tokens whose ids are in a step
        self._steps: list[dict[str, Any]] = []

    def made(self) -> list[dict[str, Any]]:
        for turn in self._record.turns or ():
            if turn.role == "tool" and self._steps and self._steps[-1]["source"] == "agent":
                self._observe(turn)
            else:
                self._begin(turn)
        return self._steps

    def _begin(self, turn: Turn) -> None:
        step: dict[str, Any] = {"step_id": len(self._steps) + 1}
        if timestamp := self._episode.at(turn.began):
            step["timestamp"] = timestamp
        step |= {"source": "agent" if turn.role == "assistant" else "user", "message": turn.text}
        if turn.role == "system":
            step["source"] = "system"
        if turn.role == "assistant":
            step |= self._said(turn)
        self._steps.append(step)

    def _said(self, turn: Turn) -> dict[str, Any]:
        said: dict[str, Any] = {"reasoning_content": turn.reasoning} if turn.reasoning else {}
        if turn.calls:
            said["tool_calls"] = [_call(call) for call in turn.calls]
        if any(self._mask[turn.start : turn.end]):  # a grammar may have forced some of its tokens
            return {**said, "llm_call_count": 1, "metrics": self._metrics(turn)}
        return {**said, "is_copied_context": True}

    def _metrics(self, turn: Turn) -> dict[str, Any]:
        tokens = self._record.tokens
        metrics: dict[str, Any] = {
            "prompt_tokens": turn.start,
            "completion_tokens": turn.end - turn.start,
            "completion_token_ids": tokens[turn.start : turn.end],
            "extra": {"seconds": round(turn.ended - turn.began, 4)},
        }
        if self._record.log_probs:
            metrics["logprobs"] = self._log_probs[turn.start : turn.end]
        if self._known:
            metrics["extra"]["new_prompt_token_ids"] = tokens[self._known : turn.start]
        else:
            metrics["prompt_token_ids"] = tokens[: turn.start]
        self._known = turn.end
        return metrics

    def _observe(self, turn: Turn) -> None:
        step = self._steps[-1]
        result: dict[str, Any] = {"content": turn.text, "extra": {"seconds": round(turn.ended - turn.began, 4)}}
        if turn.call_id in {call["tool_call_id"] for call in step.get("tool_calls", ())}:
            result["source_call_id"] = turn.call_id
        step.setdefault("observation", {"results": []})["results"].append(result)


def _call(call: Call) -> dict[str, Any]:
    arguments = read_arguments(call)
    if arguments is None:
        return {
            "tool_call_id": call.id, "function_name": call.name, "arguments": {}, "extra": {"written": call.arguments},
        }  # fmt: skip
    return {"tool_call_id": call.id, "function_name": call.name, "arguments": arguments}
