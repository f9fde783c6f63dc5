"""Where an agent's commands run."""

from slime_swe.sandbox.base import ExecResult, Limits, Sandbox, SandboxError
from slime_swe.sandbox.pool import BACKENDS, SandboxPool, open_sandbox

__all__ = ["BACKENDS", "ExecResult", "Limits", "Sandbox", "SandboxError", "SandboxPool", "open_sandbox"]
