"""A tokenizer of a small vocabulary with a model's control tokens and chat template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from slime_swe.errors import UserError
from slime_swe.launch.args import checkpoint_path
from slime_swe.launch.template_calls import own_template
from slime_swe.recipes.base import Model
from slime_swe.recipes.families.tokens import ControlTokens
from slime_swe.rollout.agents.native import cut_notice
from slime_swe.rollout.chat.tokenizer import template_path
from slime_swe.rollout.chat.tool_formats import tool_format
from slime_swe.rollout.tools import TOOLS

WORDS = 1024  # tokens of plain text


def template_of(model: Model) -> tuple[str, str]:
    """The chat template that the recipe's run has, and what it is: the recipe's, the checkpoint's, or, where that is
    not on this machine, a shipped one of its family or with the same tool calls. Raises `UserError` where none is."""
    if model.chat_template:
        return template_path(model.chat_template).read_text(encoding="utf-8"), model.chat_template
    folder = checkpoint_path(model.checkpoint, model.folder)
    own = own_template(folder)
    if own:
        return own, f"that of {folder}"
    name = model.kind.template or tool_format(model.tool_calls).template
    if not name:
        raise UserError(
            f"{folder} holds no chat template, and none is shipped for model.tool_format={model.tool_calls}: "
            "download the checkpoint's tokenizer, or name a template by model.chat_template"
        )
    return template_path(name).read_text(encoding="utf-8"), f"shipped {name}, as {folder} holds none"


def write_tokenizer(folder: Path, template: str, control: ControlTokens) -> Any:
    """Train it on the template and what the agent says, write its files; returns it.

    Raises `UserError` where the template holds none of the tokens that end a turn.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    if not any(token in template for token in control.ends):
        raise UserError(
            f"the chat template holds none of {', '.join(control.ends)}, which end a turn by the model's family "
            "(control_tokens in its file)"
        )
    special = [control.pad, *control.control]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=WORDS, initial_alphabet=alphabet, show_progress=False)
    schemas = json.dumps([tool.spec.schema() for tool in TOOLS])
    tokenizer.train_from_iterator([schemas, template, cut_notice(1, any_run=False)], trainer)
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens([word for word in control.words if word in template])
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=control.ends[0],
        pad_token=control.pad,
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )
    made.save_pretrained(folder)
    return made
