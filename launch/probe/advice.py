"""What to change in a recipe after a first look at its policy: sentences, each with a field and its value."""

from __future__ import annotations

from slime_swe.launch.probe.look import ENOUGH, Look
from slime_swe.recipes.base import Recipe
from slime_swe.rollout.episode import StopReason

OFTEN = 0.25  # share of the episodes that a limit ends, from which on it is worth more
CUT = 0.1  # the same of turns


def advice(look: Look, recipe: Recipe) -> list[str]:
    """What to change, the most pressing first; empty where the recipe is fine as it is."""
    if not look.episodes:
        return [_broken(look, recipe)]
    found = [_broken(look, recipe)] if look.broken else []
    found += _calls(look)
    found += _limits(look, recipe)
    if look.acts:
        found += _rewards(look)
    return found


def _broken(look: Look, recipe: Recipe) -> str:
    count = sum(look.broken.values())
    reason, _ = max(look.broken.items(), key=lambda item: item[1])
    return (
        f"Infrastructure broke {count} of {count + look.episodes} episodes, most of them by {reason}. Mend that first: "
        f"slime-swe doctor recipe={recipe.name}"
    )


def _calls(look: Look) -> list[str]:
    """What keeps turns from holding a call."""
    if not look.turns:
        return ["The policy had no turn: the tasks' statements leave no room. Give it a larger rollout.max_context."]
    found, better = [], look.better_format
    if better:
        found.append(
            f"Set model.tool_format={better}: it reads a call in {look.read_by[better]} of {look.turns} turns, where "
            f"{look.tool_format} reads one in {look.with_call}."
        )
    if max(look.with_call, look.read_by.get(better, 0)) >= ENOUGH * look.turns:
        return found
    missing = look.turns - look.with_call
    if look.cut > missing / 2:
        return found  # more room may be all that it needs, which `_limits` says
    why = (
        f"its calls are malformed in {look.malformed} of {look.turns} turns"
        if look.malformed > look.without_call
        else f"it writes no call in {look.without_call} of {look.turns} turns, and no model.tool_format reads more"
    )
    return [
        *found,
        f"Begin with a warm start: {why}. Play tasks with a model that calls tools (slime-swe eval ... --output kept), "
        "choose solved episodes (slime-swe sft kept --out solved.jsonl), and set warm_start.data=solved.jsonl. Or take "
        "a model of the family that calls tools (model=ORG/NAME).",
    ]


def _limits(look: Look, recipe: Recipe) -> list[str]:
    """Limits of the recipe's that end many turns or episodes."""
    rollout, most = recipe.rollout, recipe.model.config.get("max_position_embeddings")
    found = []
    if look.cut > CUT * look.turns:
        found.append(
            f"Set rollout.max_response={2 * rollout.max_response}: its limit of {rollout.max_response} tokens cut "
            f"{look.cut} of {look.turns} turns before a call was complete."
        )
    full = look.stop_reasons.get(StopReason.CONTEXT_FULL, 0)
    if full > OFTEN * look.episodes:
        wider = min(2 * rollout.max_context, most) if isinstance(most, int) else 2 * rollout.max_context
        what = (
            f"Set rollout.max_context={wider}"
            if wider > rollout.max_context
            else f"Take easier tasks or a model of more context (this one was made for {most} tokens)"
        )
        found.append(f"{what}: {full} of {look.episodes} episodes filled their {rollout.max_context} tokens.")
    over = look.stop_reasons.get(StopReason.MAX_TURNS, 0)
    if over > OFTEN * look.episodes and look.share >= ENOUGH:
        found.append(
            f"Set rollout.max_turns={2 * rollout.max_turns}: {over} of {look.episodes} episodes used all of their "
            f"{rollout.max_turns}."
        )
    late = look.stop_reasons.get(StopReason.TIME_BUDGET, 0)
    if late > OFTEN * look.episodes:
        found.append(
            f"Set rollout.time_budget={2 * rollout.time_budget:g}: {late} of {look.episodes} episodes used all of "
            f"their {rollout.time_budget:g} seconds."
        )
    return found


def _rewards(look: Look) -> list[str]:
    """Outcomes that leave nothing to learn; with few episodes they are a hint, and no more."""
    low, high = (f"{100 * bound:.0f} %" for bound in look.interval)
    if look.solved == 0:
        return [
            f"No episode of {look.episodes} solved its task (a solve rate of {high} may look so): groups without a "
            "solved episode teach nothing. Take easier tasks (data.train, data.filters), or a warm start "
            "(warm_start.data)."
        ]
    if look.solved == look.episodes:
        return [
            f"All {look.episodes} episodes solved their tasks (a solve rate of {low} may look so): groups without an "
            "unsolved episode teach nothing. Take harder tasks (data.train, data.filters)."
        ]
    return []
