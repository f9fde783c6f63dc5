"""Sandboxes run an agent's commands. `base` says what they promise; `pool` opens those of a backend by its name."""

from slime_swe.sandbox.base import ExecResult, Limits, Sandbox, SandboxError
from slime_swe.sandbox.pool import BACKENDS, SandboxPool, open_sandbox

__all__ = ["BACKENDS", "ExecResult", "Limits", "Sandbox", "SandboxError", "SandboxPool", "open_sandbox"]
