"""Where an agent's commands run."""

from slime_swe.rollout.sandbox.base import ExecResult, Limits, Sandbox, SandboxError
from slime_swe.rollout.sandbox.pool import BACKENDS, SandboxPool, open_sandbox

__all__ = ["BACKENDS", "ExecResult", "Limits", "Sandbox", "SandboxError", "SandboxPool", "open_sandbox"]
