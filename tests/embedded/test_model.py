from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen2Config, Qwen2ForCausalLM

from slime_swe.embedded.forward import hidden_states
from slime_swe.embedded.model import CheckpointError, ModelConfig, Qwen2
from slime_swe.embedded.train_data import pack


def hidden(model: Qwen2, tokens: torch.Tensor) -> torch.Tensor:
    """Hidden states [T, H] after the final norm of one sequence."""
    (tree,) = pack([tokens.tolist()], len(tokens))
    return hidden_states(model, tree, tokens, torch.arange(len(tokens)))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (4, 4), (6, 1)])
def test_logits_and_gradients_agree_with_transformers(tmp_path, tied, heads, kv_heads):
    config = Qwen2Config(
        vocab_size=120,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 5e4},
    )
    torch.manual_seed(0)
    reference = Qwen2ForCausalLM(config)
    for parameter in reference.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    reference.save_pretrained(tmp_path)
    ours = Qwen2.load(tmp_path)
    generator = torch.Generator().manual_seed(0)
    sequences = [torch.randint(120, (length,), generator=generator) for length in (37, 1, 140, 64, 129)]
    logits = torch.cat([hidden(ours, tokens) for tokens in sequences]) @ ours.head_weight.T
    theirs = torch.cat([reference(tokens[None]).logits[0] for tokens in sequences])
    torch.testing.assert_close(logits, theirs, atol=1e-5, rtol=1e-5)
    (logits.square().mean()).backward()
    (theirs.square().mean()).backward()
    gradients = dict(reference.named_parameters())
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name].grad, atol=1e-5, rtol=1e-3, msg=name)


def test_save_keeps_every_bit_and_transformers_reads_it(tiny_checkpoint, tmp_path):
    Qwen2.load(tiny_checkpoint).save(tmp_path)
    before, after = load_file(tiny_checkpoint / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    Qwen2ForCausalLM.from_pretrained(tmp_path)


def test_sharded_checkpoints_and_a_redundant_tied_head_load(tiny_checkpoint, tmp_path):
    tensors = load_file(tiny_checkpoint / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    names = sorted(tensors)
    halves = {"a.safetensors": names[:7], "b.safetensors": names[7:]}
    for file, part in halves.items():
        save_file({name: tensors[name] for name in part}, tmp_path / file)
    index = {"weight_map": {name: file for file, part in halves.items() for name in part}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    shutil.copy(tiny_checkpoint / "config.json", tmp_path)
    ours, whole = Qwen2.load(tmp_path), Qwen2.load(tiny_checkpoint)
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), whole.parameters(), strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, "'llama'.*'qwen2'"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "'yarn'.*'default'"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"num_hidden_layers": 3}, "differ in tensors.*layers.2"),
        ({"intermediate_size": 97}, r"\(96, 64\).*\(97, 64\)"),
        ({"vocab_size": None}, "vocab_size"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(tiny_checkpoint, tmp_path, change, message):
    shutil.copy(tiny_checkpoint / "model.safetensors", tmp_path)
    raw = json.loads((tiny_checkpoint / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in raw.items() if v is not None}))
    with pytest.raises(CheckpointError, match=message):
        Qwen2.load(tmp_path)


def test_unreadable_files_are_named(tiny_checkpoint, tmp_path):
    with pytest.raises(CheckpointError, match=r"config\.json"):
        ModelConfig.load(tmp_path)
    shutil.copy(tiny_checkpoint / "config.json", tmp_path)
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        Qwen2.load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"half a file")
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        Qwen2.load(tmp_path)
