"""The policy-gradient loss against a plain reference in Python loops and float64, written from the papers."""

from __future__ import annotations

import math
import random
from argparse import Namespace

import pytest
import torch

from slime_swe.embedded.forward import action_log_probs
from slime_swe.embedded.loss import Actions, LossConfig, LossError, policy_loss


def reference_loss(logits, targets, rollout_of, sequence_of, old, rollout, advantage, reference, temperature, config):
    """Mean over rollouts of the mean over their tokens of clip x mismatch + KL - entropy, one token at a time."""
    totals = {name: 0.0 for name in ("loss", "pg_loss", "entropy", "clip_fraction", "ratio", "kl_to_old", "kl_loss")}
    loss = torch.zeros((), dtype=torch.float64)
    rollouts = sorted(set(rollout_of))
    scaled_log_ps = [torch.log_softmax(torch.stack(list(row)) / temperature, 0) for row in logits]
    log_ratios = [row[target] - before for row, target, before in zip(scaled_log_ps, targets, old, strict=True)]
    for name in rollouts:
        tokens = [i for i, owner in enumerate(rollout_of) if owner == name]
        for i in tokens:
            scaled = [value / temperature for value in logits[i]]
            normalizer = torch.logsumexp(torch.stack(scaled), 0)
            log_p = scaled[targets[i]] - normalizer
            entropy = -sum(torch.exp(value - normalizer) * (value - normalizer) for value in scaled)
            together = [i]
            if config.estimator == "gspo":
                together = [j for j, sequence in enumerate(sequence_of) if sequence == sequence_of[i]]
            log_ratio = sum(log_ratios[j] for j in together) / len(together)
            ratio = torch.exp(log_ratio)
            low, high = 1 - config.clip_low, 1 + config.clip_high
            clipped_ratio = ratio if low <= ratio.item() <= high else torch.tensor(low if ratio.item() < low else high)
            objective = min(ratio * advantage[i], clipped_ratio * advantage[i], key=lambda value: value.item())
            if config.dual_clip and advantage[i] < 0 and objective.item() < config.dual_clip * advantage[i]:
                objective = torch.tensor(config.dual_clip * advantage[i])
            if config.estimator == "cispo":
                objective = clipped_ratio.item() * advantage[i] * log_p
            weight = 1.0
            if config.mismatch != "none":
                weight = math.exp(old[i] - rollout[i])
                if not config.mismatch_low <= weight <= config.mismatch_high:
                    nearest = config.mismatch_low if weight < config.mismatch_low else config.mismatch_high
                    weight = nearest if config.mismatch == "truncate" else 0.0
            log_r = reference[i] - log_p
            kl = {"k1": -log_r, "k2": log_r**2 / 2, "k3": torch.exp(log_r) - 1 - log_r}
            kl["low_var_kl"] = kl["k3"].clamp(-10, 10)
            token = -objective * weight + config.kl_coef * kl[config.kl_type] - config.entropy_coef * entropy
            share = 1 / (len(tokens) * len(rollouts))
            loss = loss + token * share
            totals["pg_loss"] += (-objective * weight).item() * share
            totals["entropy"] += entropy.item() * share
            totals["ratio"] += ratio.item() * share
            totals["kl_to_old"] -= log_ratio.item() * share
            totals["kl_loss"] += kl[config.kl_type].item() * share
            inside = low <= ratio.item() <= high
            takes_effect = (ratio.item() > high) == (advantage[i] > 0) and advantage[i] != 0
            clipped = not inside and (takes_effect or config.estimator == "cispo")
            totals["clip_fraction"] += clipped * share
    totals["loss"] = loss.item()
    return loss, totals


def random_config(rng: random.Random) -> LossConfig:
    return LossConfig(
        estimator=rng.choice(["grpo", "gspo", "cispo"]),
        clip_low=rng.choice([0.0, 0.1, 0.2, 1.0]),
        clip_high=rng.choice([0.2, 0.28, 1.0]),
        dual_clip=rng.choice([0.0, 1.1, 3.0]),
        kl_coef=rng.choice([0.0, 0.01, 0.5]),
        kl_type=rng.choice(["k1", "k2", "k3", "low_var_kl"]),
        entropy_coef=rng.choice([0.0, 0.01, 0.3]),
        mismatch=rng.choice(["none", "truncate", "icepop"]),
        mismatch_low=rng.choice([0.0, 0.9]),
        mismatch_high=rng.choice([1.1, 2.0]),
    )


@pytest.mark.parametrize("seed", range(60))
def test_loss_and_gradients_agree_with_the_reference(seed, monkeypatch):
    monkeypatch.setattr("slime_swe.embedded.forward.CHUNK_ELEMENTS", 64)  # several chunks
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    n, width, vocabulary = rng.randint(1, 24), 5, 11
    config = random_config(rng)
    temperature = rng.choice([0.7, 1.0, 1.5])

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    hidden, head = draw(n, width).requires_grad_(), draw(vocabulary, width).requires_grad_()
    targets = torch.randint(vocabulary, (n,), generator=generator)
    rollout_of = sorted(rng.randint(0, 3) for _ in range(n))
    sequence_of = [2 * name + rng.randint(0, 1) for name in rollout_of]
    now = torch.log_softmax(hidden @ head.T / temperature, 1)[range(n), targets].detach()
    old, rollout, reference = (now + 0.4 * draw(n) for _ in range(3))
    advantage = draw(n) * torch.tensor([rng.choice([0, 1, 1]) for _ in range(n)])

    expected, parts = reference_loss(
        hidden @ head.T, targets, rollout_of, sequence_of, old.tolist(), rollout.tolist(), advantage.tolist(),
        reference.tolist(), temperature, config,
    )  # fmt: skip
    expected_grads = torch.autograd.grad(expected, (hidden, head))

    sizes = {name: rollout_of.count(name) for name in rollout_of}
    weight = torch.tensor([1 / (sizes[name] * len(sizes)) for name in rollout_of], dtype=torch.float64)
    log_probs, entropy = action_log_probs(hidden, head, targets, temperature)
    actions = Actions(old, rollout, advantage, weight, reference, sequence=torch.tensor(sequence_of))
    loss, metrics = policy_loss(log_probs, entropy, actions, config)
    grads = torch.autograd.grad(loss, (hidden, head))

    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    for ours, theirs in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-6)
    for name, value in metrics.items():
        assert value.item() == pytest.approx(parts[name], abs=1e-6), name


def test_fp32_agrees_with_float64_to_1e_6():
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(50, 16, generator=generator) * 0.3
    head = torch.randn(200, 16, generator=generator) * 0.3
    target = torch.randint(200, (50,), generator=generator)
    single, _ = action_log_probs(hidden, head, target, 1.0)
    double, _ = action_log_probs(hidden.double(), head.double(), target, 1.0)
    torch.testing.assert_close(single.double(), double, atol=2e-6, rtol=0)


def test_a_token_of_zero_advantage_has_no_gradient_in_the_pure_policy_gradient():
    hidden = torch.randn(4, 3, requires_grad=True)
    log_probs, entropy = action_log_probs(hidden, torch.randn(7, 3), torch.tensor([0, 1, 2, 3]), 1.0)
    zero = torch.zeros(4)
    config = LossConfig()
    assert config.is_pure_policy_gradient
    loss, _ = policy_loss(log_probs, entropy, Actions(log_probs.detach(), zero, zero, torch.ones(4)), config)
    assert torch.autograd.grad(loss, hidden)[0].abs().max() == 0


def test_on_policy_the_exact_log_probabilities_replace_values_and_leave_gradients():
    old, advantage, weight = torch.tensor([-0.1, -0.2, -1.0]), torch.tensor([1.0, -1.0, 2.0]), torch.ones(3)
    rounded = (old + torch.tensor([1e-3, -2e-3, 3e-3])).requires_grad_()
    actions = Actions(old, old, advantage, weight, on_policy=torch.tensor([True, True, False]))
    loss, metrics = policy_loss(rounded, torch.zeros(3), actions, LossConfig())
    assert metrics["ratio"] == pytest.approx(2 + math.exp(3e-3))
    (grad,) = torch.autograd.grad(loss, rounded)
    torch.testing.assert_close(grad, -advantage * torch.tensor([1.0, 1.0, math.exp(3e-3)]))


def test_clip_higher_stops_the_gradient_only_beyond_its_own_side():
    config = LossConfig(clip_low=0.2, clip_high=0.28)
    old = torch.zeros(4)
    log_probs = torch.log(torch.tensor([1.27, 1.29, 0.81, 0.79])).requires_grad_()
    advantage = torch.tensor([1.0, 1.0, -1.0, -1.0])
    loss, metrics = policy_loss(log_probs, old, Actions(old, old, advantage, torch.ones(4)), config)
    (grad,) = torch.autograd.grad(loss, log_probs)
    assert [bool(value) for value in grad] == [True, False, True, False]
    assert metrics["clip_fraction"].item() == 2


@pytest.mark.parametrize("estimator", ["gspo", "cispo"])
@pytest.mark.parametrize("dual_clip", [0.0, 3.0])
def test_at_a_ratio_of_1_every_loss_has_grpos_gradient(estimator, dual_clip):
    generator = torch.Generator().manual_seed(5)
    log_probs = torch.randn(9, generator=generator).requires_grad_()
    sequence = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2])
    advantage = torch.tensor([-1.0, 0.5, 2.0])[sequence]
    old = log_probs.detach()
    actions = Actions(old, old, advantage, torch.full((9,), 1 / 9), sequence=sequence)
    grads = [
        torch.autograd.grad(policy_loss(log_probs, old, actions, config)[0], log_probs)[0]
        for config in (LossConfig(), LossConfig(estimator=estimator, dual_clip=dual_clip))
    ]
    torch.testing.assert_close(*grads)


def test_cispo_keeps_the_gradient_of_a_token_that_grpo_clips():
    old, advantage = torch.zeros(2), torch.tensor([1.0, -1.0])
    log_probs = torch.log(torch.tensor([3.0, 0.1])).requires_grad_()
    grads = {}
    for estimator in ("grpo", "cispo"):
        config = LossConfig(estimator=estimator, clip_low=0.2, clip_high=0.28)
        loss, _ = policy_loss(log_probs, old, Actions(old, old, advantage, torch.ones(2)), config)
        (grad,) = torch.autograd.grad(loss, log_probs)
        grads[estimator] = grad.tolist()
    assert grads == {"grpo": [0, 0], "cispo": pytest.approx([-1.28, 0.8])}


def test_dual_clip_stops_the_gradient_of_a_bad_token_that_became_much_likelier():
    old, advantage = torch.zeros(2), torch.tensor([-1.0, -1.0])
    log_probs = torch.log(torch.tensor([2.9, 3.1])).requires_grad_()
    loss, _ = policy_loss(log_probs, old, Actions(old, old, advantage, torch.ones(2)), LossConfig(dual_clip=3.0))
    (grad,) = torch.autograd.grad(loss, log_probs)
    assert grad.tolist() == pytest.approx([2.9, 0])


@pytest.mark.parametrize(("mismatch", "weights"), [("truncate", [0.5, 0.8, 2.0]), ("icepop", [0, 0.8, 0])])
def test_a_mismatch_out_of_bounds_is_held_within_them_or_left_out(mismatch, weights):
    old, advantage = torch.zeros(3), torch.ones(3)
    sampled = -torch.log(torch.tensor([0.4, 0.8, 2.5]))
    log_probs = old.clone().requires_grad_()
    config = LossConfig(mismatch=mismatch, mismatch_low=0.5, mismatch_high=2.0)
    loss, _ = policy_loss(log_probs, old, Actions(old, sampled, advantage, torch.ones(3)), config)
    (grad,) = torch.autograd.grad(loss, log_probs)
    assert (-grad).tolist() == pytest.approx(weights)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kl_loss_type": "k9"}, ["'k9'", "low_var_kl"]),
        ({"eps_clip": 1.5}, ["1.5", "eps_clip <= 1"]),
        ({"advantage_estimator": "ppo"}, ["'ppo'", "grpo, gspo, cispo"]),
        ({"use_tis": True, "custom_tis_function_path": "mine.mis"}, ["'mine.mis'", "icepop_function"]),
    ],
)
def test_a_wrong_setting_says_what_is_allowed(changes, words):
    args = dict(
        eps_clip=0.2, eps_clip_high=None, use_kl_loss=False, kl_loss_coef=0.1, kl_loss_type="k1", entropy_coef=0.0,
        use_tis=False, tis_clip=2.0, tis_clip_low=0.0, advantage_estimator="grpo", eps_clip_c=None,
    )  # fmt: skip
    config = LossConfig.from_args(Namespace(**args))
    assert (config.clip_high, config.kl_coef, config.mismatch) == (0.2, 0.0, "none")
    with pytest.raises(LossError) as error:
        LossConfig.from_args(Namespace(**(args | changes)))
    assert all(word in str(error.value) for word in words)


def test_a_kl_penalty_without_a_reference_is_refused():
    one = torch.zeros(1)
    with pytest.raises(LossError, match="reference"):
        policy_loss(one, one, Actions(one, one, one, one), LossConfig(kl_coef=0.1))


def test_gspo_without_sequences_is_refused():
    one = torch.zeros(1)
    with pytest.raises(LossError, match="sequences"):
        policy_loss(one, one, Actions(one, one, one, one), LossConfig(estimator="gspo"))
