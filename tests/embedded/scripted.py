"""A whole run in miniature: real plug-ins where they need no sandbox, a scripted agent, a small engine in a thread."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from argparse import Namespace
from pathlib import Path
from typing import Any

import aiohttp
import torch
from aiohttp import web

from slime_swe.embedded.forward import hidden_states
from slime_swe.embedded.model import Qwen2
from slime_swe.embedded.train_data import pack
from slime_swe.sample import Sample

PROMPT_TOKENS, CONTEXT_TOKENS, TURNS = 6, 3, 2


class NoProgress:
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.steps: list[tuple[int, dict[str, Any]]] = []
        self.evals: list[str] = []

    def on_phase(self, name):
        self.phases.append(name)

    def on_episode(self, evaluation, done, total):
        self.phases.append(f"{evaluation} {done}/{total}")

    def on_step(self, record):
        self.steps.append((record["rollout_id"], dict(record)))

    def on_eval(self, name, metrics):
        self.evals.append(name)


def make_args(checkpoint: Path, run_dir: Path, **changes: Any) -> Namespace:
    """A run of three steps of 4 x 4 episodes; the task files are made beside the run directory."""
    tasks = {
        name: str(write_tasks(run_dir.parent / f"{name}.jsonl", name, 6)) for name in ("train", "heldout", "unseen")
    }
    values = dict(
        hf_checkpoint=str(checkpoint), save=str(run_dir / "checkpoints"), load=None, num_rollout=3, seed=0,
        eval_interval=None, max_tokens_per_gpu=256, custom_generate_function_path="tests.embedded.scripted.generate",
        custom_rm_path="tests.embedded.scripted.reward",
        custom_reward_post_process_path="slime_swe.rewards.slime_plugin.post_process",
        dynamic_sampling_filter_path="slime_swe.rewards.slime_plugin.keep_group",
        data_source_path="slime_swe.data_sources.slime_plugin.TaskDataSource",
        custom_rollout_log_function_path="slime_swe.rollout.slime_plugin.log_rollout",
        custom_eval_rollout_log_function_path="slime_swe.rollout.slime_plugin.log_evaluation",
        rollout_batch_size=4, n_samples_per_prompt=4, n_samples_per_eval_prompt=2,
        rollout_max_response_len=6, rollout_max_context_len=64, rollout_temperature=1.0, rollout_top_p=1.0,
        rollout_top_k=-1, rollout_stop=None, rollout_stop_token_ids=None, rollout_skip_special_tokens=False,
        rollout_seed=0, rollout_shuffle=True, reward_key=None, group_rm=False,
        use_rollout_routing_replay=False, sglang_router_ip=None, sglang_router_port=None,
        sglang_server_concurrency=8, sglang_enable_deterministic_inference=True, advantage_estimator="grpo",
        eps_clip=0.2, eps_clip_high=0.28, use_kl_loss=False, kl_loss_coef=0.0, kl_loss_type="low_var_kl",
        entropy_coef=0.0, use_tis=False, tis_clip=2.0, tis_clip_low=0.0, eps_clip_c=None,
        use_rollout_logprobs=True, rewards_normalization=True, grpo_std_normalization=False,
        num_steps_per_rollout=2, optimizer="adam", lr=3e-3, lr_decay_style="constant", lr_warmup_iters=0,
        adam_beta1=0.9, adam_beta2=0.95, adam_eps=1e-8, weight_decay=0.0, clip_grad=1.0,
        swe_tasks=[tasks["train"]], swe_eval_tasks={name: tasks[name] for name in ("heldout", "unseen")},
        swe_agent="native", swe_tool_format="hermes", swe_system_prompt="", swe_max_turns=TURNS, swe_time_budget=30.0,
        swe_sandbox="local", swe_sandbox_concurrency=1, swe_reward_mode="plus_minus", swe_max_attempts=5,
        swe_max_over_sampling=2.0,
        swe_run_dir=str(run_dir), swe_threads=1, swe_keep_checkpoints=2,
    )  # fmt: skip
    return Namespace(**(values | changes))


def write_tasks(path: Path, split: str, count: int) -> Path:
    oracle = {"kind": "tests", "fail_to_pass": ["t::a"], "pass_to_pass": [], "protected": [], "command": "true",
              "timeout_seconds": 1}  # fmt: skip
    tasks = [
        {"id": f"{split}-{i}", "statement": f"{split} {i}", "workspace": {"files": {"a.py": ""}}, "oracle": oracle,
         "source": "scripted", "split": split, "metadata": {}}
        for i in range(count)
    ]  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return path


def prompt_of(sample: Sample) -> list[int]:
    digest = hashlib.sha256(str(sample.prompt).encode()).digest()
    return [3 + byte for byte in digest[:PROMPT_TOKENS]]


async def generate(args, sample, sampling_params, evaluation=False):
    """Two model calls with a few scripted tokens between them."""
    sample.tokens = prompt_of(sample)
    counters = {"edits": 1}
    async with aiohttp.ClientSession() as session:
        for turn in range(TURNS):
            if turn:
                sample.append_response_tokens(args, tokens=[5 + turn] * CONTEXT_TOKENS, trainable=False)
            seed = hash((args.rollout_seed, evaluation, sample.index, turn)) % 2**31
            body = {
                "input_ids": sample.tokens,
                "sampling_params": {**sampling_params, "sampling_seed": seed},
                "return_logprob": True,
            }
            url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}/generate"
            async with session.post(url, json=body) as response:
                answer = await response.json()
            triples = answer["meta_info"]["output_token_logprobs"]
            sample.append_response_tokens(
                args, tokens=[t[1] for t in triples], log_probs=[t[0] for t in triples], meta_info=answer["meta_info"]
            )
    sample.status = Sample.Status.COMPLETED
    sample.metadata["episode"] = {
        "patch": "", "stop_reason": "submitted", "detail": "", "turns": TURNS, "counters": counters,
        "timings": {"total": 0.2, "engine": 0.1, "sandbox": 0.1}, "evaluation": evaluation,
    }  # fmt: skip
    return sample


async def reward(args, sample):
    """+1 where most sampled tokens have an even id, else -1."""
    if isinstance(sample, list):
        return [await reward(args, one) for one in sample]
    sampled = [t for t, m in zip(sample.tokens[-sample.response_length :], sample.loss_mask, strict=True) if m]
    solved = sum(token % 2 == 0 for token in sampled) > len(sampled) / 2
    sample.metadata["score"] = {
        "value": 1.0 if solved else -1.0, "solved": solved, "components": {}, "evidence": {},
        "first_edit_solved": solved,
    }  # fmt: skip
    return sample.metadata["score"]["value"]


class TinyEngine:
    """SGLang's `/generate` and `/update_weights_from_disk` over a tiny model, on loopback, in a thread of its own."""

    def __init__(self, checkpoint: Path) -> None:
        self.model = Qwen2.load(checkpoint)
        self.versions: list[str] = []
        self.fail = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> TinyEngine:
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(self, *exc: object) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    @property
    def address(self) -> dict[str, Any]:
        return {"sglang_router_ip": "127.0.0.1", "sglang_router_port": self.port}

    async def _start(self) -> int:
        app = web.Application()
        app.add_routes(
            [web.post("/generate", self._generate), web.post("/update_weights_from_disk", self._update_weights)]
        )
        self._runner = web.AppRunner(app, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return site._server.sockets[0].getsockname()[1]

    async def _update_weights(self, request):
        body = await request.json()
        if self.fail:
            return web.json_response({"success": False, "message": "no such model"}, status=400)
        self.model = Qwen2.load(body["model_path"])
        self.versions.append(body["weight_version"])
        return web.json_response({"success": True, "message": ""})

    async def _generate(self, request):
        body = await request.json()
        params, tokens, triples = body["sampling_params"], list(body["input_ids"]), []
        generator = torch.Generator().manual_seed(params["sampling_seed"])
        for _ in range(params["max_new_tokens"]):
            with torch.no_grad():
                (tree,) = pack([tokens], len(tokens))
                hidden = hidden_states(self.model, tree, torch.tensor(tokens), torch.arange(len(tokens)))
                log_probs = torch.log_softmax(self.model.head_weight @ hidden[-1] / params["temperature"], 0)
            token = int(torch.multinomial(log_probs.exp(), 1, generator=generator))
            triples.append([float(log_probs[token]), token, None])
            tokens.append(token)
        meta = {"finish_reason": {"type": "length"}, "output_token_logprobs": triples, "weight_version": "x"}
        return web.json_response({"text": "", "output_ids": [t[1] for t in triples], "meta_info": meta})
