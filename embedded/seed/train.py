"""Supervised training of the seed policy on demonstrations, and what is measured while it runs."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from data_sources.embedded.names import PIECES
from embedded.model import Attention, Layer, ModelConfig, Qwen2
from embedded.seed.demonstrations import GOLD_SHARE, Part, Script, demonstration, gold_edit

CONTEXT_WEIGHT = 0.25  # of the language-model loss on what the policy is shown, beside 1 on what it says
EMBEDDING_STD = 0.05
MIMETIC_GAIN = 0.1
ARCHITECTURE: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
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
    matrix_lr: float = 0.02  # Muon's, for what is not an embedding
    lr: float = 4e-3  # AdamW's, for embeddings, norms and biases
    warmup: int = 30
    decay_share: float = 0.4
    seed: int = 0
    gold_share: float = GOLD_SHARE

    def schedule(self, step: int) -> float:
        """Share of the peak learning rates at a step."""
        return min(1.0, (step + 1) / self.warmup, (self.steps - step) / (self.decay_share * self.steps))


@dataclass(frozen=True)
class Batch:
    """Packed demonstrations: `weights_T` is the loss weight of predicting each token, 0 at each sequence's first."""

    tokens_T: Tensor
    positions_T: Tensor
    weights_T: Tensor
    repeats_T: Tensor  # whether a token is a piece of a name that its sequence has shown before
    offsets: list[int]


def new_model(tokenizer: Any, seed: int) -> Qwen2:
    """A randomly initialised model for the tokenizer, made to find copying soon.

    Embeddings are wide enough to tell names apart from the start; value and output projections of each head begin as
    near inverses of each other, so that what a head attends to is what it passes on ("mimetic" initialisation,
    Trockman & Kolter 2023, arXiv:2305.09828).
    """
    generator = torch.Generator().manual_seed(seed)
    special = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    model = Qwen2(ModelConfig.from_dict(ARCHITECTURE | special))
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            std = EMBEDDING_STD if "embed" in name else 0.02
            torch.nn.init.normal_(parameter, std=std, generator=generator)
    for layer in model.model.layers:
        assert isinstance(layer, Layer)
        _make_mimetic(layer.self_attn, model.config, generator)
    return model


@torch.no_grad()
def _make_mimetic(attention: Attention, config: ModelConfig, generator: torch.Generator) -> None:
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
        projection.bias.zero_()
    value_KDxH = torch.empty_like(attention.v_proj.weight)
    torch.nn.init.orthogonal_(value_KDxH, generator=generator)
    attention.v_proj.weight.copy_(value_KDxH)
    per_group = config.num_attention_heads // config.num_key_value_heads
    heads = value_KDxH.view(config.num_key_value_heads, config.head_dim, -1).repeat_interleave(per_group, 0)
    attention.o_proj.weight.copy_(MIMETIC_GAIN * heads.flatten(0, 1).T)


def new_optimizers(model: Qwen2, run: SeedRun) -> list[torch.optim.Optimizer]:
    """Muon for the hidden matrices, AdamW for the rest; each group remembers its peak rate."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    muon = torch.optim.Muon([{"params": matrices, "peak": run.matrix_lr}], lr=run.matrix_lr, weight_decay=0.01)
    adamw = torch.optim.AdamW([{"params": others, "peak": run.lr}], lr=run.lr, betas=(0.9, 0.95), weight_decay=0.0)
    return [muon, adamw]


def pack(tokenizer: Any, transcripts: Sequence[Sequence[Part]]) -> Batch:
    """Tokenise transcripts part by part, as the agent loop does, and lay them end to end."""
    encode = tokenizer.backend_tokenizer.encode
    tokens: list[int] = []
    weights: list[float] = []
    offsets = [0]
    names = set(tokenizer.convert_tokens_to_ids([*PIECES, *(f"_{piece}" for piece in PIECES)]))
    repeats: list[bool] = []
    for transcript in transcripts:
        seen: set[int] = set()
        for part in transcript:
            ids = encode(part.text, add_special_tokens=False).ids
            tokens += ids
            weights += [1.0 if part.action else CONTEXT_WEIGHT] * len(ids)
            for token in ids:
                repeats.append(token in seen)
                seen |= {token} & names
        weights[offsets[-1]] = 0.0
        offsets.append(len(tokens))
    positions = [p for start, end in pairwise(offsets) for p in range(end - start)]
    return Batch(torch.tensor(tokens), torch.tensor(positions), torch.tensor(weights), torch.tensor(repeats), offsets)


def batches(tokenizer: Any, run: SeedRun) -> Iterator[Batch]:
    """Fresh demonstrations for ever: none is seen twice."""
    rng = random.Random(run.seed)
    while True:
        transcripts: list[list[Part]] = []
        size = 0
        while size < run.tokens_per_step:
            transcripts.append(demonstration(rng, run.gold_share))
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
    optimizers = new_optimizers(model, run)
    started = time.perf_counter()
    seen = 0
    for step, batch in zip(range(run.steps), batches(tokenizer, run), strict=False):
        taken_T = log_probs(model, batch)
        loss = -(taken_T * batch.weights_T).sum() / batch.weights_T.sum()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * run.schedule(step)
            optimizer.step()
        model.zero_grad(set_to_none=True)
        seen += len(batch.tokens_T)
        acted = batch.weights_T == 1.0
        yield {
            "step": step + 1,
            "loss": loss.item(),
            "action_loss": -taken_T[acted].mean().item(),
            "context_loss": -taken_T[~acted & (batch.weights_T > 0)].mean().item(),
            "copy_loss": -taken_T[batch.repeats_T].mean().item(),
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
    script.edit(gold_edit(script))
    return script.parts[:4]
