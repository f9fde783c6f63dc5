"""Supervised training of the seed policy on demonstrations, and what is measured while it runs."""

from __future__ import annotations

import random
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from data_sources.embedded.tasks import fix
from embedded.model import ModelConfig, Qwen2
from embedded.optimizer import PolicyOptimizer
from embedded.seed.demonstrations import Part, Script, demonstration

CONTEXT_WEIGHT = 0.25  # of the language-model loss on what the policy is shown, beside 1 on what it says
ARCHITECTURE: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "attention_dropout": 0.0,
}


@dataclass(frozen=True)
class SeedRun:
    """Sizes of one supervised run. The learning rate is flat and falls linearly to zero over the last part."""

    steps: int = 1500
    tokens_per_step: int = 10_000
    lr: float = 5e-3
    warmup: int = 60
    decay_share: float = 0.35
    seed: int = 0

    def learning_rate(self, step: int) -> float:
        decay = self.decay_share * self.steps
        return self.lr * min(1.0, (step + 1) / self.warmup, (self.steps - step) / decay)


@dataclass(frozen=True)
class Batch:
    """Packed demonstrations: `weights_T` is the loss weight of predicting each token, 0 at each sequence's first."""

    tokens_T: Tensor
    positions_T: Tensor
    weights_T: Tensor
    offsets: list[int]


def new_model(tokenizer: Any, seed: int) -> Qwen2:
    """A randomly initialised model for the tokenizer: normal weights of deviation 0.02, zero biases."""
    torch.manual_seed(seed)
    special = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    model = Qwen2(ModelConfig.from_dict(ARCHITECTURE | special))
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.02)
    for layer in model.model.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
            torch.nn.init.zeros_(projection.bias)
    return model


def new_optimizer(model: Qwen2, run: SeedRun) -> PolicyOptimizer:
    args = Namespace(lr=run.lr, num_rollout=run.steps, num_steps_per_rollout=1, optimizer="muon", weight_decay=0.01)
    args.adam_beta1, args.adam_beta2, args.adam_eps = 0.9, 0.95, 1e-8
    return PolicyOptimizer(model, args)


def pack(tokenizer: Any, transcripts: Sequence[Sequence[Part]]) -> Batch:
    """Tokenise transcripts part by part, as the agent loop does, and lay them end to end."""
    encode = tokenizer.backend_tokenizer.encode
    tokens: list[int] = []
    weights: list[float] = []
    offsets = [0]
    for transcript in transcripts:
        for part in transcript:
            ids = encode(part.text, add_special_tokens=False).ids
            tokens += ids
            weights += [1.0 if part.action else CONTEXT_WEIGHT] * len(ids)
        weights[offsets[-1]] = 0.0
        offsets.append(len(tokens))
    positions = [p for start, end in pairwise(offsets) for p in range(end - start)]
    return Batch(torch.tensor(tokens), torch.tensor(positions), torch.tensor(weights), offsets)


def batches(tokenizer: Any, run: SeedRun) -> Iterator[Batch]:
    """Fresh demonstrations for ever: none is seen twice."""
    rng = random.Random(run.seed)
    while True:
        transcripts: list[list[Part]] = []
        size = 0
        while size < run.tokens_per_step:
            transcripts.append(demonstration(rng))
            size += sum(len(part.text) for part in transcripts[-1]) // 4
        yield pack(tokenizer, transcripts)


def log_probs(model: Qwen2, batch: Batch) -> Tensor:
    """Log-probability [T] of each token given those before it in its sequence; 0 at each sequence's first."""
    hidden_TxH = model.forward_packed(batch.tokens_T, batch.positions_T, batch.offsets)
    logits = model.logits(hidden_TxH[:-1])
    taken = -F.cross_entropy(logits, batch.tokens_T[1:], reduction="none")
    return F.pad(taken, (1, 0)) * (batch.weights_T > 0)


def train(model: Qwen2, tokenizer: Any, run: SeedRun) -> Iterator[dict[str, float]]:
    """Train in place; yields the metrics of every step."""
    optimizer = new_optimizer(model, run)
    started = time.perf_counter()
    seen = 0
    for step, batch in zip(range(run.steps), batches(tokenizer, run), strict=False):
        optimizer.base_lr = run.learning_rate(step)
        taken_T = log_probs(model, batch)
        loss = -(taken_T * batch.weights_T).sum() / batch.weights_T.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        model.zero_grad(set_to_none=True)
        seen += len(batch.tokens_T)
        acted = batch.weights_T == 1.0
        yield {
            "step": step + 1,
            "loss": loss.item(),
            "action_loss": -taken_T[acted].mean().item(),
            "context_loss": -taken_T[~acted & (batch.weights_T > 0)].mean().item(),
            "tokens": seen,
            "seconds": time.perf_counter() - started,
        }


@torch.no_grad()
def gold_probability(model: Qwen2, tokenizer: Any, split: str, count: int = 96) -> dict[str, float]:
    """How likely the policy is to look at the right file, and then to make the very fix, on `count` tasks of a split.

    `line` is the probability of choosing the right text to replace, `fix` that of the whole right edit.
    """
    transcripts = [_gold_transcript(random.Random(f"gate {split} {index}"), split) for index in range(count)]
    batch = pack(tokenizer, transcripts)
    taken_T = log_probs(model, batch)
    encode = tokenizer.backend_tokenizer.encode
    totals = {"view": 0.0, "line": 0.0, "fix": 0.0}
    for transcript, start in zip(transcripts, batch.offsets, strict=False):
        lengths = [len(encode(part.text, add_special_tokens=False).ids) for part in transcript]
        edit = start + sum(lengths[:3])
        head = len(encode(transcript[3].text.partition('", "new_str"')[0], add_special_tokens=False).ids)
        totals["view"] += taken_T[start + lengths[0] : start + sum(lengths[:2])].sum().exp().item()
        totals["line"] += taken_T[edit : edit + head].sum().exp().item()
        totals["fix"] += taken_T[edit : edit + lengths[3]].sum().exp().item()
    return {f"{split}/{name}": total / count for name, total in totals.items()}


def _gold_transcript(rng: random.Random, split: str) -> list[Part]:
    script = Script.draw(rng, split)
    script.edit(*(fix(script.repository) or ("", "")))
    return script.parts[:4]
