"""The embedded engine's speed, in CPU time of one thread, against transformers' `generate` in the same run.

The model has the shipped seed policy's shape and random weights, so lengths are set, not sampled.
- `decode_ms_N`: one step of N running rows, 330 tokens of context each, of which 208 are a common system prompt;
- `prefill_us`: one prompt token, in prompts of 300 that share nothing;
- `episode_*`: 128 episodes at once, 16 tasks × 8, each a few turns that read 25 tokens and write 10 to 30: microseconds
  per sampled token, everything included but HTTP;
- `cold_*`: 64 unrelated prompts of 250 to 350 tokens, 24 tokens each, ours and transformers' padded batch.

    python -m benchmarks.engine [--rounds N] [--episodes N] [--json] [--check] [--save]
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.baseline import Figures, add_options, conclude

from slime_swe.embedded.attention import Span
from slime_swe.embedded.decoder import Decoder
from slime_swe.embedded.kv_cache import KVCache
from slime_swe.embedded.model import ModelConfig, Qwen2
from slime_swe.embedded.requests import Completion, Request
from slime_swe.embedded.sampling import SamplingParams
from slime_swe.embedded.scheduler import Scheduler
from slime_swe.embedded.weights import read_config

BASELINE = Path(__file__).parent / "baselines" / "engine.json"
TOLERANCE = 1.5  # a ratio this many times worse than its baseline fails the check
SHAPE = read_config(Path(__file__).parents[1] / "embedded" / "seed" / "checkpoint")
TOKENS = range(3, SHAPE["vocab_size"])  # those before are special
SLOTS, CONTEXT, SYSTEM = 160, 640, 208


def measure(rounds: int, episodes: int) -> dict[str, float]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        _checkpoint(directory)
        scheduler = _scheduler(directory)
        figures = {f"decode_ms_{rows}": _decode(scheduler, rows, rounds) for rows in (16, 64, 128)}
        figures["prefill_us"] = _prefill(scheduler, rounds)
        figures |= _episodes(_scheduler(directory), episodes)
        figures |= _cold(directory, episodes // 2)
    return figures


def _checkpoint(directory: str) -> None:
    model = Qwen2(ModelConfig.from_dict(SHAPE))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.08, generator=generator)
    model.save(directory)


def _scheduler(directory: str) -> Scheduler:
    model, device = Qwen2.load(directory), torch.device("cpu")
    return Scheduler(Decoder(model, KVCache(model.config, SLOTS, CONTEXT, device), device), lambda ids: "")


def _best(function: Callable[[], object], rounds: int) -> float:
    """The fastest of several runs, CPU seconds: other processes on the machine only ever add."""
    function()
    times = []
    for _ in range(rounds):
        started = time.process_time()
        function()
        times.append(time.process_time() - started)
    return min(times)


def _decode(scheduler: Scheduler, rows: int, rounds: int) -> float:
    rng, decoder = random.Random(0), scheduler.decoder
    spans = [Span(slot, 329 - rng.randrange(60), [5]) for slot in range(rows)]
    return 1e3 * _best(lambda: decoder.forward(spans, [1] * rows), rounds)


def _prefill(scheduler: Scheduler, rounds: int) -> float:
    spans = [Span(slot, 0, [slot + 3] * 300) for slot in range(3)]
    return 1e6 / 900 * _best(lambda: scheduler.decoder.forward(spans, [1, 0, 0]), rounds)


class Episode:
    """A conversation that goes on, a few steps after each answer, until its turns are over."""

    def __init__(self, index: int, scheduler: Scheduler, tokens: list[int]) -> None:
        self.index, self.scheduler, self.tokens = index, scheduler, tokens
        self.rng = random.Random(index)
        self.turns = self.rng.randint(4, 8)
        self.sampled = self.waits = 0

    def send(self) -> None:
        params = SamplingParams(max_new_tokens=self.rng.randint(10, 30), ignore_eos=True)
        self.turns -= 1
        self.scheduler.add(Request(str(self.index), list(self.tokens), params, self.index, frozenset(), self.receive))

    def receive(self, completion: Completion) -> None:
        self.sampled += len(completion.output_ids)
        self.tokens += completion.output_ids + [self.rng.choice(TOKENS) for _ in range(25)]
        self.waits = self.rng.randint(1, 3) if self.turns else 0

    def tick(self) -> None:
        if self.waits:
            self.waits -= 1
            if not self.waits:
                self.send()


def _episodes(scheduler: Scheduler, count: int) -> dict[str, float]:
    rng = random.Random(0)
    system = [rng.choice(TOKENS) for _ in range(SYSTEM - 1)] + [2]
    tasks = [[rng.choice(TOKENS) for _ in range(60)] for _ in range(16)]
    episodes = [Episode(index, scheduler, system + tasks[index // 8]) for index in range(count)]
    started = time.process_time()
    for episode in episodes:
        episode.send()
    steps = 0
    while scheduler.busy or any(episode.waits for episode in episodes):
        if scheduler.busy:
            scheduler.step()
            steps += 1
        for episode in episodes:
            episode.tick()
    spent = time.process_time() - started
    sampled = sum(episode.sampled for episode in episodes)
    return {"episode_seconds": spent, "episode_token_us": 1e6 * spent / sampled, "episode_steps": float(steps)}


def _cold(directory: str, count: int) -> dict[str, float]:
    rng = random.Random(1)
    prompts = [[rng.choice(TOKENS) for _ in range(rng.randint(250, 350))] for _ in range(count)]
    ours = min(_cold_ours(directory, prompts) for _ in range(3))
    theirs = min(_cold_theirs(directory, prompts) for _ in range(3))
    return {"cold_seconds": ours, "cold_seconds_transformers": theirs, "cold_speedup": theirs / ours}


def _cold_ours(directory: str, prompts: list[list[int]]) -> float:
    scheduler = _scheduler(directory)
    done: list[Completion] = []
    started = time.process_time()
    for index, prompt in enumerate(prompts):
        params = SamplingParams(max_new_tokens=24, ignore_eos=True)
        scheduler.add(Request(str(index), list(prompt), params, index, frozenset(), done.append))
    while scheduler.busy:
        scheduler.step()
    assert len(done) == len(prompts)
    return time.process_time() - started


def _cold_theirs(directory: str, prompts: list[list[int]]) -> float:
    from transformers import Qwen2ForCausalLM

    model: Any = Qwen2ForCausalLM.from_pretrained(directory)
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    started = time.process_time()
    out = model.generate(ids, attention_mask=mask, max_new_tokens=24, do_sample=True, eos_token_id=None, pad_token_id=0)
    assert out.shape[1] == longest + 24
    return time.process_time() - started


def _slower(figures: Figures, baseline: Figures) -> list[str]:
    """Only ratios of figures of one run are compared with the baseline: they hold on other machines."""
    worse = []
    if figures["cold_speedup"] * TOLERANCE < baseline["cold_speedup"]:
        worse.append(f"cold_speedup is {figures['cold_speedup']:.2f}, baseline {baseline['cold_speedup']:.2f}")
    for name in ("episode_token_us", "decode_ms_128", "prefill_us"):
        ratio, expected = (f[name] / f["cold_seconds_transformers"] for f in (figures, baseline))
        if ratio > TOLERANCE * expected:
            worse.append(f"{name} is {figures[name]:.1f}, {ratio / expected:.2f} times its baseline for this machine")
    return worse


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9, help="of which the fastest counts (default: %(default)s)")
    parser.add_argument(
        "--episodes", type=int, default=128, help="at once; half as many prompts (default: %(default)s)"
    )
    add_options(parser)
    options = parser.parse_args()
    figures = {name: round(value, 3) for name, value in measure(options.rounds, options.episodes).items()}
    lines = [f"{name:>26} {value:10.3f}" for name, value in figures.items()]
    return conclude(options, figures, "\n".join(lines), BASELINE, _slower)


if __name__ == "__main__":
    sys.exit(main())
