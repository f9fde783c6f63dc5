"""Supervised training of the seed policy on demonstrations, and what is measured while it runs."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from slime_swe.data_sources.synthetic.tasks import PIECES
from slime_swe.embedded.forward import MicroBatch, forward, micro_batches
from slime_swe.embedded.model import Attention, Layer, ModelConfig, Qwen2
from slime_swe.embedded.seed.demonstrations import GOLD_SHARE, Part, demonstration
from slime_swe.embedded.train_data import TrainData
from slime_swe.embedded.trainer import sum_gradients
from slime_swe.embedded.workers import worker_count

MICRO_BATCH = 8192  # rows at most
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

    steps: int = 3000
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
    """Demonstrations as training data in which every token but a sequence's first is predicted.

    For each of those: its loss weight, and whether it is a piece of a name that its sequence has shown before.
    """

    data: TrainData
    weights: list[list[float]]
    repeats: list[list[bool]]


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
    """Tokenise transcripts part by part, as the agent loop does."""
    encode = tokenizer.backend_tokenizer.encode
    names = set(tokenizer.convert_tokens_to_ids([*PIECES, *(f"_{piece}" for piece in PIECES)]))
    tokens: list[list[int]] = []
    weights: list[list[float]] = []
    repeats: list[list[bool]] = []
    for transcript in transcripts:
        parts = [encode(part.text, add_special_tokens=False).ids for part in transcript]
        tokens.append(list(chain.from_iterable(parts)))
        weight_of = (1.0 if part.action else CONTEXT_WEIGHT for part in transcript)
        weights.append([weight for weight, ids in zip(weight_of, parts, strict=True) for _ in ids][1:])
        repeats.append(_repeats(tokens[-1], names)[1:])
    masks = [[1] * len(row) for row in weights]
    count = len(tokens)
    return Batch(
        TrainData(tokens, masks, [], [0.0] * count, list(range(count)), list(map(len, masks))), weights, repeats
    )


def _repeats(tokens: Sequence[int], names: Set[int]) -> list[bool]:
    """Whether each token is one of `names` and has been there before."""
    first = {token: place for place, token in reversed(list(enumerate(tokens)))}
    return [token in names and first[token] < place for place, token in enumerate(tokens)]


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


def train(model: Qwen2, tokenizer: Any, run: SeedRun) -> Iterator[dict[str, float]]:
    """Train in place; yields the metrics of every step."""
    optimizers = new_optimizers(model, run)
    parameters = list(model.parameters())
    workers = worker_count()
    started = time.perf_counter()
    seen = 0
    for step, batch in zip(range(run.steps), batches(tokenizer, run), strict=False):
        total = sum(map(sum, batch.weights))

        def work(micro: MicroBatch, batch: Batch = batch, total: float = total) -> tuple[Counter[str], Any]:
            taken_N = forward(model, micro, temperature=1.0)[0]
            weight_N = torch.tensor([batch.weights[sample][place] for sample, place in micro.source_N])
            loss = -(taken_N * weight_N).sum() / total
            return _sums(batch, micro, -taken_N.detach()), torch.autograd.grad(loss, parameters)

        micros = micro_batches(batch.data, range(len(batch.data)), MICRO_BATCH)
        sums: Counter[str] = Counter()
        for part in sum_gradients(parameters, work, micros, workers):
            sums.update(part)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * run.schedule(step)
            optimizer.step()
        seen += sum(map(len, batch.data.tokens))
        losses = {f"{name}_loss": sums[name] / sums[f"{name}_tokens"] for name in ("action", "context", "copy")}
        yield {"step": step + 1, **losses, "tokens": seen, "seconds": time.perf_counter() - started}


def _sums(batch: Batch, micro: MicroBatch, loss_N: Tensor) -> Counter[str]:
    """Losses, and tokens that they are of, by kind of token."""
    sums: Counter[str] = Counter()
    for (sample, place), loss in zip(micro.source_N, loss_N.tolist(), strict=True):
        kinds = ["action" if batch.weights[sample][place] == 1.0 else "context"]
        if batch.repeats[sample][place]:
            kinds.append("copy")
        for kind in kinds:
            sums[kind] += loss
            sums[f"{kind}_tokens"] += 1
    return sums
