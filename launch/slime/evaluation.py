"""The evaluation sets as SLiME's parser wants them: it takes no `--eval-interval` without datasets.

Our rollout function plays the sets of `args.swe_eval_tasks`, so that nothing reads the paths that stand here.
"""

from __future__ import annotations

from typing import Any

import yaml

from slime_swe.data_sources.registry import absolute
from slime_swe.recipes.base import Recipe


def evaluation_config(recipe: Recipe) -> str:
    """The YAML for `--eval-config`."""
    datasets = [{"name": name, "path": absolute(spec)} for name, spec in recipe.data.evaluation_sets.items()]
    return as_yaml({"eval": {"datasets": datasets}})


def as_yaml(content: Any) -> str:
    text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
    return text
