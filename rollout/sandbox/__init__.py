"""Where an agent's commands run."""

from rollout.sandbox.base import ExecResult, Limits, Sandbox, SandboxError
from rollout.sandbox.pool import BACKENDS, SandboxPool, open_sandbox

__all__ = ["BACKENDS", "ExecResult", "Limits", "Sandbox", "SandboxError", "SandboxPool", "open_sandbox"]
