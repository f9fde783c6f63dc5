"""Which weights `--keep-old-actor` takes old log-probabilities from, by SLiME's own loops, updates and backups."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch


class Trainer:
    """One parameter, which counts training steps. `record` holds (sampled under, trained, old) of each step."""

    def __init__(self, args):
        from slime.utils.tensor_backper import TensorBackuper

        self.args = args
        self.parameter = torch.zeros(1)
        self.weights_backuper = TensorBackuper.create(lambda: [("weight", self.parameter)], single_tag=None)
        for tag in ("actor", "old_actor", "rollout_actor"):
            self.weights_backuper.backup(tag)
        self.served = 0
        self.record = []
        self.weight_updater = MagicMock(update_weights=self._serve)
        self.rollout_manager = MagicMock()
        self.rollout_manager.get_updatable_engines_and_lock.remote.return_value = ["engine"], None, 0, None, None, None

    def _serve(self):
        self.served = self._weights("actor")

    def _weights(self, tag):
        return int(self.weights_backuper.get(tag)["weight"])

    def update_weights(self):
        from slime.backends.megatron_utils.actor import MegatronTrainRayActor

        MegatronTrainRayActor.update_weights(self)

    def async_train(self, rollout_id, sampled_under):
        self.record.append((sampled_under, self._weights("actor"), self._weights("old_actor")))
        self.parameter += 1
        self.weights_backuper.backup("actor")

    def clear_memory(self):
        pass


def steps(loop, monkeypatch):
    """What SLiME's loop trains: each rollout is sampled under the weights that serve when it begins."""
    args = MagicMock(
        start_rollout_id=0, num_rollout=5, update_weights_interval=1, keep_old_actor=True, eval_interval=None,
        **dict.fromkeys(
            ("colocate", "release_train", "use_critic", "offload_rollout", "offload_train", "use_fault_tolerance",
             "debug_train_only", "debug_rollout_only", "check_weight_update_equal"), False),
    )  # fmt: skip
    module = importlib.import_module(loop)
    trainer, manager = Trainer(args), MagicMock()
    manager.generate.remote.side_effect = lambda rollout_id: trainer.served
    monkeypatch.setattr("ray.get", lambda found: found)
    for name, value in {
        "configure_logger": None,
        "init_tracking": None,
        "finish_tracking": None,
        "create_placement_groups": MagicMock(),
        "create_rollout_manager": (manager, 1),
        "create_training_models": (trainer, None),
        "should_run_periodic_action": False,
    }.items():
        monkeypatch.setattr(module, name, lambda *args, found=value, **options: found)
    module.train(args)
    return trainer.record


def test_asynchronously_the_old_weights_are_those_that_sampled(one_process, monkeypatch):
    record = steps("train_async", monkeypatch)
    assert [trained for _, trained, _ in record] == [0, 1, 2, 3, 4]
    assert all(old == sampled for sampled, _, old in record)
    assert all(old == trained - 1 for _, trained, old in record[1:])


def test_synchronously_they_are_older_than_those_that_sampled(one_process, monkeypatch):
    """Why a recipe with `algorithm.keep_old_actor` on such a schedule is refused."""
    record = steps("train", monkeypatch)
    assert all(sampled == trained for sampled, trained, _ in record)
    assert [sampled - old for sampled, _, old in record] == [0, 1, 1, 1, 1]


@pytest.mark.parametrize(("estimator", "keep", "passes"), [("grpo", False, 0), ("grpo", True, 1), ("gspo", False, 1)])
def test_which_settings_cost_a_log_probability_pass(one_process, monkeypatch, estimator, keep, passes):
    """SLiME's `train_actor`, of which the forward pass and the step are left out."""
    from slime.backends.megatron_utils import actor

    counted = MagicMock(return_value={})
    args = SimpleNamespace(
        advantage_estimator=estimator, keep_old_actor=keep, loss_type="policy_loss", kl_coef=0,
        compute_advantages_and_returns=True, save_debug_train_data=None, ref_update_interval=None,
        **dict.fromkeys(
            ("use_rollout_routing_replay", "use_routing_replay", "use_rollout_logprobs", "get_mismatch_metrics",
             "use_critic", "use_opd"), False),
    )  # fmt: skip
    own = MagicMock(args=args, compute_log_prob=counted, rollout_data_postprocess=None, _active_model_tag="actor")
    own.weights_backuper.backup_tags = ["actor"]
    for name in (
        "get_data_iterator",
        "compute_advantages_and_returns",
        "train_metric_utils",
        "train_data_utils",
        "train",
    ):
        monkeypatch.setattr(actor, name, MagicMock())
    monkeypatch.setitem(actor.Timer().start_time, "train_wait", 0.0)  # the actor's creation starts it
    actor.MegatronTrainRayActor.train_actor(own, 0, {"num_microbatches": [1], "global_batch_sizes": [1]})
    assert counted.call_count == passes
