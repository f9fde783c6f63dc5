"""SWE-bench's predictions: what its harness grades.

Source: `get_predictions_from_file` of swebench 5.0.2 (`swebench/harness/utils.py`).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import orjson

from slime_swe.launch.episodes import RecordedEpisode
from slime_swe.launch.export import ExportedRun, Exporter


class Predictions(Exporter):
    """A file for each evaluation. The harness takes one prediction a task from a file: where a task was played several
    times, its second episode goes into a second file, and so on.
    """

    what = "patches for SWE-bench's harness, a file for each rollout and each episode of a task"
    opened = "python -m swebench.harness.run_evaluation --predictions_path {path}/FILE ..."
    has_messages, takes_broken, takes_silent = False, False, True

    def __init__(self, path: Path, run: ExportedRun) -> None:
        super().__init__(path, run)
        self._seen: Counter[tuple[str, str]] = Counter()

    def add(self, episode: RecordedEpisode) -> None:
        self._seen[episode.moment, episode.task] += 1
        count = self._seen[episode.moment, episode.task]
        name = episode.moment if count == 1 else f"{episode.moment}-{count}"
        line = {
            "instance_id": episode.task,
            "model_name_or_path": f"{self.run.name}-{name}",
            "model_patch": episode.patch,
        }
        with (self.path / f"{name}.jsonl").open("ab") as file:
            file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
