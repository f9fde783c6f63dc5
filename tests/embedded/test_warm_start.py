"""A warm start in miniature: supervised steps on episodes that repair what they are about teach how to repair."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from slime_swe.embedded.forward import recompute_log_probs
from slime_swe.embedded.seed.demonstrations import Script, play
from slime_swe.embedded.train_data import TrainData
from slime_swe.embedded.trainer import Trainer
from slime_swe.launch.config import resolve
from slime_swe.launch.model import EMBEDDED_SEED, checkpoint_folder
from slime_swe.launch.slime.render import to_args
from slime_swe.launch.warm_start import stage_of
from slime_swe.rollout.chat.tokenizer import load_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def episodes(split: str, seed: int, count: int, gold_share: float) -> TrainData:
    """Transcripts of which so many edits are right, in which what the policy says is trained."""
    encode = load_tokenizer(str(checkpoint_folder(EMBEDDED_SEED))).backend_tokenizer.encode
    rng, tokens, masks = random.Random(seed), [], []
    for _ in range(count):
        script = Script.draw(rng, split)
        play(rng, script, gold_share)
        parts = [(encode(part.text, add_special_tokens=False).ids, part.action) for part in script.parts]
        tokens.append([token for ids, _ in parts for token in ids])
        masks.append([int(action) for ids, action in parts for _ in ids][1:])
    zeros = [[0.0] * len(mask) for mask in masks]
    return TrainData(tokens, masks, zeros, [0.0] * count, [*range(count)], [sum(mask) for mask in masks])


def cross_entropy(trainer: Trainer, data: TrainData) -> float:
    found = recompute_log_probs(trainer.model, data, range(len(data)), 1.0, 8192, 2)
    return -sum(map(sum, found)) / sum(data.mask_sums)


def trained(folder: Path, gold_share: float, held_out: TrainData) -> tuple[float, float]:
    """Cross entropy of the right repairs of held-out tasks, before and after."""
    (folder / "solved.jsonl").write_text('{"episode": "a", "task": "a", "tokens": [1, 2], "loss_mask": [1]}\n')
    changes = {"data": str(folder / "solved.jsonl"), "batch_size": 1, "epochs": 8, "lr": 1e-3}
    recipe = resolve("tiny_cpu", [f"warm_start.{key}={value}" for key, value in changes.items()])
    trainer = Trainer(to_args(stage_of(recipe, folder), folder))
    before = cross_entropy(trainer, held_out)
    for step in range(8):
        trainer.train(episodes("train", step, 12, gold_share))
    return before, cross_entropy(trainer, held_out)


def test_right_repairs_of_held_out_tasks_become_likelier_and_by_wrong_ones_they_do_not(tmp_path):
    held_out = episodes("heldout", 1, 16, 1.0)
    before, after = trained(tmp_path, 1.0, held_out)
    _, control = trained(tmp_path, 0.0, held_out)
    assert after < 0.9 * before
    assert control > before
