"""`RolloutSettings`: everything that the rollout and reward plug-ins read out of SLiME's `args`, typed and checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_sources.arguments import ArgumentError, read, read_choice, read_number
from rollout.chat.parsers import PARSERS

TOOL_FORMATS = tuple(PARSERS)
REWARD_MODES = ("plus_minus", "binary", "fraction")
HARNESSES = ("sandboxed", "official")


@dataclass(frozen=True)
class RolloutSettings:
    """One run's rollout. Sizes in tokens, times in seconds. Hashable: it keys what is opened once per event loop."""

    engine_url: str
    checkpoint: str
    max_context: int  # of one episode, prompt and tool results included
    agent: str
    tool_format: str
    system_prompt: str
    max_turns: int
    time_budget: float  # of one episode, from when its sandbox is open, without its model calls
    sandbox: str
    sandbox_concurrency: int
    reward_mode: str
    harness: str  # who runs SWE-bench's eval scripts: our sandboxes, or swebench itself on Docker
    harness_python: str  # an interpreter that has swebench; empty: this one
    max_attempts: int  # of an episode or a grading that infrastructure broke
    run_dir: Path
    seed: int
    deterministic: bool  # each model call names its own sampling seed
    routing_replay: bool

    @classmethod
    def from_args(cls, args: Any) -> RolloutSettings:
        """Raises `ArgumentError`, which names the attribute that is missing or wrong."""
        _require_whole_distribution(args)
        return cls(
            engine_url=_engine_url(args),
            checkpoint=read(args, "hf_checkpoint", str),
            max_context=read_number(args, "rollout_max_context_len", int, minimum=1),
            agent=read(args, "swe_agent", str),
            tool_format=read_choice(args, "swe_tool_format", TOOL_FORMATS),
            system_prompt=read(args, "swe_system_prompt", str),
            max_turns=read_number(args, "swe_max_turns", int, minimum=1),
            time_budget=read_number(args, "swe_time_budget", float, minimum=0.001),
            sandbox=read(args, "swe_sandbox", str),
            sandbox_concurrency=read_number(args, "swe_sandbox_concurrency", int, minimum=1),
            reward_mode=read_choice(args, "swe_reward_mode", REWARD_MODES),
            harness=read_choice(args, "swe_harness", HARNESSES, default="sandboxed"),
            harness_python=read(args, "swe_harness_python", str, default=""),
            max_attempts=read_number(args, "swe_max_attempts", int, minimum=1),
            run_dir=Path(read(args, "swe_run_dir", str)),
            seed=read(args, "rollout_seed", int),
            deterministic=read(args, "sglang_enable_deterministic_inference", bool, default=False),
            routing_replay=read(args, "use_rollout_routing_replay", bool, default=False),
        )


def _require_whole_distribution(args: Any) -> None:
    for name, whole in (("rollout_top_p", 1.0), ("rollout_top_k", -1)):
        given = getattr(args, name, None)
        if given not in (None, whole):
            raise ArgumentError(
                f"args.{name} is {given}: training needs {whole}, since the log-probability of a token is that of the "
                "whole distribution; evaluation may sample otherwise"
            )


def _engine_url(args: Any) -> str:
    host = read(args, "sglang_router_ip", str)
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"  # IPv6
    return f"http://{host}:{read(args, 'sglang_router_port', int)}"
