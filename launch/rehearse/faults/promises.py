"""What the docs promise of a run that fails, each as a figure and its limit.

Adding one is a function here, and its line in `PROMISES`.
"""

from __future__ import annotations

from collections.abc import Callable

from slime_swe.launch.rehearse.checks import Check, Measured
from slime_swe.launch.rehearse.faults.evidence import Left, Seen


def resumed(seen: Seen) -> Measured:
    """Exit code of `--resume`, or of the run itself where it went on."""
    code = seen.code if seen.resumed is None else seen.resumed
    return Measured(abs(code or 0), 0)


def lost_records(seen: Seen) -> Measured:
    """Records of rollouts that a checkpoint had seen, which are gone or are others in the end."""
    kept = {episode.record for episode in seen.finally_.episodes}
    left = (seen.at_fault, seen.at_end)
    settled = {one.record for found in left for one in found.episodes if one.rollout <= found.checkpoint}
    return Measured(len(settled - kept), 0)


def repeated_steps(seen: Seen) -> Measured:
    """Training steps that were made, and made again by the resumed run."""
    return Measured(len(again(seen)), seen.save_interval)


def again(seen: Seen) -> list[int]:
    """Rollouts whose training step was made twice."""
    return [number for number, when in seen.at_end.steps.items() if seen.finally_.steps.get(number) != when]


def repeated_episodes(seen: Seen) -> Measured:
    """Episodes in the journal that were played again: those of a rollout for each step that may be lost."""
    return Measured(len(replayed(seen)), seen.save_interval * seen.groups * seen.episodes)


def replayed(seen: Seen) -> set[int]:
    """Trajectories of the journal whose records are others in the end."""
    kept = {episode.record for episode in seen.finally_.episodes}
    return {episode.trajectory for episode in seen.at_end.episodes if episode.record not in kept}


def twice(seen: Seen) -> Measured:
    """Records of the journal beyond an episode's first rollout, or that stand there twice."""
    found = seen.finally_.episodes
    rollouts = {(episode.trajectory, episode.rollout) for episode in found}
    trajectories = {episode.trajectory for episode in found}
    copies = len(found) - len({(episode.trajectory, episode.record) for episode in found})
    return Measured(len(rollouts) - len(trajectories) + copies, 0)


def missing_episodes(seen: Seen) -> Measured:
    """Episodes that the journal lacks in the end."""
    wanted = seen.rollouts * seen.groups * seen.episodes
    return Measured(max(0, wanted - len({episode.trajectory for episode in seen.finally_.episodes})), 0)


def skipped_groups(seen: Seen) -> Measured:
    """Groups of the task order that were passed over."""
    groups = {episode.group for episode in seen.finally_.episodes}
    return Measured(len(set(range(max(groups, default=-1) + 1)) - groups), 0)


def missing_steps(seen: Seen) -> Measured:
    """Rollouts that were not trained on in the end."""
    return Measured(len(set(range(seen.rollouts)) - seen.finally_.steps.keys()), 0)


def trained_failures(seen: Seen) -> Measured:
    """Episodes that infrastructure broke and that are in the loss."""
    return Measured(sum(episode.broken and not episode.removed for episode in seen.finally_.episodes), 0)


def processes(seen: Seen) -> Measured:
    """Processes of the run that outlive its driver."""
    return Measured(len(seen.processes), 0)


PROMISES: dict[str, tuple[Callable[[Seen], Measured], str]] = {  # name -> function, and where it is promised
    "resumed": (resumed, "docs/quickstart.md: --resume goes on, however the run was stopped"),
    "lost_records": (lost_records, "docs/quickstart.md: no sample is lost"),
    "repeated_steps": (repeated_steps, "docs/clusters.md: the work since the last checkpoint is lost, and no more"),
    "repeated_episodes": (repeated_episodes, "docs/clusters.md: an interrupted rollout is played again, and no other"),
    "twice": (twice, "docs/quickstart.md: no sample is counted twice"),
    "missing_episodes": (missing_episodes, "docs/quickstart.md: no sample is lost"),
    "skipped_groups": (skipped_groups, "docs/clusters.md: no task is skipped"),
    "missing_steps": (missing_steps, "docs/quickstart.md: --resume goes on to the end"),
    "trained_failures": (trained_failures, "docs/plugins.md: what infrastructure broke is in no loss"),
    "processes": (processes, "docs/clusters.md: when a run ends, every process of it does"),
}


def compare(seen: Seen) -> list[Check]:
    """Every promise with what was seen of it."""
    found = [(name, measure(seen), where) for name, (measure, where) in PROMISES.items()]
    return [Check(name, one.ok, one.value, one.limit, where) for name, one, where in found]


def resumes_from(left: Left) -> str:
    """For people: what a resumption of the run begins with."""
    return "the model's weights" if left.checkpoint < 0 else f"the checkpoint of rollout {left.checkpoint}"
