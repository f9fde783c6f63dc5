"""Our two functions of the loss by miles' own parts, and what miles makes of an adapter."""

from __future__ import annotations

import re
from argparse import Namespace

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture
def one_process(miles_home, monkeypatch):
    """miles' parallel state and Megatron's arguments for a world of one."""
    from miles.backends.training_utils import parallel
    from miles.utils.ft_utils.process_group_utils import GroupInfo

    ways = ("intra_dp", "intra_dp_cp", "cp", "tp", "pp", "ep", "etp", "indep_dp")
    alone = parallel.ParallelState(**{way: GroupInfo(rank=0, size=1, group=None) for way in ways})
    monkeypatch.setattr(parallel, "_parallel_state", alone)
    monkeypatch.setattr("megatron.training.global_vars._GLOBAL_ARGS", Namespace(rollout_max_context_len=50))


def test_token_losses_are_summed_over_one_constant(one_process):
    from slime_swe.launch.slime.slime_plugin import constant_reduction

    masks = [torch.tensor([1, 0, 1]), torch.tensor([0, 0]), torch.tensor([1])]
    losses = torch.tensor([1.0, 100.0, 2.0, 100.0, 100.0, 4.0])
    reduce = constant_reduction([5, 4, 2], [3, 2, 1], masks, False)
    assert torch.isclose(reduce(losses), torch.tensor((1.0 + 2.0 + 4.0) / 50))


def test_masked_importance_sampling_weighs_as_icepop_and_takes_out_what_is_vetoed(one_process):
    from miles.backends.training_utils.loss_hub.corrections import icepop_function

    from slime_swe.launch.slime.slime_plugin import masked_importance_sampling

    args = Namespace(tis_clip_low=0.5, tis_clip=2.0, swe_mismatch_veto=1e-4)
    trained = [torch.tensor([-1.0, -1.0, -1.0]), torch.tensor([-30.0, -1.0])]
    sampled = [torch.tensor([-1.2, -3.0, -1.0]), torch.tensor([-1.0, -1.0])]
    masks = [torch.ones(3), torch.ones(2)]
    given = {
        "pg_loss": torch.ones(5), "train_log_probs": trained, "rollout_log_probs": sampled, "loss_masks": masks,
        "total_lengths": [5, 4], "response_lengths": [3, 2], "parallel_state": None, "max_seq_lens": None,
    }  # fmt: skip
    ours, kept, _ = masked_importance_sampling(args, **given)
    theirs, *_ = icepop_function(args, **given)
    inside = torch.cat(kept).bool()
    assert inside.tolist() == [True, False, True, False, False]  # the last token's whole sequence is vetoed
    torch.testing.assert_close(ours[inside], theirs[inside])


def test_the_model_with_an_adapter_does_not_get_the_token_mean(miles_home):
    """Why `algorithm.reduction=token` is refused with an adapter: without one it is given."""
    folder = miles_home / "miles/backends/megatron_utils"
    given = re.compile(r"provider\.calculate_per_token_loss = args\.calculate_per_token_loss")
    assert given.search((folder / "model_provider.py").read_text())
    assert "calculate_per_token_loss" not in (folder / "bridge_lora_helpers.py").read_text()


def test_an_adapter_s_checkpoint_is_no_checkpoint_to_go_on_from(miles_home):
    """Why `--resume` is refused with an adapter: Megatron's tracker is what `--load` looks for, and none is written."""
    source = (miles_home / "miles/backends/megatron_utils/checkpoint.py").read_text()
    saving = source[source.index("def save_checkpoint_with_lora") : source.index("def _is_megatron_checkpoint")]
    assert "adapter" in saving and "latest_checkpointed_iteration" not in saving
    arguments = (miles_home / "miles/utils/arguments.py").read_text()
    assert 'os.path.join(args.load, "latest_checkpointed_iteration.txt")' in arguments


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_a_server_makes_buffers_for_as_many_parameters_as_are_counted(miles_home, family):
    """Of one GPU, by SGLang's own shapes; of mixtures it asks its model, which needs a GPU."""
    import transformers
    from sglang.srt.lora.mem_pool import LoRAMemoryPool

    from slime_swe.launch.plan.serving import served_bytes
    from slime_swe.recipes.families import load_family
    from tests.recipes.changes import variant

    content = load_family(family).toy()
    recipe = variant("qwen25_coder_7b", model__config=content, algorithm__lora_rank=4)
    pool = object.__new__(LoRAMemoryPool)
    pool.base_hf_config = transformers.AutoConfig.for_model(**content)
    pool.max_loras_per_batch = pool.tp_size = pool.moe_tp_size = 1
    pool.experts_shared_outer_loras = False
    sizes = [
        shape(name, torch.nn.Module(), 4, layer)
        for layer in range(content["num_hidden_layers"])
        for name in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
        for shape in (pool.get_lora_A_shape, pool.get_lora_B_shape)
    ]
    assert served_bytes(recipe) == 2 * sum(torch.Size(size).numel() for size in sizes)
