"""What a rehearsal leaves behind, made in seconds: a toy samples, learns and is resumed by Transformers and PyTorch.

The files are SLiME's and ours: dumps of rollouts and steps, exports, a journal of episodes. No check takes part.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from slime_swe.data_sources.registry import load_tasks
from slime_swe.launch.config import resolve
from slime_swe.launch.plan.training import layout_of, shard
from slime_swe.launch.rehearse import jobs
from slime_swe.launch.rehearse.evidence import ROLLOUTS, STEPS, Evidence, Reference, Trainer, read_rollouts, read_steps
from slime_swe.launch.rehearse.platforms import Platform
from slime_swe.launch.rehearse.platforms.cpu import CpuPlatform
from slime_swe.launch.rehearse.toy import end_replies, scaled, shape_keys, write_toy
from slime_swe.rollout.agents.native import load_template, opening
from slime_swe.rollout.episode import Episode, Segment, StopReason
from slime_swe.rollout.journals import append_records, read_records
from slime_swe.rollout.records import EPISODES, Score, to_samples, write_score
from slime_swe.sample import Sample

RECIPE = "qwen3_coder_30b_a3b"
CPU = CpuPlatform()
SDPA, EAGER = "sdpa", "eager"  # two ways of attention, which round otherwise
ROLLOUTS_PLAYED, GROUPS, EPISODES_PLAYED, REPLY, CONTEXT = 3, 2, 3, 6, 800
OVERLONG = 120  # tokens at the end of a context that cost reward: all prompts end in them
ENDS_LIKE = 400  # other tokens of 1152: replies are short


def small_recipe(folder: Path, platform: Platform = CPU):
    own = resolve(RECIPE)
    toy = folder / "toy"
    made = write_toy(own.model, platform, toy)
    recipe = scaled(own, platform, toy, shape_keys(made["config"], own.model), folder)
    rollout = replace(
        recipe.rollout,
        batch_size=GROUPS,
        samples_per_task=EPISODES_PLAYED,
        max_response=REPLY,
        max_context=CONTEXT,
    )
    return replace(recipe, rollout=rollout, reward=replace(recipe.reward, overlong_tokens=OVERLONG)), made["config"]


_ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_PRODUCTS = (
    torch.ops.aten.mm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
)


class RoundedProducts(TorchDispatchMode):
    """Products of bfloat16 add up in float32 and are rounded, as on a GPU. By PyTorch's own kernels they take a CPU
    without instructions for bfloat16 twenty times as long."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func not in (*_PRODUCTS, _ATTENTION) or args[0].dtype != torch.bfloat16:
            return func(*args, **(kwargs or {}))
        found = func(*tree_map_only(Tensor, Tensor.float, args), **(kwargs or {}))
        if func is _ATTENTION:  # whose sums stay as they are
            return found[0].bfloat16(), found[1]
        return tree_map_only(Tensor, Tensor.bfloat16, found)


def play(folder: Path, platform: Platform = CPU, precision: torch.dtype = torch.float32) -> Evidence:
    """precision: that the server and the trainers compute in; Transformers' own is float32."""
    with RoundedProducts() if precision == torch.bfloat16 else nullcontext():
        return _play(folder, platform, precision)


def _play(folder: Path, platform: Platform, precision: torch.dtype) -> Evidence:
    recipe, config = small_recipe(folder, platform)
    toy, run = Path(recipe.model.checkpoint), folder / "rollouts"
    ends = load_template(str(toy)).stop_token_ids
    prompts = prompts_of(recipe)
    end_replies(toy, config, ends, prompts[0], likely=ENDS_LIKE)
    trainer, alone = (
        Learner(config, toy, recipe, folder / name, precision, attention)
        for name, attention in (("rollouts", SDPA), ("alone", EAGER))
    )
    resumed = None
    for number in range(ROLLOUTS_PLAYED):
        weights = toy if number == 0 else trainer.exports[number - 1]
        server = Reference(config, weights)
        server.model.to(precision)
        samples = roll(prompts, server, number, ends)
        write_score_of(recipe, samples)
        append_records(run / EPISODES, samples, rollout_id=number, attempt=1)
        torch.save(
            {"rollout_id": number, "samples": [sample.to_dict() for sample in samples]}, path(run, ROLLOUTS, number)
        )
        if number == ROLLOUTS_PLAYED - 1:
            resumed = trainer.resumed(folder / "resume", SDPA if platform.limits.repeated == 0 else EAGER)
            resumed.learn(number, samples)
        trainer.learn(number, samples)
        alone.learn(number, samples, backwards=True)
    for name, source in (("conversion", toy), ("export", trainer.exports[ROLLOUTS_PLAYED - 1])):
        shutil.copytree(source, folder / name)
    asked = {name: value for group in jobs.asked(recipe, platform, run).values() for name, value in group.items()}
    held = {name: str(value) for name, value in asked.items() if value is not None} | {"padded_vocab_size": "1152"}
    counted = {(tp, 0): shard(recipe.model.shape, layout_of(recipe), 0).parameters for tp in range(recipe.parallel.tp)}
    return Evidence(
        recipe=recipe,
        limits=platform.limits,
        asked=asked,
        toy=toy,
        config=config,
        ends=ends,
        rollouts=read_rollouts(run),
        records=list(read_records(run / EPISODES)),
        layout=replace(trainer.left(), arguments=held, parameters=counted),
        alone=alone.left(),
        resumed=resumed.left(),
        converted=folder / "conversion",
        saved=folder / "export",
    )


def path(run: Path, pattern: str, number: int) -> Path:
    found = run / pattern.format(rollout_id=number)
    found.parent.mkdir(parents=True, exist_ok=True)
    return found


def prompts_of(recipe) -> list[list[int]]:
    """One of each group, rendered."""
    template, tasks = load_template(recipe.model.checkpoint), load_tasks(recipe.data.train[0])
    first = [opening(task, recipe.rollout.system_prompt) for task in tasks[: ROLLOUTS_PLAYED * GROUPS]]
    return [template.first_prompt(messages) for messages in first]


def roll(prompts: list[list[int]], model: Reference, number: int, ends: list[int]) -> list[Sample]:
    """Episodes of one or two replies, as the agent makes them: a reply that is cut is answered."""
    generator = torch.Generator().manual_seed(number)
    samples = []
    for group in range(GROUPS):
        prompt = prompts[number * GROUPS + group]
        for _ in range(EPISODES_PLAYED):
            index = number * GROUPS * EPISODES_PLAYED + len(samples)
            sample = Sample(index=index, group_index=number * GROUPS + group, metadata={})
            samples += to_samples(
                Arguments, sample, episode(model, prompt, generator, ends, str(number + 1)), str, placeholder=0
            )
    return samples


class Arguments:
    num_layers, moe_router_topk, use_rollout_routing_replay = 2, 2, True


def episode(model: Reference, prompt: list[int], generator, ends: list[int], version: str) -> Episode:
    tokens, mask, log_probs, spans, turns = [*prompt], [0] * len(prompt), [0.0] * len(prompt), [(None, len(prompt))], 0
    while turns < 2:
        turns += 1
        reply = sample_reply(model, tokens, generator, ends)
        tokens, mask = [*tokens, *(token for token, _ in reply)], [*mask, *(1 for _ in reply)]
        log_probs = [*log_probs, *(value for _, value in reply)]
        spans.append((version, len(reply)))
        if reply[-1][0] in ends or turns == 2:
            break
        tokens, mask, log_probs = [*tokens, *prompt[:4]], [*mask, *[0] * 4], [*log_probs, *[0.0] * 4]
        spans.append((None, 4))
    table = torch.stack([model.forward([*tokens, 0]).experts[layer] for layer in range(2)], 1)[: len(tokens) - 1]
    segment = Segment(
        tokens,
        mask,
        log_probs,
        len(prompt),
        routed_experts=(table.int().numpy().tobytes(),),
        version_spans=tuple(spans),
    )
    return Episode("a task", (segment,), "", StopReason.NO_TOOL_CALL, turns=turns)


def sample_reply(model: Reference, tokens: list[int], generator, ends: list[int]) -> list[tuple[int, float]]:
    reply: list[tuple[int, float]] = []
    while len(reply) < REPLY and not (reply and reply[-1][0] in ends):
        ids = torch.tensor([[*tokens, *(token for token, _ in reply)]])
        with torch.no_grad():
            logits = model.model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0, -1]
        log_probs = logits.float().log_softmax(-1)
        token = int(torch.multinomial(log_probs.exp(), 1, generator=generator))
        reply.append((token, float(log_probs[token])))
    return reply


def write_score_of(recipe, samples: list[Sample]) -> None:
    """Nothing is solved; a long episode is worth less."""
    for sample in samples:
        over = max(0, len(sample.tokens) - (CONTEXT - recipe.reward.overlong_tokens)) / recipe.reward.overlong_tokens
        write_score([sample], Score(solved=False, value=-1.0 - min(1.0, over)))


class Learner:
    """A trainer of one rank: GRPO's gradient of a step's tokens, AdamW on weights in float32.

    It computes in `precision`, and its exports have that too. Tokens go to the experts that the server has recorded, as
    the recipe's `algorithm.routing_replay=rollout` has it.
    """

    def __init__(self, config, weights: Path, recipe, run: Path, precision: torch.dtype, attention: str) -> None:
        self.config, self.recipe, self.run, self.precision = config, recipe, run, precision
        self.model = Reference(config, weights).model
        self.model.set_attn_implementation(attention)
        optimizer = recipe.optimizer
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=optimizer.lr, betas=(optimizer.beta1, optimizer.beta2), eps=optimizer.eps
        )
        names = ("loss", "pg_loss", "grad_norm", "train_rollout_logprob_abs_diff")
        self.figures: dict[str, dict[int, float]] = {f"train/{name}": {} for name in names}
        self.exports: dict[int, Path] = {}

    def resumed(self, run: Path, attention: str) -> Learner:
        """Of the weights and the optimizer's states so far."""
        other = Learner(self.config, self.exports[max(self.exports)], self.recipe, run, self.precision, attention)
        other.model.load_state_dict(self.model.state_dict())
        other.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        return other

    def learn(self, number: int, samples: list[Sample], *, backwards: bool = False) -> None:
        """backwards: the samples in the other order, so that sums round otherwise."""
        advantages = centred([(sample.group_index, sample.reward) for sample in samples])
        total = sum(sum(sample.loss_mask) for sample in samples)
        self.optimizer.zero_grad()
        computing = copy.deepcopy(self.model).to(self.precision)
        order = reversed(range(len(samples))) if backwards else range(len(samples))
        log_probs: dict[int, Tensor] = {}
        loss = apart = 0.0
        for place in order:
            sample = samples[place]
            start = len(sample.tokens) - sample.response_length
            ids = torch.tensor([sample.tokens])
            kept = sample.response_length + 1
            with replayed(computing, sample):
                logits = computing(input_ids=ids, use_cache=False, logits_to_keep=kept).logits[0, :-1].float()
            found = logits.log_softmax(-1).gather(1, ids[0, start:, None])[:, 0]
            log_probs[place] = found.detach()
            mask = torch.tensor(sample.loss_mask, dtype=torch.float32)
            gap = found.detach() - torch.tensor(sample.rollout_log_probs)
            weight = gap.exp().clamp(0, 2)
            apart += float((gap.abs() * mask).sum() / total)
            part = -(advantages[place] * weight * (found - found.detach()).exp() * mask).sum() / total
            part.backward()
            loss += float(part.detach())
        for ours, theirs in zip(self.model.parameters(), computing.parameters(), strict=True):
            ours.grad = None if theirs.grad is None else theirs.grad.float()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optimizer.clip_grad)
        self.optimizer.step()
        for values, value in zip(self.figures.values(), (loss, loss, float(norm), apart), strict=True):
            values[number] = value
        self.exports[number] = self.run / "exports" / str(number)
        copy.deepcopy(self.model).to(self.precision).save_pretrained(self.exports[number])
        self.dump(number, samples, advantages, [log_probs[place] for place in range(len(samples))])

    def dump(self, number: int, samples: list[Sample], advantages: list[float], log_probs: list[Tensor]) -> None:
        rows = [
            {
                "tokens": torch.tensor(sample.tokens),
                "log_probs": found,
                "rollout_log_probs": torch.tensor(sample.rollout_log_probs),
                "advantages": torch.full((sample.response_length,), value),
                "loss_masks": torch.tensor(sample.loss_mask),
                "rollout_mask_sums": torch.tensor(float(sum(sample.loss_mask))),
            }
            for sample, value, found in zip(samples, advantages, log_probs, strict=True)
        ]
        half = len(samples) // 2
        layout = {"global_batch_sizes": [len(samples)], "partition": [*range(len(samples))]}
        batches = {"micro_batch_indices": [[*range(half)], [*range(half, len(samples))]]}
        raw = [sample.reward for sample in samples]
        dump = {"rollout_id": number, "samples": rows, "dp_shards": [layout | batches], "raw_reward": raw}
        torch.save(dump, path(self.run, STEPS, number))

    def left(self) -> Trainer:
        return Trainer(read_steps(self.run), self.figures, self.exports)


@contextmanager
def replayed(model: nn.Module, sample: Sample) -> Iterator[None]:
    """Have each token's experts be the recorded ones; of the last token, whose logits nobody needs, there are none."""
    table = torch.tensor(sample.rollout_routed_experts, dtype=torch.int64)  # tokens - 1, layers, experts of a token

    def choose(layer: int) -> Callable[..., Any]:
        def chosen(router: Any, _: Any, found: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
            logits, scores, own = found
            experts = torch.cat([table[:, layer], own[len(table) :]])
            values = logits.softmax(-1, dtype=torch.float).gather(-1, experts)
            if router.norm_topk_prob:
                values = values / values.sum(-1, keepdim=True)
            return logits, values.to(scores.dtype), experts

        return chosen

    hooks = [layer.mlp.gate.register_forward_hook(choose(number)) for number, layer in enumerate(model.model.layers)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def centred(rewards: list[tuple[int, float]]) -> list[float]:
    groups: dict[int, list[float]] = {}
    for group, reward in rewards:
        groups.setdefault(group, []).append(reward)
    return [reward - sum(groups[group]) / len(groups[group]) for group, reward in rewards]
