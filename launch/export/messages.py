"""OpenAI's chat messages, for supervised training: `datasets` loads the file, trainers apply their chat template."""

from __future__ import annotations

import orjson

from slime_swe.launch.episodes import RecordedEpisode
from slime_swe.launch.export import Exporter
from slime_swe.rollout.episode import Turn
from slime_swe.rollout.proxy.conversation import chat_message
from slime_swe.rollout.records import Record


class Messages(Exporter):
    """One line for each sample: its messages and tools, and what it was worth.

    An agent that rewrites its history has several samples, and turns that several of them show are in each. A line ends
    with the last turn that was sampled in it.
    """

    what = "OpenAI's chat messages with tools, a line for each sample"
    opened = 'datasets.load_dataset("json", data_files="{path}")'
    is_folder, takes_broken = False, False

    def add(self, episode: RecordedEpisode) -> None:
        lines = []
        for record, tools in zip(episode.records, episode.tools, strict=True):
            line = {
                "messages": [chat_message(turn) for turn in up_to_last_reply(record)],
                "tools": tools,
                "task": record.task,
                "solved": record.solved,
                "reward": record.reward,
            }
            lines.append(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        with self.path.open("ab") as file:
            file.writelines(lines)


def up_to_last_reply(record: Record) -> list[Turn]:
    """Return a sample's turns up to the last that was sampled."""
    turns = record.turns or []
    last = max((at for at, turn in enumerate(turns) if turn.role == "assistant"), default=-1)
    return turns[: last + 1]
