"""`Sample` is what the trainer receives: that of SLiME or its fork where one of them is installed, else `OwnSample`, a
stand-in with the same fields, statuses and appending rules. It is decided here alone.

Left out of the stand-in: multimodal inputs are carried but not interpreted, top-p replay data is refused
(`NotImplementedError`), and speculative decoding, which no engine without SLiME does, is not counted.
Upstream: slime/utils/types.py.
"""

from __future__ import annotations

import base64
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, Self

from slime_swe.dotted import module_of


class SampleStatus(Enum):
    """The status says what became of a sample. ABORTED: it was cut short from outside and is not scored."""

    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


_STATUS_OF_FINISH = {
    "length": SampleStatus.TRUNCATED,
    "abort": SampleStatus.ABORTED,
    "stop": SampleStatus.COMPLETED,
}


@dataclass
class _Counts:
    """Integers that add up over the model calls of a sample."""

    def to_dict(self) -> dict[str, int]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_dict(cls, data: dict[str, int]) -> Self:
        return cls(**{f.name: data.get(f.name, 0) for f in fields(cls)})


@dataclass
class SpeculationCounts(_Counts):
    """The counts of speculative decoding: what was drafted and what was accepted."""

    spec_accept_token_num: int = 0
    spec_draft_token_num: int = 0
    spec_verify_ct: int = 0
    completion_token_num: int = 0


@dataclass
class PrefixCacheCounts(_Counts):
    """The prompts' tokens, and those of them that the engine had cached."""

    cached_tokens: int = 0
    total_prompt_tokens: int = 0

    @property
    def prefix_cache_hit_rate(self) -> float:
        return self.cached_tokens / self.total_prompt_tokens if self.total_prompt_tokens else 0.0

    def add(self, meta_info: dict[str, Any]) -> None:
        self.cached_tokens += meta_info.get("cached_tokens", 0)
        self.total_prompt_tokens += meta_info.get("prompt_tokens", 0)


@dataclass
class OwnSample:
    """A sample with SLiME's fields. `loss_mask` and `rollout_log_probs` have length `response_length`."""

    Status = SampleStatus  # SLiME nests these classes
    SpecInfo = SpeculationCounts
    PrefixCacheInfo = PrefixCacheCounts

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: str | list[dict[str, str]] = ""
    tokens: list[int] = field(default_factory=list)
    multimodal_inputs: dict[str, Any] | None = None
    multimodal_train_inputs: dict[str, Any] | None = None
    multimodal_train_input_id: str | None = None
    apply_chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: float | dict[str, Any] | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    rollout_top_p_token_ids: list[int] | None = None
    rollout_top_p_token_offsets: list[int] | None = None
    rollout_routed_experts: Any = None
    remove_sample: bool = False
    teacher_log_probs: list[float] | None = None
    status: SampleStatus = SampleStatus.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    generate_function_path: str | None = None
    custom_rm_path: str | None = None
    train_metadata: dict[str, Any] | None = None
    session_id: str | None = None
    non_generation_time: float = 0.0
    spec_info: SpeculationCounts = field(default_factory=SpeculationCounts)
    prefix_cache_info: PrefixCacheCounts = field(default_factory=PrefixCacheCounts)

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes, those set later included, as plain types; `from_dict` is the inverse."""
        plain = {"status": self.status.value, "spec_info": self.spec_info.to_dict()}
        return {**self.__dict__, **plain, "prefix_cache_info": self.prefix_cache_info.to_dict()}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> OwnSample:
        values = {
            **data,
            "status": SampleStatus(data["status"]),
            "spec_info": SpeculationCounts.from_dict(data.get("spec_info", {})),
            "prefix_cache_info": PrefixCacheCounts.from_dict(data.get("prefix_cache_info", {})),
        }
        sample = OwnSample()
        for name, value in values.items():
            setattr(sample, name, value)
        return sample

    def get_reward_value(self, args: Any) -> Any:
        if args.reward_key and isinstance(self.reward, dict):
            return self.reward[args.reward_key]
        return self.reward

    @property
    def effective_response_length(self) -> int:
        return self.response_length if self.loss_mask is None else sum(self.loss_mask)

    def append_response_tokens(
        self,
        args: Any = None,
        *,
        tokens: Iterable[int] | None = None,
        log_probs: Iterable[float] | None = None,
        trainable: bool = True,
        meta_info: dict[str, Any] | None = None,
        text: str | None = None,
        update_terminal_info: bool = True,
    ) -> None:
        """Append to the response. Trainable tokens come with log-probabilities, context tokens without (mask 0).

        Raises `ValueError` where the two don't go together.
        """
        new = [int(token) for token in tokens or ()]
        probs = None if log_probs is None else [float(value) for value in log_probs]
        if new:
            self._extend(new, probs, trainable)
        self.response += text or ""
        if meta_info is not None:
            self._apply_meta_info(args, meta_info, update_terminal_info)

    def _extend(self, new: list[int], probs: list[float] | None, trainable: bool) -> None:
        if trainable != (probs is not None):
            need = "need" if trainable else "must not have"
            raise ValueError(f"{'trainable' if trainable else 'context'} tokens {need} log-probabilities")
        if probs is not None and len(probs) != len(new):
            raise ValueError(f"{len(new)} tokens came with {len(probs)} log-probabilities")
        if trainable and self.response_length and self.rollout_log_probs is None:
            raise ValueError("the response so far has no log-probabilities: trainable tokens can't follow it")
        before = self.response_length
        self.tokens += new
        self.response_length += len(new)
        self.loss_mask = ([1] * before if self.loss_mask is None else self.loss_mask) + [int(trainable)] * len(new)
        earlier = [0.0] * before if self.rollout_log_probs is None else self.rollout_log_probs
        self.rollout_log_probs = earlier + (probs if probs is not None else [0.0] * len(new))

    def _apply_meta_info(self, args: Any, meta_info: dict[str, Any], terminal: bool) -> None:
        if any(key.startswith("top_p_") for key in meta_info):
            raise NotImplementedError("top-p replay data needs SLiME's own Sample: install SLiME, or use top_p=1.0")
        if meta_info.get("routed_experts") is not None:
            self.rollout_routed_experts = _routed_experts(args, meta_info["routed_experts"], len(self.tokens) - 1)
        if not terminal or "finish_reason" not in meta_info:
            return
        self.prefix_cache_info.add(meta_info)
        if "weight_version" in meta_info:
            self.weight_versions.append(meta_info["weight_version"])
        self.status = _STATUS_OF_FINISH.get(meta_info["finish_reason"]["type"], self.status)


def _routed_experts(args: Any, encoded: str, rows: int) -> list[list[list[int]]]:
    """Decode base64 of int32 into one [layers][top-k] table per token but the last (which was never an input)."""
    flat = array("i", base64.b64decode(encoded))
    layers, top_k = args.num_layers, args.moe_router_topk
    if len(flat) != rows * layers * top_k:
        raise ValueError(f"{len(flat)} routed experts for {rows} tokens x {layers} layers x top {top_k}")
    picks = [flat[i : i + top_k].tolist() for i in range(0, len(flat), top_k)]
    return [picks[i : i + layers] for i in range(0, len(picks), layers)]


if TYPE_CHECKING:
    Sample = OwnSample
else:
    _theirs = module_of("utils.types")
    Sample = OwnSample if _theirs is None else _theirs.Sample


def set_routed_experts(args: Any, sample: Sample, table: bytes) -> None:
    """Give a filled sample the experts of its tokens: int32, tokens but the last x layers x top-k."""
    if hasattr(sample, "append_response_tokens"):
        sample.append_response_tokens(args, meta_info={"routed_experts": base64.b64encode(table).decode()})
    else:  # of miles, which has no such method and wants this array
        import numpy

        shape = (len(sample.tokens) - 1, args.num_layers, args.moe_router_topk)
        sample.rollout_routed_experts = numpy.frombuffer(table, numpy.int32).reshape(shape)
