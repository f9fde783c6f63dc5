"""A random Qwen2 checkpoint, small enough that a test trains on it or serves it in milliseconds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{%- if message.role == 'tool' %}"
    "{{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}"
    "{%- else %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
CORPUS = (
    "def area(width, height):\n    return width * height\n",
    "def mean(values):\n    if not values:\n        return 0\n    return sum(values) / len(values)\n",
    'system user assistant <tool_call>\n{"name": "view", "arguments": {"path": "shop.py"}}\n</tool_call>\n',
    "<tool_response>\nok: 2 passed, 1 failed\n</tool_response>\n",
)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a Qwen2 (hidden 64, 2 layers, 4 heads over 2, tied, random weights) with a byte-level BPE and a
    ChatML template; its weights are wide enough that sampled tokens differ from each other."""
    directory = tmp_path_factory.mktemp("tiny_checkpoint")
    tokenizer = _save_tokenizer(directory)
    _save_model(directory, vocab_size=-(-len(tokenizer) // 8) * 8)
    return directory


def _save_tokenizer(directory: Path):
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIAL_TOKENS, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(CORPUS, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHAT_TEMPLATE
    )
    tokenizer.save_pretrained(directory)
    return tokenizer


def _save_model(directory: Path, vocab_size: int) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        eos_token_id=SPECIAL_TOKENS.index("<|im_end|>"),
    )
    model = Qwen2ForCausalLM(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 or name.endswith("bias"):
                parameter.normal_(0.0, 0.1, generator=generator)
    model.save_pretrained(directory)
