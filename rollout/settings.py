"""`RolloutSettings`: what the rollout plug-ins read out of SLiME's `args`, typed and checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from slime_swe.errors import UserError
from slime_swe.fields import Argument, Choice, Meta, read_arguments
from slime_swe.rollout.chat.tool_formats import TOOL_FORMATS
from slime_swe.rollout.grammar import Grammar, Kind
from slime_swe.rollout.scheduling.schedulers import SCHEDULES, SYNC

Truncation = Literal["time_budget", "max_turns", "context_full", "max_response"]  # values of `episode.TRUNCATED`
_WHOLE_DISTRIBUTION = {"rollout_top_p": 1.0, "rollout_top_k": -1}


@dataclass(frozen=True)
class RolloutSettings:
    """One run's settings: sizes in tokens, times in seconds. Hashable: they key what is opened once per event loop."""

    engine_host: Annotated[str, Argument("sglang_router_ip")]
    engine_port: Annotated[int, Argument("sglang_router_port")]
    checkpoint: Annotated[str, Argument("hf_checkpoint")]
    max_context: Annotated[
        int, Argument("rollout_max_context_len"), Meta(ge=1)
    ]  # of one episode, tool results included
    agent: Annotated[str, Argument("swe_agent")]
    tool_format: Annotated[str, Argument("swe_tool_format"), Choice(TOOL_FORMATS, dotted=True)]
    system_prompt: Annotated[str, Argument("swe_system_prompt")]
    max_turns: Annotated[int, Argument("swe_max_turns"), Meta(ge=1)]
    # Seconds of one episode, from when its sandbox is open, without its model calls.
    time_budget: Annotated[float, Argument("swe_time_budget"), Meta(gt=0)]
    sandbox: Annotated[str, Argument("swe_sandbox")]
    sandbox_concurrency: Annotated[int, Argument("swe_sandbox_concurrency"), Meta(ge=1)]
    run_dir: Annotated[Path, Argument("swe_run_dir")]
    seed: Annotated[int, Argument("rollout_seed")]
    # Each model call names its own sampling seed.
    deterministic: Annotated[bool, Argument("sglang_enable_deterministic_inference")] = False
    schedule: Annotated[str, Argument("swe_schedule"), Choice(SCHEDULES)] = SYNC
    # Stop reasons of episodes that are left out of the loss.
    mask_truncated: Annotated[tuple[Truncation, ...], Argument("swe_mask_truncated")] = ()
    tries: Annotated[int, Argument("swe_tries"), Meta(ge=1)] = 1
    no_call_turns: Annotated[int, Argument("swe_no_call_turns"), Meta(ge=1)] = 3
    evaluation: bool = False  # what an evaluation has of its own, as training may hold the rest meanwhile
    routing_replay: Annotated[bool, Argument("use_rollout_routing_replay")] = False
    layers: Annotated[int, Argument("num_layers")] = 0
    experts_per_token: Annotated[int, Argument("moe_router_topk")] = 0
    # GiB of the disk with the images; 0 removes none.
    keep_disk_free: Annotated[float, Argument("swe_keep_disk_free"), Meta(ge=0)] = 0.0
    # GPUs of an engine that each attend for their own requests.
    ranks: Annotated[int, Argument("sglang_dp_size"), Meta(ge=1)] = 1
    # Seconds of one episode, with its model calls; 0 for no bound.
    wall_time_budget: Annotated[float, Argument("swe_wall_time_budget"), Meta(ge=0)] = 0.0
    lora_rank: Annotated[int, Argument("lora_rank"), Meta(ge=0)] = 0  # the engines sample with an adapter
    chat_template: Annotated[str, Argument("swe_chat_template")] = ""  # a file, or a shipped one's name
    # The grammar that every reply follows, if any; see `grammar`.
    grammar: Annotated[str, Argument("swe_grammar")] = ""
    grammar_kind: Annotated[Kind, Argument("swe_grammar_kind")] = "regex"
    grammar_tolerance: Annotated[float, Argument("swe_grammar_tolerance"), Meta(ge=0, lt=1)] = 0.05
    # For an evaluation at an OpenAI-compatible endpoint: its address, the model's name there, and the environment's
    # variable that holds the key.
    endpoint: Annotated[str, Argument("swe_endpoint")] = ""
    endpoint_model: Annotated[str, Argument("swe_endpoint_model")] = ""
    endpoint_key: Annotated[str, Argument("swe_endpoint_key")] = ""

    @classmethod
    def from_args(cls, args: Any) -> RolloutSettings:
        """Read the settings in `args`. Raises `UserError` that names everything that is wrong."""
        for name, whole in _WHOLE_DISTRIBUTION.items():
            given = getattr(args, name, None)
            if given not in (None, whole):
                raise UserError(
                    f"args.{name} is {given}: training needs {whole}, since the log-probability of a token is that of "
                    "the whole distribution; evaluation may sample otherwise"
                )
        return read_arguments(cls, args)

    def of(self, *, evaluation: bool) -> RolloutSettings:
        """Return the settings of an evaluation's episodes, or of training's; the same where these take turns."""
        return replace(self, evaluation=evaluation and SCHEDULES[self.schedule] != SCHEDULES[SYNC])

    def grammar_of(self, *, evaluation: bool) -> Grammar | None:
        """Return the grammar of an evaluation's episodes, which are not trained, or of training's; None without one."""
        if not self.grammar:
            return None
        return Grammar(self.grammar_kind, self.grammar, None if evaluation else self.grammar_tolerance)

    @property
    def engine_url(self) -> str:
        is_ipv6 = ":" in self.engine_host and not self.engine_host.startswith("[")
        return f"http://{f'[{self.engine_host}]' if is_ipv6 else self.engine_host}:{self.engine_port}"
