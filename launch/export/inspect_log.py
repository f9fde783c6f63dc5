"""Logs of Inspect (`inspect_ai`), for its viewer and what reads its logs: one for each evaluation or rollout."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slime_swe.launch.episodes import RecordedEpisode, utc
from slime_swe.launch.export import ExportedRun, Exporter
from slime_swe.rollout.episode import Call, Turn
from slime_swe.rollout.proxy.conversation import read_arguments
from slime_swe.rollout.records import sampled_tokens

if TYPE_CHECKING:
    from inspect_ai.log import EvalLog, EvalResults, EvalSample
    from inspect_ai.model import ChatMessage, ModelUsage
    from inspect_ai.scorer import Score as InspectScore
    from inspect_ai.tool import ToolCall

_DIGITS = 12


class InspectLog(Exporter):
    """A log's samples are the episodes: those of one task are its epochs. One that infrastructure broke has an error
    and no score. Its messages are all that was said in the episode, each once, also where an agent rewrote its history.
    """

    what = "Inspect's logs, one for each evaluation or rollout"
    opened = "inspect view --log-dir {path}"
    packages, extra = ("inspect_ai",), "inspect"
    takes_silent = True

    def __init__(self, path: Path, run: ExportedRun) -> None:
        super().__init__(path, run)
        self._moment = ""
        self._episodes: list[RecordedEpisode] = []

    def add(self, episode: RecordedEpisode) -> None:
        if episode.moment != self._moment:
            self.close()
            self._moment = episode.moment
        self._episodes.append(episode)

    def close(self) -> None:
        if not self._episodes:
            return
        from inspect_ai.log import write_eval_log  # of the `inspect` extra, and takes seconds

        log = self._log()
        created = datetime.fromisoformat(str(log.eval.created)).strftime("%Y-%m-%dT%H-%M-%S+00-00")
        # As Inspect names its logs: its viewer reads task and id from here.
        file = self.path / f"{created}_{self._moment}_{log.eval.task_id}.eval"
        write_eval_log(log, str(file), format="eval")
        self._episodes = []

    def _log(self) -> EvalLog:
        from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalSpec, EvalStats

        samples, moment, first = self._samples(), self._moment, self._episodes[0]
        identity = sha256(f"{self.run.name}:{moment}".encode()).hexdigest()[:_DIGITS]
        began = min((one.started for one in self._episodes if one.started), default=0.0)
        ended = max(began, *(one.started + _seconds(one) for one in self._episodes))
        created, completed = utc(began), utc(ended)
        ids = list(dict.fromkeys(str(sample.id) for sample in samples))
        return EvalLog(
            status="success",
            eval=EvalSpec(
                eval_id=identity,
                run_id=identity,
                task_id=identity,
                created=created,
                task=moment,
                dataset=EvalDataset(name=first.about()["set"], samples=len(ids), sample_ids=ids),
                model=self.run.model,
                solver=self.run.agent,
                config=EvalConfig(epochs=max(sample.epoch for sample in samples)),
                metadata={"run": self.run.name, "rollout": first.first.rollout_id, **self.run.limits},
            ),
            results=_results(samples),
            stats=EvalStats(
                started_at=created, completed_at=completed, model_usage={self.run.model: _usage(*self._episodes)}
            ),
            samples=samples,
        )

    def _samples(self) -> list[EvalSample]:
        epochs: Counter[str] = Counter()
        samples = []
        for episode in self._episodes:
            epochs[episode.task] += 1
            samples.append(_sample(episode, epochs[episode.task], self.run.model))
        return samples


def _sample(episode: RecordedEpisode, epoch: int, model: str) -> EvalSample:
    from inspect_ai._util.error import EvalError
    from inspect_ai.log import EvalSample
    from inspect_ai.model import ModelOutput

    names = {call.id: call.name for turn in episode.turns for call in turn.calls}
    messages = [_message(turn, names) for turn in episode.turns]
    before = next((at for at, turn in enumerate(episode.turns) if turn.role == "assistant"), len(messages))
    last = next((turn.text for turn in reversed(episode.turns) if turn.role == "assistant"), "")
    timings = episode.first.episode.timings if episode.first.episode else None
    return EvalSample(
        id=episode.task,
        epoch=epoch,
        input=messages[:before],
        target="",
        messages=messages,
        output=ModelOutput.from_content(model, last),
        scores=_scores(episode),
        metadata={**episode.about(), "patch": episode.patch},
        error=EvalError(message=episode.error, traceback="", traceback_ansi="") if episode.error else None,
        model_usage={model: _usage(episode)},
        started_at=episode.at(0.0),
        completed_at=episode.at(timings.total) if timings else None,
        total_time=timings.total if timings else None,
    )


def _seconds(episode: RecordedEpisode) -> float:
    """Return how long the episode took; 0.0 where that is not known."""
    return episode.first.episode.timings.total if episode.first.episode else 0.0


def _scores(episode: RecordedEpisode) -> dict[str, InspectScore] | None:
    from inspect_ai.scorer import CORRECT, INCORRECT, Score

    record = episode.first
    if record.broken:
        return None
    solved = Score(value=CORRECT if record.solved else INCORRECT, answer=episode.patch, explanation=episode.stop_reason)
    return {"solved": solved, "reward": Score(value=0.0 if record.reward is None else record.reward)}


def _results(samples: list[EvalSample]) -> EvalResults:
    from inspect_ai.log import EvalMetric, EvalResults, EvalScore
    from inspect_ai.scorer import CORRECT

    scores = [sample.scores for sample in samples if sample.scores]
    solved = sum(one["solved"].value == CORRECT for one in scores)
    rewards = sum(float(one["reward"].as_float()) for one in scores)
    means = {"solved": ("accuracy", solved), "reward": ("mean", rewards)}
    return EvalResults(
        total_samples=len(samples),
        completed_samples=len(scores),
        scores=[
            EvalScore(name=name, scorer=name, metrics={metric: EvalMetric(name=metric, value=total / len(scores))})
            for name, (metric, total) in means.items()
            if scores
        ],
    )


def _usage(*episodes: RecordedEpisode) -> ModelUsage:
    from inspect_ai.model import ModelUsage

    counters = [one.first.episode.counters for one in episodes if one.first.episode]
    prompt, cached = sum(one.prompt_tokens for one in counters), sum(one.cached_tokens for one in counters)
    sampled = sum(sampled_tokens(one.records) for one in episodes)
    return ModelUsage(
        input_tokens=prompt - cached,
        output_tokens=sampled,
        total_tokens=prompt + sampled,
        input_tokens_cache_read=cached,
    )


def _message(turn: Turn, names: dict[str, str]) -> ChatMessage:
    from inspect_ai.model import (
        ChatMessageAssistant,
        ChatMessageSystem,
        ChatMessageTool,
        ChatMessageUser,
        Content,
        ContentReasoning,
        ContentText,
    )

    place: dict[str, Any] = {"tokens": [turn.start, turn.end], "seconds": [turn.began, turn.ended]}
    if turn.role == "system":
        return ChatMessageSystem(content=turn.text, metadata=place)
    if turn.role == "user":
        return ChatMessageUser(content=turn.text, metadata=place)
    if turn.role == "tool":
        called = names.get(turn.call_id)
        return ChatMessageTool(content=turn.text, tool_call_id=turn.call_id or None, function=called, metadata=place)
    said: list[Content] = [ContentText(text=turn.text)]
    if turn.reasoning:
        said.insert(0, ContentReasoning(reasoning=turn.reasoning))
    calls = [_call(call) for call in turn.calls] or None
    return ChatMessageAssistant(content=said if turn.reasoning else turn.text, tool_calls=calls, metadata=place)


def _call(call: Call) -> ToolCall:
    from inspect_ai.tool import ToolCall

    arguments = read_arguments(call)
    wrong = None if arguments is not None else f"the arguments are no usable JSON object: {call.arguments}"
    return ToolCall(id=call.id, function=call.name, arguments=arguments or {}, parse_error=wrong)
