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
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from slime_swe.embedded.model import Qwen2
from slime_swe.embedded.seed.demonstrations import demonstration
from slime_swe.embedded.seed.gate import SPLITS, clean_share, gold_probability
from slime_swe.embedded.seed.tokenizer import train_tokenizer
from slime_swe.embedded.seed.train import SeedRun, new_model, train
from slime_swe.embedded.workers import set_threads
from slime_swe.rollout.chat.tokenizer import load_tokenizer

TOKENIZER_TEXTS = 4000
REPORT_EVERY = 10
GATE_EVERY = 100


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
    _train(model, tokenizer, run, out, {"runs": [], "curve": []})


def go_on(start: Path, out: Path, run: SeedRun) -> None:
    """Go on from a checkpoint of `make`, whatever step it was saved at."""
    before = json.loads((start / "training.json").read_text(encoding="utf-8"))
    _train(Qwen2.load(start), load_tokenizer(start), run, out, before)


def _train(model: Qwen2, tokenizer: Any, run: SeedRun, out: Path, before: dict[str, Any]) -> None:
    """Save at every gate, so that a run that is cut short leaves its newest state."""
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


if __name__ == "__main__":
    main()
