"""Evaluation tasks as SLiME reads them: a file of prompts, each with the task as its metadata.

    python -m slime_swe.launch.slime.prompts TASK_SET FILE

SLiME's evaluation (`slime/rollout/sglang_rollout.py`) asks no data source, but makes its samples from such files.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import orjson
import yaml

from slime_swe.data_sources.registry import absolute, load_tasks
from slime_swe.data_sources.slime_plugin import metadata_of
from slime_swe.launch.slime.paths import PROMPTS
from slime_swe.recipes.base import Recipe

INPUT_KEY, METADATA_KEY = "input", "metadata"


def evaluation_config(recipe: Recipe, run: Path) -> str:
    """The YAML for `--eval-config`; all that it leaves out is as in training."""
    files = zip(recipe.data.eval, prompt_files(recipe, run), strict=True)
    datasets = [{"name": name, "path": str(path)} for name, path in files]
    defaults = {"input_key": INPUT_KEY, "metadata_key": METADATA_KEY}
    return as_yaml({"eval": {"defaults": defaults, "datasets": datasets}})


def prompt_files(recipe: Recipe, run: Path) -> dict[Path, str]:
    """File -> the task set that it holds."""
    return {run / PROMPTS.format(number): absolute(spec) for number, spec in enumerate(recipe.data.eval.values())}


def prompts(spec: str) -> str:
    """One JSON object a line: the statement and the task of a set, in its order."""
    lines = [orjson.dumps({INPUT_KEY: task.statement, METADATA_KEY: metadata_of(task)}) for task in load_tasks(spec)]
    return b"".join(line + b"\n" for line in lines).decode()


def as_yaml(content: Any) -> str:
    text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
    return text


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    Path(sys.argv[2]).write_text(prompts(sys.argv[1]), encoding="utf-8")
