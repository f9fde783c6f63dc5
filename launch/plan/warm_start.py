"""What of a recipe's `warm_start` a plan needs: its episodes, and the recipe of its stage.

A step of the stage needs no more of a GPU and of a machine than one of the rollouts: the same layout and the same
`parallel.max_tokens_per_gpu`, without a server, a reference policy or an entropy bonus. That holds while its longest
sample has at most `rollout.max_context` tokens, for which a micro-batch has room; a longer one is a problem.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from slime_swe.launch.warm_start import stage_of
from slime_swe.recipes.base import Recipe
from slime_swe.rollout.warm_start import RecordedEpisode, read_recorded

Episodes = tuple[RecordedEpisode, ...]


def recorded(recipe: Recipe) -> Episodes:
    """Of `warm_start.data`; none where that is empty or not on this machine. Raises `UserError` for another file."""
    path = Path(recipe.warm_start.data)
    if not recipe.warm_start.data or not path.is_file():
        return ()
    found = path.stat()
    return _read(path, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=1)  # a search for proposals asks for each of thousands of recipes
def _read(path: Path, changed: int, size: int) -> Episodes:
    return tuple(read_recorded(path))


def supervised(recipe: Recipe) -> Recipe | None:
    """The recipe of the stage; None without one."""
    episodes = recorded(recipe)
    return stage_of(recipe, Path(recipe.run.dir), episodes) if episodes else None
