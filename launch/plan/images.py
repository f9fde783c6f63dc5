"""A recipe -> the container images that its tasks leave on each machine which has sandboxes: how many, and their size.

Each such machine comes to have all of them, since an episode of any task may be played on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from pathlib import Path

from slime_swe.data_sources.corpora import CORPORA
from slime_swe.data_sources.registry import Spec, load_tasks, most_left, parse
from slime_swe.errors import UserError
from slime_swe.launch.images import measured, set_of, size_of
from slime_swe.launch.plan import Assumptions, TaskImages
from slime_swe.launch.plan.admission import informative
from slime_swe.recipes.base import Recipe
from slime_swe.sandbox.pool import make_backend


@dataclass(frozen=True)
class _Known:
    """The facts that are known of a task set. tasks: how many it has; None where nobody knows. images: how many they
    share; None where each has its own. gib: GiB of one image, as published; 0 where it is not. of: the set whose images
    are measured together (`launch.images.set_of`); empty where there are several."""

    tasks: int | None = None
    images: int | None = None
    gib: float = 0.0
    of: str = ""

    def met(self, tasks: int) -> int:
        """Return how many images so many of its tasks have."""
        return tasks if self.images is None else min(tasks, self.images)


def task_images(recipe: Recipe, assumed: Assumptions) -> tuple[TaskImages, ...]:
    """Return the images of each set that the run meets; none where they lie on no machine of the cluster.

    Training goes through its tasks one after another, so that it meets as many as it begins groups, those that the
    filter drops among them, or all. An evaluation meets all of its own.
    """
    backend, data = make_backend(recipe.rollout.sandbox), recipe.data
    if not (backend.takes_images and backend.runs_here):
        return ()
    trained = dict(zip(data.training_sets, _shares(recipe), strict=True))
    begun = recipe.run.num_rollouts * recipe.rollout.batch_size / informative(recipe, assumed)
    sizes = measured(recipe.rollout.sandbox)
    met = {spec: ceil(share * begun) for spec, share in trained.items()}
    found = []
    for spec in dict.fromkeys((*met, *data.evaluation_sets.values())):
        known = _known(spec)
        if known is None:
            continue
        most = known.tasks if known.tasks is not None else met.get(spec, 0)
        tasks = most if spec in data.evaluation_sets.values() else min(most, met[spec])
        size = (assumed.image_gib, "assumed") if assumed.image_gib else size_of(known.of, known.gib, backend, sizes)
        found.append(TaskImages(spec, known.met(tasks), *size))
    return tuple(found)


def most_at_once(recipe: Recipe, found: tuple[TaskImages, ...], assumed: Assumptions) -> float:
    """Return the GiB of the images that lie on a machine at the same time, at most. Where the run removes images
    (`rollout.keep_disk_free`), room must be for those of one rollout's groups."""
    total, largest = sum(each.total for each in found), max((each.gib for each in found), default=0.0)
    if not recipe.rollout.keep_disk_free:
        return total
    return min(total, recipe.rollout.batch_size / informative(recipe, assumed) * largest)


def _shares(recipe: Recipe) -> list[float]:
    """Return the share of each training set in the groups that are begun; 1 for a set whose size is not known."""
    weights = list(recipe.data.weights)
    if weights:
        return [weight / sum(weights) for weight in weights]
    known = [_known(spec) for spec in recipe.data.training_sets]
    sizes = [found.tasks if found else None for found in known]
    total = sum(size or 0 for size in sizes)
    return [1.0 if size is None else size / total for size in sizes]


def tasks_of(spec: str) -> int | None:
    """Return how many tasks a set has, as far as its options say a number; None where nobody knows."""
    try:
        parsed = parse(spec)
        if parsed.file:
            return _of_file(parsed)[0]
        corpus = CORPORA.get(parsed.source)
        split = corpus.splits.get(parsed.split) if corpus else None
        return most_left(split.count if split else None, parsed.options)
    except (UserError, OSError):
        return None


def _known(spec: str) -> _Known | None:
    """Return what is known of a set; None where it has no images, or can't be read, which is said where it is read."""
    try:
        parsed = parse(spec)
        if parsed.file:
            tasks, images, of = _of_file(parsed)
            return _Known(tasks, images, of=of) if images else None
        if parsed.source not in CORPORA:
            return _Known() if "." in parsed.source else None  # our own sources make tasks of files
        corpus = CORPORA[parsed.source]
        if not corpus.in_images or parsed.split not in corpus.splits:
            return None
        split = corpus.splits[parsed.split]
        of = f"{parsed.source}:{parsed.split}"
        return _Known(most_left(split.count, parsed.options), split.images, split.image_gib, of)
    except (UserError, OSError):
        return None


def _of_file(spec: Spec) -> tuple[int, int, str]:
    """Count the tasks of a file and their images, and name the set of these. Raises `UserError`, `OSError`."""
    return _counted(spec.text, Path(spec.file).expanduser().stat().st_mtime_ns)


@lru_cache(maxsize=32)
def _counted(spec: str, changed: int) -> tuple[int, int, str]:
    """Count as `_of_file` does. changed: when the file was, without which an old answer would stay in the cache."""
    tasks = load_tasks(spec)
    images = {task.workspace.image.name: set_of(task) for task in tasks if task.workspace.image}
    sets = {*images.values()}
    return len(tasks), len(images), sets.pop() if len(sets) == 1 else ""
