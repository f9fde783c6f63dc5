"""`Score`: what a reward says of one episode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class GraderError(RuntimeError):
    """The grader itself failed: infrastructure, never the policy. The episode is aborted and tried again."""


@dataclass(frozen=True)
class Score:
    """A reward value, what it is made of, and the evidence behind it.

    `solved` is the binary outcome that groups are filtered on, whatever shape `value` has.
    """

    value: float
    solved: bool
    components: Mapping[str, float] = field(default_factory=dict)
    evidence: Mapping[str, Any] = field(default_factory=dict)
