"""Measure what a seed policy must be able to do before reinforcement learning.

    python -m slime_swe.embedded.seed.gate CHECKPOINT

It looks at the right file, makes the very fix with a fair probability, and its edits are clean: the module anew, with
at most one function changed.
"""

from __future__ import annotations

import argparse
import ast
import math
import random
from pathlib import Path
from typing import Any

from slime_swe import syntax
from slime_swe.embedded.exact_forward import Decoder, KVCache
from slime_swe.embedded.forward import recompute_log_probs
from slime_swe.embedded.model import Qwen2
from slime_swe.embedded.sampling import SamplingParams
from slime_swe.embedded.scheduler import Request, Scheduler
from slime_swe.embedded.seed.demonstrations import MICRO_BATCH, Script, gold_edit, pack
from slime_swe.embedded.workers import set_threads, worker_count
from slime_swe.rollout.chat.tokenizer import load_tokenizer
from slime_swe.rollout.chat.tool_formats import parse

SPLITS = ("train", "heldout", "unseen")
TASKS = 96
TURN_END = "<|im_end|>"
MAX_EDIT = 160  # tokens


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a seed policy on tasks of each split.")
    parser.add_argument("checkpoint", type=Path)
    checkpoint = parser.parse_args().checkpoint
    set_threads(1)
    model, tokenizer = Qwen2.load(checkpoint), load_tokenizer(checkpoint)
    for split in SPLITS:
        figures = gold_probability(model, tokenizer, split)
        figures[f"{split}/clean"] = clean_share(model, tokenizer, split)
        print(" ".join(f"{name} {value:.2f}" for name, value in figures.items()), flush=True)


def gold_probability(model: Qwen2, tokenizer: Any, split: str, count: int = TASKS) -> dict[str, float]:
    """Return how likely the policy is to look at the right file (`view`) and then to make the very fix (`fix`), on a
    split's tasks."""
    scripts = _scripts(split, count)
    for script in scripts:
        script.edit(gold_edit(script))
    transcripts = [script.parts[:4] for script in scripts]
    data = pack(tokenizer, transcripts).data
    workers = worker_count()
    taken = recompute_log_probs(model, data, range(len(data)), 1.0, MICRO_BATCH, workers)
    encode = tokenizer.backend_tokenizer.encode
    totals = {"view": 0.0, "fix": 0.0}
    for transcript, of_tokens in zip(transcripts, taken, strict=True):
        shown, view, module, edit = (len(encode(part.text, add_special_tokens=False).ids) for part in transcript)
        for name, start, length in (("view", shown, view), ("fix", shown + view + module, edit)):
            totals[name] += math.exp(sum(of_tokens[start - 1 : start + length - 1]))
    return {f"{split}/{name}": total / count for name, total in totals.items()}


def clean_share(model: Qwen2, tokenizer: Any, split: str, count: int = TASKS) -> float:
    """Return the share of first edits, at temperature 1, that write the module with at most one function changed."""
    scripts = _scripts(split, count)
    said = sample_turns(model, tokenizer, ["".join(part.text for part in script.parts) for script in scripts])
    return sum(map(is_clean, said, scripts)) / count


def is_clean(turn: str, script: Script) -> bool:
    """Say whether a turn writes a transcript's buggy module anew, each function but one as it was looked at."""
    calls = parse(turn, "qwen3_coder").calls
    if len(calls) != 1 or calls[0].name != "str_replace":
        return False
    given = calls[0].arguments
    if given.get("path") != script.module.path or "old_str" in given:
        return False
    try:
        after = syntax.parse(str(given.get("new_str"))).body
    except SyntaxError:
        return False
    before = syntax.parse(script.repository.buggy_module.source).body
    changed = sum(ast.dump(old) != ast.dump(new) for old, new in zip(before, after, strict=False))
    return len(before) == len(after) and changed <= 1


def sample_turns(model: Qwen2, tokenizer: Any, prompts: list[str]) -> list[str]:
    """Return what the policy says after each prompt, without the token that ends a turn."""
    cache = KVCache(model.config, len(prompts), model.config.max_position_embeddings)
    scheduler = Scheduler(Decoder(model, cache), tokenizer.decode)
    said = [""] * len(prompts)
    for index, prompt in enumerate(prompts):

        def finish(completion: Any, index: int = index) -> None:
            said[index] = tokenizer.decode(completion.output_ids).removesuffix(TURN_END)

        tokens = tokenizer.encode(prompt, add_special_tokens=False)
        params = SamplingParams(max_new_tokens=MAX_EDIT)
        scheduler.add(Request(str(index), tokens, params, index, frozenset({tokenizer.eos_token_id}), finish))
    while scheduler.busy:
        scheduler.step()
    return said


def _scripts(split: str, count: int) -> list[Script]:
    """Open transcripts in which the module has been looked at, the same at every call."""
    return [Script.draw(random.Random(f"gate {split} {index}"), split) for index in range(count)]


if __name__ == "__main__":
    main()
