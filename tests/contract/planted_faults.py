"""Faults in real processes: what a rehearsal has left in FOLDER, with parts of it made again, wrongly.

python -m tests.contract.planted_faults FOLDER RECIPE [KEY=VALUE ...]

Prints each fault's name and the checks that fail, as JSON. Its process has no shims, so that Transformers is itself.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from pathlib import Path

import torch

from slime_swe.launch.config import resolve
from slime_swe.launch.progress import Bar
from slime_swe.launch.rehearse.checks import run_checks
from slime_swe.launch.rehearse.evidence import ROLLOUTS, Evidence
from slime_swe.launch.rehearse.platforms import platform_of
from slime_swe.launch.rehearse.rehearsal import PHASES, Rehearsal
from slime_swe.launch.rehearse.toy import one_rank
from slime_swe.launch.slime.job import Job


def half_of_the_rotation(made: Rehearsal, evidence: Evidence) -> Evidence:
    """In the trainer alone. SLiME refuses a base of the rotation that is not the checkpoint's, and no share of it."""
    edit = lambda job: replace(job, flags={**job.flags, "fault": ("--rotary-percent", "0.5")})  # noqa: E731
    return trained_again(made, evidence, "rotation", edit)


def shifted_masks_and_other_advantages(made: Rehearsal, evidence: Evidence) -> Evidence:
    """Masks that are shifted by one on their way to the trainer, and SLiME's own advantages in place of ours."""
    for number in range(len(evidence.rollouts)):
        dump = torch.load(made.source / ROLLOUTS.format(rollout_id=number), weights_only=False)
        for sample in dump["samples"]:
            sample["loss_mask"] = [0, *sample["loss_mask"][:-1]]
        target = made.run_of("shifted") / ROLLOUTS.format(rollout_id=number)
        target.parent.mkdir(parents=True, exist_ok=True)
        torch.save(dump, target)
    own = ("--custom-reward-post-process-path", "--disable-grpo-std-normalization")
    edit = lambda job: reduce(without, own, job)  # noqa: E731
    return trained_again(made, evidence, "edited", edit, made.run_of("shifted"))


def lost_optimizer_states(made: Rehearsal, evidence: Evidence) -> Evidence:
    shutil.rmtree(made.run_of("resume"))
    made.leave_last()
    job = made.replay(made.recipe, "resume", resume=True)
    asyncio.run(made.train("resume", replace(job, flags={**job.flags, "fault": ("--no-load-optim",)})))
    return replace(evidence, resumed=made.left("resume"))


FAULTS = (half_of_the_rotation, shifted_masks_and_other_advantages, lost_optimizer_states)


def trained_again(
    made: Rehearsal, evidence: Evidence, name: str, edit: Callable[[Job], Job], source: Path | None = None
) -> Evidence:
    """By one rank, with an edited command line or on other dumps."""
    asyncio.run(made.train(name, edit(made.replay(one_rank(made.recipe), name, source=source))))
    return replace(evidence, layout=made.left(name))


def without(job: Job, flag: str) -> Job:
    return replace(job, flags={heading: _without(words, flag) for heading, words in job.flags.items()})


def _without(words: tuple[str, ...], flag: str) -> tuple[str, ...]:
    if flag not in words:
        return words
    at = words.index(flag)
    end = next((place for place in range(at + 1, len(words)) if words[place].startswith("--")), len(words))
    return (*words[:at], *words[end:])


def main(folder: Path, recipe: str, overrides: list[str]) -> dict[str, list[str]]:
    with Bar("faults", len(PHASES)) as progress:
        made = Rehearsal(resolve(recipe, overrides), platform_of("cpu"), folder, progress)
        evidence = made.evidence()
        return {
            fault.__name__: [check.name for check in run_checks(fault(made, evidence)) if check.ok is False]
            for fault in FAULTS
        }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])))
