"""What a grading gives: a `Trial`, one run of an oracle on one patch, and a `Score`, what the patch is worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from slime_swe.errors import InfrastructureError


class GraderError(InfrastructureError):
    """The grader itself failed, never the policy. The episode is aborted and tried again."""


@dataclass(frozen=True)
class Trial:
    """One run of an oracle on one patch.

    tests: each expected test → whether it passed; one that did not run failed. solved: the oracle's decision.
    exit_code: of what ran the tests, None where that is not known. details: further evidence, as plain JSON types.
    rejected: the outcome where the results are not to be believed (`details["rejection_reason"]` says why); reward 0.
    """

    tests: Mapping[str, bool]
    solved: bool
    log: str
    exit_code: int | None = None
    timed_out: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)
    rejected: Literal["", "forged", "special_cased"] = ""

    def share(self, names: tuple[str, ...]) -> float:
        """The share of these tests that passed; 1 where there are none."""
        return sum(self.tests[name] for name in names) / len(names) if names else 1.0


@dataclass(frozen=True)
class Score:
    """A reward value, what it is made of, and the evidence behind it.

    `solved` is the binary outcome that groups are filtered on, whatever shape `value` has.
    """

    value: float
    solved: bool
    components: Mapping[str, float] = field(default_factory=dict)
    evidence: Mapping[str, Any] = field(default_factory=dict)
