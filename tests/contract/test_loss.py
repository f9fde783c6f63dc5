"""SLiME's loss as a numerical oracle for the embedded engine's: the same numbers and the same gradients."""

from __future__ import annotations

import random
from argparse import Namespace
from dataclasses import dataclass

import pytest
import torch

from slime_swe.embedded.forward import action_log_probs
from slime_swe.embedded.loss import Actions, LossConfig, policy_loss, supervised_loss
from slime_swe.embedded.train_data import TrainData, token_weights
from slime_swe.launch.slime.render import MISMATCH

H, V = 8, 23  # sizes of hidden states and vocabulary
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
CONFIGURATIONS = {
    "ppo clip": {},
    "clip higher": {"eps_clip_high": 0.28},
    "no clip in reach": {"eps_clip": 0.99, "eps_clip_high": 9.0},
    "temperature": {"rollout_temperature": 0.7},
    "entropy bonus": {"entropy_coef": 0.1},
    "kl k1": {"use_kl_loss": True, "kl_loss_coef": 0.3, "kl_loss_type": "k1"},
    "kl k2": {"use_kl_loss": True, "kl_loss_coef": 0.3, "kl_loss_type": "k2"},
    "kl k3": {"use_kl_loss": True, "kl_loss_coef": 0.3, "kl_loss_type": "k3"},
    "kl low_var_kl": {"use_kl_loss": True, "kl_loss_coef": 0.3, "kl_loss_type": "low_var_kl"},
    "gspo": {"advantage_estimator": "gspo"},
    "gspo in a narrow clip": {"advantage_estimator": "gspo", "eps_clip": 0.05, "eps_clip_high": 0.05},
    "cispo": {"advantage_estimator": "cispo", "eps_clip_high": 0.28},
    "cispo without a lower bound": {"advantage_estimator": "cispo", "eps_clip": 1.0, "eps_clip_high": 4.0},
    "dual clip": {"eps_clip_c": 1.3},
    "gspo and dual clip": {"advantage_estimator": "gspo", "eps_clip_c": 1.05},
    "tis": {"use_rollout_logprobs": False, "use_tis": True, "tis_clip": 1.2, "tis_clip_low": 0.8},
    "icepop": {
        "use_rollout_logprobs": False,
        "use_tis": True,
        "custom_tis_function_path": MISMATCH["icepop"],
        "tis_clip": 1.2,
        "tis_clip_low": 0.8,
    },
    "cispo and icepop": {
        "advantage_estimator": "cispo",
        "use_rollout_logprobs": False,
        "use_tis": True,
        "custom_tis_function_path": MISMATCH["icepop"],
        "tis_clip": 1.1,
        "tis_clip_low": 0.9,
    },
    "all at once": {
        "use_rollout_logprobs": False,
        "use_tis": True,
        "tis_clip": 1.2,
        "entropy_coef": 0.05,
        "use_kl_loss": True,
        "kl_loss_coef": 0.1,
        "eps_clip_high": 0.28,
        "rollout_temperature": 1.3,
    },
}


def slime_args(**changes):
    """What SLiME's loss reads, as its parser sets it by default, but for `changes`."""
    defaults = {
        "loss_type": "policy_loss",
        "advantage_estimator": "grpo",
        "eps_clip": 0.2,
        "eps_clip_high": 0.2,
        "eps_clip_c": None,
        "use_rollout_logprobs": True,
        "use_tis": False,
        "tis_clip": 2.0,
        "tis_clip_low": 0.0,
        "use_kl_loss": False,
        "kl_coef": 0.0,
        "kl_loss_coef": 0.0,
        "kl_loss_type": "low_var_kl",
        "use_unbiased_kl": False,
        "entropy_coef": 0.0,
        "rollout_temperature": 1.0,
        "rollout_top_p": 1.0,
        "log_probs_chunk_size": -1,
        "calculate_per_token_loss": False,
        "recompute_loss_function": False,
        "allgather_cp": False,
        "normalize_advantages": False,
        "use_opsm": False,
        "use_opd": False,
        "get_mismatch_metrics": False,
        "custom_tis_function_path": None,
        "custom_advantage_function_path": None,
    }
    return Namespace(**defaults | changes)


@dataclass
class Case:
    """Samples of one step: siblings of an episode share a rollout; one sample is masked whole. Without `old`
    log-probabilities SLiME takes those that it trains."""

    tokens: list[torch.Tensor]
    masks: list[torch.Tensor]
    rollouts: list[int]
    rewards: list[float]
    old: list[torch.Tensor] | None
    rollout: list[torch.Tensor]
    reference: list[torch.Tensor]

    @property
    def mask_sums(self):
        return [
            sum(int(mask.sum()) for mask, owner in zip(self.masks, self.rollouts, strict=True) if owner == mine)
            for mine in self.rollouts
        ]


def make_case(seed):
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    rollouts = [0, 0, 1, 2, 3, 3, 3, 4]
    reward_of = {name: rng.choice([-0.75, -0.25, 0.25, 1.0]) for name in rollouts}
    lengths = [rng.randint(3, 12) for _ in rollouts]
    responses = [rng.randint(1, length - 1) for length in lengths]
    masks = [torch.randint(0, 2, (size,), generator=generator) for size in responses]
    masks[2][-1] = masks[0][-1] = 1
    masks[-1][:] = 0

    def values(scale):
        return [-3 + scale * torch.randn(size, generator=generator) for size in responses]

    old = values(0.5)
    return Case(
        tokens=[torch.randint(0, V, (length,), generator=generator) for length in lengths],
        masks=masks,
        rollouts=rollouts,
        rewards=[reward_of[name] for name in rollouts],
        old=old,
        rollout=[part + 0.2 * torch.randn(len(part), generator=generator) for part in old],
        reference=values(0.5),
    )


def slime_loss(args, case, hidden, head, micro_batches):
    """SLiME's loss of the whole step: Megatron averages over micro-batches, which SLiME multiplies by."""
    from slime.backends.megatron_utils.loss import compute_advantages_and_returns, loss_function

    total, metrics = torch.zeros(()), {}
    for chosen in micro_batches:
        lengths = [len(case.tokens[i]) for i in chosen]
        batch = {
            "unconcat_tokens": [case.tokens[i] for i in chosen],
            "total_lengths": lengths,
            "response_lengths": [len(case.masks[i]) for i in chosen],
            "loss_masks": [case.masks[i] for i in chosen],
            "rollout_mask_sums": torch.tensor([case.mask_sums[i] for i in chosen], dtype=torch.float32),
            "rewards": [case.rewards[i] for i in chosen],
            "log_probs": None if args.use_rollout_logprobs or case.old is None else [case.old[i] for i in chosen],
            "rollout_log_probs": [case.old[i] if args.use_rollout_logprobs else case.rollout[i] for i in chosen],
            "ref_log_probs": [case.reference[i] for i in chosen],
        }
        if args.loss_type == "policy_loss":  # else --disable-compute-advantages-and-returns
            compute_advantages_and_returns(args, batch)
        logits = torch.cat([hidden[i] for i in chosen]) @ head.T
        rollouts = len(set(case.rollouts))
        loss, _, log = loss_function(args, batch, len(micro_batches), rollouts, logits.unsqueeze(0))
        total = total + loss / len(micro_batches)
        for name, value in zip(log["keys"], log["values"][1:], strict=True):
            metrics[name] = metrics.get(name, 0.0) + value.item() / rollouts
    return total, metrics


def embedded_loss(args, case, hidden, head):
    rollouts = len(set(case.rollouts))
    places = [(s, r) for s, mask in enumerate(case.masks) for r, sampled in enumerate(mask.tolist()) if sampled]
    starts = [len(tokens) - len(mask) for tokens, mask in zip(case.tokens, case.masks, strict=True)]
    rows_NxH = torch.stack([hidden[s][starts[s] + r - 1] for s, r in places])
    target_N = torch.stack([case.tokens[s][starts[s] + r] for s, r in places])
    log_probs_N, entropy_N = action_log_probs(rows_NxH, head, target_N, args.rollout_temperature)

    def gather(values):
        return torch.stack([values[s][r] for s, r in places])

    actions = Actions(
        old=gather(case.old),
        rollout=gather(case.old if args.use_rollout_logprobs else case.rollout),
        advantage=torch.tensor([case.rewards[s] for s, _ in places]),
        weight=torch.tensor([1 / (case.mask_sums[s] * rollouts) for s, _ in places]),
        reference=gather(case.reference),
        sequence=torch.tensor([s for s, _ in places]),
    )
    return policy_loss(log_probs_N, entropy_N, actions, LossConfig.from_args(args))


def policy(case, seed):
    generator = torch.Generator().manual_seed(seed)
    hidden = [torch.randn(len(tokens), H, generator=generator).requires_grad_() for tokens in case.tokens]
    return hidden, torch.randn(V, H, generator=generator).requires_grad_()


@pytest.mark.parametrize("name", CONFIGURATIONS)
@pytest.mark.parametrize("seed", range(3))
def test_loss_and_gradients_are_slimes(one_process, name, seed):
    args, case = slime_args(**CONFIGURATIONS[name]), make_case(seed)
    hidden, head = policy(case, seed)
    expected, reported = slime_loss(args, case, hidden, head, [[0, 3, 5], [1, 2], [4, 6, 7]])
    wanted = torch.autograd.grad(expected, [*hidden, head])
    loss, parts = embedded_loss(args, case, hidden, head)
    got = torch.autograd.grad(loss, [*hidden, head], allow_unused=True)

    torch.testing.assert_close(loss, expected, **TOLERANCE)
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(torch.zeros_like(theirs) if mine is None else mine, theirs, **TOLERANCE)
    ours = {"pg_loss": "pg_loss", "entropy_loss": "entropy", "ppo_kl": "kl_to_old", "pg_clipfrac": "clip_fraction"}
    for theirs, mine in ours.items():
        assert parts[mine].item() == pytest.approx(reported[theirs], rel=1e-4, abs=1e-6), theirs


@pytest.mark.parametrize("seed", range(3))
def test_the_supervised_loss_is_slimes(one_process, seed):
    """SLiME's is a sum over tokens, which its optimizer divides by their number."""
    args, case = slime_args(loss_type="sft_loss", calculate_per_token_loss=True), make_case(seed)
    hidden, head = policy(case, seed)
    micro_batches = [[0, 3, 5], [1, 2], [4, 6, 7]]
    summed, _ = slime_loss(args, case, hidden, head, micro_batches)
    tokens = sum(max(1, int(mask.sum())) for mask in case.masks)
    expected = summed * len(micro_batches) / tokens
    wanted = torch.autograd.grad(expected, [*hidden, head])

    count = len(case.masks)
    masks, ids = [mask.tolist() for mask in case.masks], case.rollouts
    data = TrainData([part.tolist() for part in case.tokens], masks, [], [0.0] * count, ids, case.mask_sums)
    weights = token_weights(data, range(count), "token")
    places = [(s, r) for s, mask in enumerate(masks) for r, trained in enumerate(mask) if trained]
    starts = [len(tokens) - len(mask) for tokens, mask in zip(case.tokens, masks, strict=True)]
    rows_NxH = torch.stack([hidden[s][starts[s] + r - 1] for s, r in places])
    target_N = torch.stack([case.tokens[s][starts[s] + r] for s, r in places])
    log_probs_N, entropy_N = action_log_probs(rows_NxH, head, target_N, 1.0)
    loss, _ = supervised_loss(log_probs_N, entropy_N, torch.tensor([weights[s] for s, _ in places]))
    got = torch.autograd.grad(loss, [*hidden, head], allow_unused=True)

    torch.testing.assert_close(loss, expected, **TOLERANCE)
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(torch.zeros_like(theirs) if mine is None else mine, theirs, **TOLERANCE)
