"""The trainer on a tiny checkpoint: exact gradients, exact resumption, and a policy that moves the right way."""

from __future__ import annotations

import copy
import dataclasses
import math
import random
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from slime_swe.embedded.forward import _masks, forward, input_length, micro_batches, recompute_log_probs
from slime_swe.embedded.loss import LossError
from slime_swe.embedded.model import Qwen2
from slime_swe.embedded.train_data import PackingError, TrainData
from slime_swe.embedded.trainer import Trainer, TrainingError


def make_args(checkpoint, **changes) -> Namespace:
    values = dict(
        hf_checkpoint=str(checkpoint), rollout_temperature=1.0, rollout_max_context_len=64, max_tokens_per_gpu=128,
        eps_clip=0.2, eps_clip_high=0.28, use_kl_loss=False, kl_loss_coef=0.0, kl_loss_type="k3", use_tis=False,
        advantage_estimator="grpo", eps_clip_c=None, tis_clip_low=0.0, use_rollout_logprobs=True, tis_clip=2.0,
        entropy_coef=0.0, lr=1e-3, adam_beta1=0.9, adam_beta2=0.95,
        adam_eps=1e-8, weight_decay=0.01, clip_grad=1.0, num_steps_per_rollout=1, num_rollout=10,
    )  # fmt: skip
    return Namespace(**(values | changes))


def make_data(model: Qwen2, rollouts: int, seed: int = 0, temperature: float = 1.0) -> TrainData:
    """Random tokens at random masks, with log-probabilities that are the model's own plus nothing."""
    rng = random.Random(seed)
    tokens, masks = [], []
    for _ in range(rollouts):
        prompt, response = rng.randint(1, 12), rng.randint(1, 40)
        tokens.append([rng.randrange(model.config.vocab_size) for _ in range(prompt + response)])
        masks.append([rng.randint(0, 1) for _ in range(response)])
    zeros = [[0.0] * len(mask) for mask in masks]
    sums = [sum(mask) for mask in masks]
    advantages = [rng.choice([-1.0, 0.0, 0.5, 2.0]) for _ in range(rollouts)]
    data = TrainData(tokens, masks, zeros, advantages, list(range(rollouts)), sums)
    return dataclasses.replace(
        data, rollout_log_probs=recompute_log_probs(model, data, range(len(data)), temperature, 128)
    )


@pytest.fixture(scope="module")
def model(tiny_checkpoint) -> Qwen2:
    return Qwen2.load(tiny_checkpoint)


def gradients(trainer: Trainer, data: TrainData) -> list[torch.Tensor]:
    """What one optimizer step would be taken with, before clipping."""
    trainer.clip_grad = 0
    trainer.optimizer.step = lambda: None  # type: ignore[method-assign]
    trainer.train(data)
    return [parameter.grad.clone() for parameter in trainer.model.parameters()]


def after_a_step_without_gradient(data: TrainData) -> TrainData:
    """The data for the second of two steps, in which the policy need not be the old one any more."""
    count = len(data)
    doubled = {field.name: 2 * list(getattr(data, field.name)) for field in dataclasses.fields(data)}
    changed = {"advantages": [0.0] * count + list(data.advantages), "rollout_ids": list(range(2 * count))}
    return TrainData(**(doubled | changed))


def test_recomputed_log_probs_are_those_of_transformers(tiny_checkpoint, model):
    from transformers import Qwen2ForCausalLM

    upstream = Qwen2ForCausalLM.from_pretrained(tiny_checkpoint)
    data = make_data(model, 6, temperature=0.7)
    for tokens, mask, ours in zip(data.tokens, data.loss_masks, data.rollout_log_probs, strict=True):
        with torch.no_grad():
            theirs = torch.log_softmax(upstream(torch.tensor([tokens])).logits[0].double() / 0.7, -1)
        prompt = len(tokens) - len(mask)
        for place, trained in enumerate(mask):
            expected = theirs[prompt + place - 1, tokens[prompt + place]].item() if trained else 0.0
            assert ours[place] == pytest.approx(expected, abs=1e-5)


def test_gradients_agree_with_transformers_and_plain_autograd(tiny_checkpoint, model):
    from transformers import Qwen2ForCausalLM

    data = make_data(model, 7)
    old = [
        [value + random.Random(i).uniform(-0.4, 0.4) for i, value in enumerate(row)] for row in data.rollout_log_probs
    ]
    data = dataclasses.replace(data, rollout_log_probs=old)
    upstream = Qwen2ForCausalLM.from_pretrained(tiny_checkpoint).double()
    loss = torch.zeros((), dtype=torch.float64)
    for i, (tokens, mask) in enumerate(zip(data.tokens, data.loss_masks, strict=True)):
        log_probs = torch.log_softmax(upstream(torch.tensor([tokens])).logits[0], -1)
        prompt = len(tokens) - len(mask)
        for place in (place for place, trained in enumerate(mask) if trained):
            ratio = (log_probs[prompt + place - 1, tokens[prompt + place]] - old[i][place]).exp()
            gain = torch.minimum(ratio * data.advantages[i], ratio.clamp(0.8, 1.28) * data.advantages[i])
            loss = loss - gain / (sum(mask) * len(data))
    loss.backward()
    trainer = Trainer(make_args(tiny_checkpoint, num_steps_per_rollout=2))
    ours = gradients(trainer, after_a_step_without_gradient(data))
    theirs = dict(upstream.named_parameters())
    for (name, _), grad in zip(trainer.model.named_parameters(), ours, strict=True):
        torch.testing.assert_close(grad.double(), theirs[name].grad, atol=2e-6, rtol=2e-4)


def perturbed(checkpoint, directory) -> Qwen2:
    """A policy that has moved away from its reference."""
    model = Qwen2.load(checkpoint)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    model.save(directory)
    return model


def log_probs_of(model, tokens: list[int]) -> torch.Tensor:
    """[tokens - 1, V]: of every next token."""
    return torch.log_softmax(model(torch.tensor([tokens])).logits[0, :-1], -1)


def test_kl_tis_and_entropy_agree_with_transformers_and_plain_autograd(tiny_checkpoint, tmp_path):
    """The policy is not the reference, and the server's log-probabilities are off by more than the clip."""
    from transformers import Qwen2ForCausalLM

    data = make_data(perturbed(tiny_checkpoint, tmp_path), 5)
    rng = random.Random(1)
    noisy = [[value + rng.uniform(-1, 1) for value in row] for row in data.rollout_log_probs]
    data = dataclasses.replace(data, rollout_log_probs=noisy)
    policy, reference = (Qwen2ForCausalLM.from_pretrained(path).double() for path in (tmp_path, tiny_checkpoint))
    loss = torch.zeros((), dtype=torch.float64)
    for i, (tokens, mask) in enumerate(zip(data.tokens, data.loss_masks, strict=True)):
        ours = log_probs_of(policy, tokens)
        with torch.no_grad():
            theirs = log_probs_of(reference, tokens)
        prompt = len(tokens) - len(mask)
        for place in (place for place, trained in enumerate(mask) if trained):
            row, token = prompt + place - 1, tokens[prompt + place]
            log_prob = ours[row, token]
            mismatch = (log_prob.detach() - noisy[i][place]).exp().clamp(0, 1.5)
            gain = mismatch * (log_prob - log_prob.detach()).exp() * data.advantages[i]
            gap = theirs[row, token] - log_prob
            entropy = -(ours[row].exp() * ours[row]).sum()
            loss = loss + (-gain + 0.3 * (gap.exp() - gap - 1) - 0.05 * entropy) / (sum(mask) * len(data))
    loss.backward()
    args = make_args(
        tiny_checkpoint,
        use_kl_loss=True,
        kl_loss_coef=0.3,
        use_tis=True,
        use_rollout_logprobs=False,
        tis_clip=1.5,
        entropy_coef=0.05,
    )
    trainer = Trainer(args, tmp_path)
    ours = gradients(trainer, data)
    theirs = dict(policy.named_parameters())
    for (name, _), grad in zip(trainer.model.named_parameters(), ours, strict=True):
        torch.testing.assert_close(grad.double(), theirs[name].grad, atol=5e-6, rtol=5e-4)
    assert trainer.train(data).metrics["loss"] == pytest.approx(loss.item(), abs=1e-5)


@pytest.mark.parametrize("estimator", ["gspo", "cispo"])
def test_gspo_and_cispo_agree_with_transformers_and_plain_autograd(tiny_checkpoint, tmp_path, estimator):
    """The ratios are those of whole sequences, however they are packed; all began under older weights."""
    from transformers import Qwen2ForCausalLM

    data = make_data(perturbed(tiny_checkpoint, tmp_path), 20)
    batches = micro_batches(data, range(len(data)), 128)
    assert any(len({sample for sample, _ in batch.source_N}) > 1 for batch in batches)
    rng = random.Random(2)
    older = [[value + rng.uniform(-0.3, 0.5) for value in row] for row in data.rollout_log_probs]
    data = dataclasses.replace(data, rollout_log_probs=older, stale=frozenset(range(20)))
    policy = Qwen2ForCausalLM.from_pretrained(tmp_path).double()
    loss = torch.zeros((), dtype=torch.float64)
    for i, (tokens, mask) in enumerate(zip(data.tokens, data.loss_masks, strict=True)):
        log_probs, prompt, advantage = log_probs_of(policy, tokens), len(tokens) - len(mask), data.advantages[i]
        places = [place for place, trained in enumerate(mask) if trained]
        ours = torch.stack([log_probs[prompt + place - 1, tokens[prompt + place]] for place in places])
        log_ratios = ours - torch.tensor([older[i][place] for place in places])
        if estimator == "gspo":
            ratio = log_ratios.mean().exp()
            gain = torch.minimum(ratio * advantage, ratio.clamp(0.95, 1.05) * advantage)
        else:
            gain = (log_ratios.exp().clamp(0.95, 1.05).detach() * advantage * ours).mean()
        loss = loss - gain / len(data)
    loss.backward()
    trainer = Trainer(
        make_args(tiny_checkpoint, advantage_estimator=estimator, eps_clip=0.05, eps_clip_high=0.05), tmp_path
    )
    theirs = dict(policy.named_parameters())
    for (name, _), grad in zip(trainer.model.named_parameters(), gradients(trainer, data), strict=True):
        torch.testing.assert_close(grad.double(), theirs[name].grad, atol=5e-6, rtol=5e-4)
    metrics = trainer.train(data).metrics
    assert metrics["loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert 0 < metrics["clip_fraction"] < 1


def test_packing_changes_no_gradient(tiny_checkpoint, model):
    data = make_data(model, 12)
    one = gradients(Trainer(make_args(tiny_checkpoint, max_tokens_per_gpu=4096)), data)
    many = gradients(Trainer(make_args(tiny_checkpoint, max_tokens_per_gpu=64)), data)
    for a, b in zip(one, many, strict=True):
        torch.testing.assert_close(a, b, atol=1e-7, rtol=1e-4)


def test_a_rollout_counts_once_however_many_samples_it_became(tiny_checkpoint, model):
    data = make_data(model, 3)
    twice = TrainData(
        tokens=[*data.tokens, data.tokens[0]],
        loss_masks=[*data.loss_masks, data.loss_masks[0]],
        rollout_log_probs=[*data.rollout_log_probs, data.rollout_log_probs[0]],
        advantages=[*data.advantages, data.advantages[0]],
        rollout_ids=[0, 1, 2, 0],
        mask_sums=[2 * data.mask_sums[0], *data.mask_sums[1:], 2 * data.mask_sums[0]],
    )
    for a, b in zip(*(gradients(Trainer(make_args(tiny_checkpoint)), d) for d in (data, twice)), strict=True):
        torch.testing.assert_close(a, b, atol=1e-7, rtol=1e-4)


def test_masked_and_trailing_tokens_are_not_even_computed(model):
    data = TrainData(
        [[1, 2, 3, 4, 5, 6], [1, 2, 3]], [[1, 0, 1, 0], [0, 0]], [[0.0] * 4, [0.0] * 2], [1, 1], [0, 1], [2, 0]
    )
    assert [input_length(data, sample) for sample in (0, 1)] == [4, 0]
    (batch,) = micro_batches(data, [0, 1], 64)
    assert batch.tokens_T.tolist() == [1, 2, 3, 4]
    assert (batch.row_N.tolist(), batch.target_N.tolist()) == ([1, 3], [3, 5])


def test_samples_without_advantage_are_skipped_but_counted(tiny_checkpoint, model):
    data = dataclasses.replace(make_data(model, 4), advantages=[1.0, 0.0, 0.0, -1.0])
    kept = Trainer(make_args(tiny_checkpoint)).train(data).metrics
    full = Trainer(make_args(tiny_checkpoint, entropy_coef=1e-30)).train(data).metrics
    assert kept["trained_tokens"] < full["trained_tokens"] == sum(data.mask_sums)
    assert kept["grad_norm"] == pytest.approx(full["grad_norm"], rel=1e-5)
    nothing = Trainer(make_args(tiny_checkpoint)).train(dataclasses.replace(data, advantages=[0.0] * 4)).metrics
    assert (nothing["grad_norm"], nothing["trained_tokens"]) == (0.0, 0)
    assert "ratio" not in nothing and "logprob_diff_max" not in nothing


def test_a_step_without_tokens_is_in_no_mean(tiny_checkpoint, model):
    data = make_data(model, 4)
    half = dataclasses.replace(data, advantages=[1.0, -1.0, 0.0, 0.0])
    metrics = Trainer(make_args(tiny_checkpoint, num_steps_per_rollout=2)).train(half).metrics
    assert metrics["ratio"] == 1 and metrics["logprob_diff_max"] == 0  # in the arithmetic that sampled
    late = dataclasses.replace(data, advantages=[0.0, 0.0, 1.0, -1.0])
    metrics = Trainer(make_args(tiny_checkpoint, num_steps_per_rollout=2)).train(late).metrics
    assert metrics["ratio"] > 0.5 and "logprob_diff_max" not in metrics


def test_what_older_weights_sampled_is_weighted_by_its_ratio(tiny_checkpoint, model):
    data = dataclasses.replace(make_data(model, 6), advantages=[1.0, -1.0] * 3)
    older = [[value - 0.1 for value in values] for values in data.rollout_log_probs]
    stale = dataclasses.replace(data, rollout_log_probs=older, stale=frozenset(range(6)))
    fresh = gradients(Trainer(make_args(tiny_checkpoint)), data)
    for weighted, plain in zip(gradients(Trainer(make_args(tiny_checkpoint)), stale), fresh, strict=True):
        torch.testing.assert_close(weighted, math.exp(0.1) * plain, rtol=1e-3, atol=1e-7)
    metrics = Trainer(make_args(tiny_checkpoint)).train(stale).metrics
    assert metrics["ratio"] == pytest.approx(math.exp(0.1), rel=1e-5) and "logprob_diff_max" not in metrics


def test_gradients_are_of_the_exact_forward_pass_s_function(tiny_checkpoint, model):
    """What is differentiated gives the exact pass's log-probabilities, to float32's rounding."""
    data = make_data(model, 12)
    exact = recompute_log_probs(model, data, range(len(data)), 0.7, 128)
    for batch in micro_batches(data, range(len(data)), 128):
        log_probs, _ = forward(model, batch, 0.7)
        wanted = [exact[sample][place] for sample, place in batch.source_N]
        torch.testing.assert_close(log_probs.detach(), torch.tensor(wanted), atol=1e-4, rtol=0)


def test_masks_are_made_for_spans_with_ancestors_only():
    like = torch.zeros(())
    assert _masks([(0, 7), (0, 9)], like) == [None, None]
    root, child = _masks([(0, 3), (3, 2)], like)
    assert root is None and child is not None
    assert (child == 0).tolist() == [[True] * 4 + [False], [True] * 5]


def test_training_moves_probability_to_what_was_rewarded(tiny_checkpoint, model):
    data = dataclasses.replace(make_data(model, 6), advantages=[1.0, -1.0] * 3)
    trainer = Trainer(make_args(tiny_checkpoint, num_steps_per_rollout=2))
    metrics = trainer.train(data).metrics
    after = trainer.recompute(data, trainer.model, range(len(data)))
    gains = [sum(b) - sum(a) for a, b in zip(data.rollout_log_probs, after, strict=True)]
    assert sum(gains[0::2]) > 0 > sum(gains[1::2])
    assert metrics["logprob_diff_max"] == 0  # the first step saw the weights that sampled
    assert metrics["ratio"] == pytest.approx(1, abs=0.2)


def trained_and_resumed(args: Namespace, data: TrainData, folder: Path) -> tuple[Trainer, Trainer]:
    """A trainer after one rollout, and another that goes on from what it left in `folder`."""
    straight = Trainer(args)
    straight.train(data)
    straight.model.save(folder)
    resumed = Trainer(args, folder)
    resumed.load_state(straight.save_state())
    return straight, resumed


@pytest.mark.parametrize("changes", [{}, {"use_kl_loss": True, "kl_loss_coef": 0.1}, {"use_rollout_logprobs": False}])
def test_a_resumed_trainer_goes_on_bit_for_bit(tiny_checkpoint, tmp_path, model, changes):
    args = make_args(tiny_checkpoint, num_steps_per_rollout=2, lr_decay_style="linear", **changes)
    data = make_data(model, 8)
    straight, resumed = trained_and_resumed(args, data, tmp_path)
    assert straight.train(data) == resumed.train(data)
    for a, b in zip(straight.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_resumed_trainer_is_carried_by_its_momentum_where_a_step_has_nothing_to_train_on(
    tiny_checkpoint, tmp_path, model
):
    args = make_args(tiny_checkpoint)
    data = make_data(model, 8)
    straight, resumed = trained_and_resumed(args, data, tmp_path)
    for trainer in (straight, resumed):
        trainer.train(dataclasses.replace(data, advantages=[0.0] * 8))
    for a, b in zip(straight.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_two_trainers_agree_bit_for_bit(tiny_checkpoint, model):
    data = make_data(model, 16)
    metrics = [Trainer(make_args(tiny_checkpoint, num_steps_per_rollout=4)).train(data).metrics for _ in range(2)]
    assert metrics[0] == metrics[1]


def test_the_learning_rate_decays_to_zero(tiny_checkpoint, model):
    args = make_args(
        tiny_checkpoint, num_rollout=2, num_steps_per_rollout=2, lr_decay_style="linear", lr_warmup_iters=2
    )
    trainer = Trainer(args)
    rates = []
    for _ in range(5):
        rates.append(trainer.optimizer.learning_rate())
        trainer.optimizer.steps += 1
    assert rates == pytest.approx([0.5e-3, 0.75e-3, 0.5e-3, 0.25e-3, 0.0])


def test_a_gradient_that_is_not_a_number_leaves_the_policy_alone(tiny_checkpoint, model):
    trainer = Trainer(make_args(tiny_checkpoint))
    before = copy.deepcopy(trainer.model.state_dict())
    data = dataclasses.replace(make_data(model, 2), advantages=[float("nan"), 1.0])
    with pytest.raises(TrainingError, match="nan"):
        trainer.train(data)
    assert all(torch.equal(before[name], value) for name, value in trainer.model.state_dict().items())


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"max_tokens_per_gpu": 10}, PackingError, "max_tokens_per_gpu=10"),
        ({"lr_decay_style": "cosine"}, ValueError, "allowed: constant, linear"),
        ({"use_tis": True, "use_rollout_logprobs": True}, LossError, "exclude each other"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_the_start(tiny_checkpoint, changes, error, words):
    with pytest.raises(error, match=words):
        Trainer(make_args(tiny_checkpoint, **changes))


def test_the_number_of_workers_changes_no_bit(tiny_checkpoint, model):
    data = make_data(model, 24)
    results = []
    for workers in (1, 2, 5):
        trainer = Trainer(make_args(tiny_checkpoint, num_steps_per_rollout=2, use_rollout_logprobs=False))
        trainer.workers = workers
        results.append((trainer.train(data).metrics, [parameter.clone() for parameter in trainer.model.parameters()]))
    (metrics, weights), *others = results
    for other_metrics, other_weights in others:
        assert other_metrics == metrics
        assert all(torch.equal(a, b) for a, b in zip(weights, other_weights, strict=True))


def test_a_supervised_step_descends_on_the_mean_cross_entropy_of_trained_tokens(tiny_checkpoint, model):
    data = make_data(model, 7)
    data = dataclasses.replace(data, advantages=[0.0] * len(data))  # which play no part
    trainer = Trainer(make_args(tiny_checkpoint, loss_type="sft_loss"))
    count = sum(max(1, sum(mask)) for mask in data.loss_masks)
    whole = copy.deepcopy(model)
    losses = [-forward(whole, each, 1.0)[0].sum() / count for each in micro_batches(data, range(len(data)), 128)]
    expected = torch.autograd.grad(sum(losses), list(whole.parameters()))
    for mine, theirs in zip(gradients(trainer, data), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    trainer = Trainer(make_args(tiny_checkpoint, loss_type="sft_loss", lr=1e-2, weight_decay=0.0))
    steps = [trainer.train(data) for _ in range(6)]
    assert steps[0].metrics["loss"] == pytest.approx(float(sum(losses)), rel=1e-4)
    assert steps[-1].metrics["loss"] < steps[0].metrics["loss"]
    assert "logprob_diff_max" not in steps[0].metrics and steps[0].log_probs == {}
