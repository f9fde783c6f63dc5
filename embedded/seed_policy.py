"""Make the seed policy that `tiny_cpu` starts from.

    python -m slime_swe.embedded.seed_policy --out embedded/seed/checkpoint

Trains the tokenizer and a small Qwen2 from random weights on procedurally generated demonstrations (see
`embedded.seed.demonstrations`), in one seeded run, and writes a Hugging Face checkpoint beside `training.json`, which
holds the settings, the loss curve and the gate figures.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from slime_swe.embedded.forward import MicroBatch, forward, micro_batches
from slime_swe.embedded.model import Attention, Layer, ModelConfig, Qwen2
from slime_swe.embedded.seed.demonstrations import GOLD_SHARE, MICRO_BATCH, Batch, Part, demonstration, pack
from slime_swe.embedded.seed.gate import SPLITS, clean_share, gold_probability
from slime_swe.embedded.seed.tokenizer import train_tokenizer
from slime_swe.embedded.trainer import sum_gradients
from slime_swe.embedded.workers import set_threads, worker_count
from slime_swe.rollout.chat.tokenizer import load_tokenizer

TOKENIZER_TEXTS = 4000
REPORT_EVERY = 10
GATE_EVERY = 100
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


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the seed policy of the tiny_cpu recipe.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--start", type=Path, help="go on from this checkpoint instead of random weights")
    for field in fields(SeedRun):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    options = parser.parse_args()
    set_threads(1)  # and one thread for each micro-batch
    run = SeedRun(**{field.name: getattr(options, field.name) for field in fields(SeedRun)})
    if options.start is None:
        make(options.out, run)
    else:
        go_on(options.start, options.out, run)


def make(out: Path, run: SeedRun) -> None:
    """Train a seed policy from random weights."""
    rng = random.Random(f"tokenizer {run.seed}")
    tokenizer = train_tokenizer("".join(p.text for p in demonstration(rng)) for _ in range(TOKENIZER_TEXTS))
    model = new_model(tokenizer, run.seed)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, vocabulary {len(tokenizer)}", flush=True)
    _train_and_save(model, tokenizer, run, out, {"runs": [], "curve": []})


def go_on(start: Path, out: Path, run: SeedRun) -> None:
    """Go on from a checkpoint of `make`, whatever step it was saved at."""
    before = json.loads((start / "training.json").read_text(encoding="utf-8"))
    _train_and_save(Qwen2.load(start), load_tokenizer(start), run, out, before)


def _train_and_save(model: Qwen2, tokenizer: Any, run: SeedRun, out: Path, before: dict[str, Any]) -> None:
    """Train, and save at every gate, so that a run that is cut short leaves its newest state."""
    curve = before["curve"]
    for metrics in train(model, tokenizer, run):
        if metrics["step"] % GATE_EVERY == 0 or metrics["step"] == run.steps:
            for split in SPLITS:
                metrics |= gold_probability(model, tokenizer, split)
                metrics[f"{split}/clean"] = clean_share(model, tokenizer, split)
            save(out, model, tokenizer, {"runs": [*before["runs"], asdict(run)], "curve": [*curve, metrics]})
        if metrics["step"] % REPORT_EVERY == 0:
            curve.append(metrics)
            print(" ".join(f"{name} {value:.4g}" for name, value in metrics.items()), flush=True)


def save(out: Path, model: Qwen2, tokenizer: Any, training: dict[str, Any]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    model.save(out)
    tokenizer.save_pretrained(out)
    (out / "training.json").write_text(json.dumps(training, indent=1) + "\n", encoding="utf-8")


# Supervised training on demonstrations, and what is measured while it runs.
@dataclass(frozen=True)
class SeedRun:
    """The sizes of one supervised run. The learning rate is flat and falls linearly to zero over the last part."""

    steps: int = 3000
    tokens_per_step: int = 10_000
    matrix_lr: float = 0.02  # Muon's, for what is not an embedding
    lr: float = 4e-3  # AdamW's, for embeddings, norms and biases
    warmup: int = 30
    decay_share: float = 0.4
    seed: int = 0
    gold_share: float = GOLD_SHARE

    def schedule(self, step: int) -> float:
        """Return the share of the peak learning rates at a step."""
        return min(1.0, (step + 1) / self.warmup, (self.steps - step) / (self.decay_share * self.steps))


def new_model(tokenizer: Any, seed: int) -> Qwen2:
    """Make a randomly initialised model for the tokenizer, which finds copying soon.

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
    """Return Muon for the hidden matrices, AdamW for the rest; each group remembers its peak rate."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    muon = torch.optim.Muon([{"params": matrices, "peak": run.matrix_lr}], lr=run.matrix_lr, weight_decay=0.01)
    adamw = torch.optim.AdamW([{"params": others, "peak": run.lr}], lr=run.lr, betas=(0.9, 0.95), weight_decay=0.0)
    return [muon, adamw]


def batches(tokenizer: Any, run: SeedRun) -> Iterator[Batch]:
    """Yield fresh demonstrations for ever: none is seen twice."""
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
    """Add up the losses, and the tokens that they are of, by kind of token."""
    sums: Counter[str] = Counter()
    for (sample, place), loss in zip(micro.source_N, loss_N.tolist(), strict=True):
        kinds = ["action" if batch.weights[sample][place] == 1.0 else "context"]
        if batch.repeats[sample][place]:
            kinds.append("copy")
        for kind in kinds:
            sums[kind] += loss
            sums[f"{kind}_tokens"] += 1
    return sums


if __name__ == "__main__":
    main()
