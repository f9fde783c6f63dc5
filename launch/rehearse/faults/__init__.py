"""Fault drills: one part of a real run fails while one thing is under way, and what is lost is compared with promises.

`PARTS` are what fails, `MOMENTS` what is under way, and a `Drill` is one of each. A run of the drill is SLiME's own
`train.py` with a trainer rank and an SGLang engine, or two of that which fails, real on a CPU, with a toy of the
recipe's model.

Read `drill` next, which plays one from beginning to end: `injection` lets the part fail, and `outcome` judges what was
seen by what the docs promise.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slime_swe.errors import UserError, unknown
from slime_swe.rollout.retention import METADATA

FAILS_IN = 1  # the rollout whose sampling, step, save or update the fault comes in, of three: 0 is saved before


@dataclass(frozen=True)
class Part:
    """A part of a run that fails.

    title: the beginning of its process's title, as Ray and SGLang set it; empty where no single process fails. what:
    what fails, for people. number: that of the signal that it gets. count: how many of its kind the run has. nodes: how
    many the run has, an engine on each.
    """

    title: str
    what: str
    number: int = signal.SIGKILL
    count: int = 1
    nodes: int = 1


@dataclass(frozen=True)
class Moment:
    """A thing under way in a run.

    title: that of a process, by Ray the method that it runs. there, missing: paths below the run's folder that exist
    and that do not. seconds: how long it must have been so before the fault comes.
    """

    title: str
    there: str
    missing: str
    seconds: float = 0.0

    def of(self, rollout: int) -> Moment:
        """Return the moment with a rollout's paths."""
        numbers = {"before": rollout - 1, "rollout": rollout, "after": rollout + 1}
        there, missing = (path.format(**numbers) for path in (self.there, self.missing))
        return Moment(self.title, there, missing, self.seconds)


PARTS: Mapping[str, Part] = {
    "engine": Part("sglang::scheduler", "one of two SGLang servers: its scheduler is killed", count=2),
    "hung_engine": Part(
        "sglang::scheduler",
        "one of two SGLang servers no longer answers: its scheduler is stopped (SIGSTOP)",
        signal.SIGSTOP,
        count=2,
    ),
    "rank": Part("ray::MegatronTrainRayActor", "one of two trainer ranks is killed", count=2),
    "rollout_manager": Part("ray::RolloutManager", "SLiME's rollout manager is killed"),
    "router": Part(
        "ray::RolloutManager.__init__", "the router, which the rollout manager forks at its start, is killed"
    ),
    "gcs": Part("gcs_server", "the head node's Ray: its GCS is killed"),
    "raylet": Part("raylet", "the head node's Ray: its raylet is killed"),
    "machine": Part("", "every process of the run is killed at once, as when the machine fails"),
    "network": Part("", "the network to the second of two nodes, with one of two SGLang servers, is cut", nodes=2),
    "disk": Part("", "the disk of the run's folder is full"),
}
_TRAINER = "ray::MegatronTrainRayActor"
MOMENTS: Mapping[str, Moment] = {
    "rollout": Moment("ray::RolloutManager.generate", "dumps/rollout_{before}.pt", "dumps/rollout_{rollout}.pt", 0.5),
    "step": Moment(f"{_TRAINER}.train", "dumps/rollout_{rollout}.pt", "dumps/step_{rollout}.pt"),
    "save": Moment(
        f"{_TRAINER}.save_model",
        "checkpoints/iter_{rollout:07d}",
        f"checkpoints/iter_{{rollout:07d}}/{METADATA}",
    ),
    "update": Moment(f"{_TRAINER}.update_weights", "exports/{rollout}", "dumps/rollout_{after}.pt"),
}
WORD = "faults"  # of the command line


@dataclass(frozen=True)
class Drill:
    part: str
    moment: str

    @property
    def name(self) -> str:
        return f"{self.part}.{self.moment}"


DRILLS = tuple(Drill(part, moment) for part in PARTS for moment in MOMENTS)


def chosen(words: Sequence[str]) -> tuple[list[Drill], list[str]]:
    """Return the drills that `faults`, `faults=PART,...` or `faults=PART.MOMENT,...` ask for, and the other words.

    Raises `UserError` for a name that there is not.
    """
    asked = [word for word in words if word.partition("=")[0] == WORD]
    found: list[Drill] = []
    for name in (name for word in asked for name in (word.partition("=")[2] or "all").split(",")):
        matching = [drill for drill in DRILLS if name in ("all", drill.part, drill.name)]
        if not matching:
            raise UserError(unknown(WORD, name, ["all", *PARTS, *(drill.name for drill in DRILLS)]))
        found += matching
    return list(dict.fromkeys(found)), [word for word in words if word not in asked]
