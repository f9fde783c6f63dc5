"""Which settings a record can be asked about, and the recipe with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from slime_swe.errors import UserError
from slime_swe.launch.config import assemble, flatten, read_recipe
from slime_swe.launch.engines import engine_of
from slime_swe.launch.runs import RECIPE_FILE
from slime_swe.recipes.base import Recipe
from slime_swe.recipes.checks import refuse, wrong_fields
from slime_swe.rollout.scheduling.schedulers import SCHEDULES

ANSWERED = (
    "algorithm.estimator",
    "algorithm.reduction",
    "algorithm.normalize_rewards",
    "algorithm.std_normalization",
    "algorithm.steps_per_rollout",
    "algorithm.post_process",
    "algorithm.group_filter",
    "rollout.mask_truncated",
    "rollout.samples_per_task",
    "rollout.batch_size",
    "rollout.max_staleness",
    "reward.mode",
    "reward.overlong_tokens",
    "reward.overlong_turns",
    "reward.overlong_penalty",
    "reward.weights",
    "reward.last_mile",
    "reward.least_spread",
)
_RATIO = (
    *("clip_low", "clip_high", "dual_clip", "opsm_delta", "keep_old_actor", "rollout_logprobs"),
    *("mismatch", "mismatch_low", "mismatch_high", "mismatch_veto"),
)
_NOT_RECORDED = {
    "run.dir": "is given by --dir here",
    **{f"algorithm.{name}": "acts on the ratio to the trainer's own probabilities" for name in _RATIO},
    **{
        f"algorithm.{name}": "needs the distributions of the policy or of the reference policy"
        for name in ("kl_coef", "kl_type", "kl_in", "kl_unbiased", "entropy_coef")
    },
}
_REWARD = "slime_swe.rewards.slime_plugin.reward"


@dataclasses.dataclass(frozen=True)
class Asked:
    """The recipe of a run, and the one that is asked about. changed: the keys that differ, with their new values."""

    own: Recipe
    other: Recipe
    changed: dict[str, object]

    @property
    def records_dropped(self) -> bool:
        """True where the record has the groups that the run dropped."""
        return engine_of(self.own).records_dropped

    @property
    def is_subsample(self) -> bool:
        return "rollout.samples_per_task" in self.changed


def asked(folder: Path, overrides: Sequence[str]) -> Asked:
    """Read a run's recipe and apply the overrides to it.

    Raises `UserError` for a key that a record says nothing of, a value that is wrong, and one beyond this record.
    """
    own = read_recipe(folder / RECIPE_FILE)
    named = [text for text in overrides if text.startswith(("recipe=", "model="))]
    if named:
        raise UserError(_unanswered([named[0].partition("=")[0]]))
    other = assemble(str(folder / RECIPE_FILE), overrides)
    before, after = (dict(flatten(dataclasses.asdict(recipe))) for recipe in (own, other))
    changed = {key: value for key, value in after.items() if before[key] != value}
    if unknown := [key for key in changed if key not in ANSWERED]:
        raise UserError(_unanswered(unknown))
    refuse([violation for violation in wrong_fields(other) if violation.field in changed])
    found = Asked(own, other, changed)
    if beyond := "; ".join(_beyond(found)):
        raise UserError(beyond)
    return found


def _unanswered(keys: Sequence[str]) -> str:
    said = "; ".join(f"{key} {_NOT_RECORDED.get(key, 'changes what is sampled, or is not in it')}" for key in keys)
    return f"a record can't be asked about {', '.join(keys)}: {said}. It can be asked about {', '.join(ANSWERED)}"


def _beyond(found: Asked) -> Iterator[str]:
    """Yield what this record does not answer, of the fields that a record can answer."""
    own, other, changed = found.own, found.other, found.changed
    for key, of in (("rollout.samples_per_task", "episodes of each task"), ("rollout.batch_size", "groups a rollout")):
        name = key.partition(".")[2]
        have = getattr(own.rollout, name)
        if key in changed and getattr(other.rollout, name) > have:
            yield f"{key} can only be less than {have}: the record has no more {of}"
    schedule, function = own.rollout.schedule, own.reward.function
    if "rollout.max_staleness" in changed and not SCHEDULES[schedule].carries:
        yield f"rollout.max_staleness has no part in rollout.schedule={schedule}, where no group waits for new weights"
    if not other.algorithm.group_filter and own.algorithm.group_filter and not found.records_dropped:
        yield f"algorithm.group_filter can't be left out: engine={own.engine} records only what the run's filter kept"
    if any(key.startswith("reward.") for key in changed) and function != _REWARD:
        parts = "reward.mode, overlong_*, weights and last_mile"
        yield f"{parts} are parts of {_REWARD}, and the run has reward.function={function}"
    if other.reward.weights.get("diff") and not own.reward.weights.get("diff"):
        yield "reward.weights.diff needs the likeness to the gold patch, and the record of a run without it has none"
    if "reward.mode" in changed and "fraction" in (own.reward.mode, other.reward.mode):
        yield "reward.mode can change between plus_minus and binary: the record has no share of passed tests for each"


def limits(found: Asked) -> Iterator[str]:
    """Yield sentences on what this replay does not say."""
    yield (
        "A replay says what these episodes would have trained. It does not say what the policy would have learned: "
        "after the first update that differs, later rollouts would have been others."
    )
    if found.own.algorithm.kl_in == "reward" and found.own.algorithm.kl_coef:
        yield "The KL penalty that was taken off each token's advantage is not in the record, and not in these figures."
    if "algorithm.estimator" in found.changed:
        yield (
            "grpo, gspo and cispo differ by what the ratio does. The ratio is 1 before a rollout's first update, and "
            "there they have one gradient: that is what is shown. Later ratios are not in the record."
        )
    if found.changed and not found.records_dropped:
        yield f"engine={found.own.engine} records only the groups that it trained: what its filter dropped is lost."
    if "rollout.max_staleness" in found.changed:
        yield (
            "Groups beyond the bound are counted as dropped. A run under that bound would not have sampled them so "
            "early: it drops none for its age."
        )
