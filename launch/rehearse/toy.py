"""A toy of a recipe's model: all kinds of its layers, its switches and its chat template, and random weights."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from slime_swe.files import replace_file
from slime_swe.launch.rehearse.platforms import Platform
from slime_swe.launch.rehearse.reference import Reference
from slime_swe.launch.rehearse.tokenizer import template_of, write_tokenizer
from slime_swe.recipes.base import Model
from slime_swe.recipes.families import Config

HEADS, KEY_HEADS, HEAD_DIM = 8, 4, 16  # as many as a layout of eight ranks divides
VOCABULARY = 1152  # divided by every layout; more than the tokenizer has, as published models have it
POSITIONS = 4096
DEVIATION = 0.05  # of the weights; of vectors, around what the model class starts them with
ENDS_LIKE = 40  # other tokens together: as likely are those that end a turn, after a prompt of the recipe's
SEED = 1
VISION = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64}  # not trained
WIDTH = 128  # of a dense feed-forward layer
KEPT = (  # what changes the computation and not its size: of the recipe's model
    "rope_theta",
    "rms_norm_eps",
    "tie_word_embeddings",
    "norm_topk_prob",
    "routed_scaling_factor",
    "attention_bias",
    "partial_rotary_factor",
)


def toy_config(model: Model, platform: Platform) -> dict[str, Any]:
    """The `config.json` of the toy: the family's own small one, with the recipe's values where sizes have no part."""
    config = copy.deepcopy(model.kind.toy())
    if config["model_type"] != model.config["model_type"]:
        config = _as_dense(config, model.config)
    for inner, theirs in _parts(config, model.config):
        inner |= {key: value for key, value in _plain(theirs).items() if key in KEPT and key in inner}
        if "tie_word_embeddings" in theirs:  # a checkpoint with a text model has it twice: SLiME reads the text model's
            inner["tie_word_embeddings"] = theirs["tie_word_embeddings"]
    text = text_config(config)
    text |= {"vocab_size": VOCABULARY, "max_position_embeddings": POSITIONS, "num_attention_heads": HEADS}
    text["num_key_value_heads"] = HEADS if "kv_lora_rank" in text else KEY_HEADS  # latent attention has no groups
    if "head_dim" not in text_config(model.config):  # SGLang reads it in no model whose family has none
        text.pop("head_dim", None)
    elif "head_dim" in text:
        text["head_dim"] = max(HEAD_DIM, text.get("rotary_dim", 0))
    text |= platform.toy_values(text, text_config(model.config))
    return config


def layers(model: Model) -> int:
    """How many the toy has."""
    return int(text_config(model.kind.toy())["num_hidden_layers"])


def _as_dense(config: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Of a family whose toy has experts and whose recipe's model has none."""
    inner, stated = text_config(config), text_config(theirs)
    for key in [key for key in inner if "expert" in key or key.startswith("moe_")]:
        assert key not in stated, key
        del inner[key]
    inner.setdefault("intermediate_size", WIDTH)
    return {**config, "model_type": theirs["model_type"]}


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """With what newer versions of Transformers write in `rope_parameters` beside the rest, as older ones."""
    return {**config, **config.get("rope_parameters", {})}


def text_config(config: Mapping[str, Any]) -> dict[str, Any]:
    inner: dict[str, Any] = config.get("text_config", config)
    return inner


def _parts(config: dict[str, Any], theirs: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    pairs = [(config, theirs)]
    if "text_config" in config:
        pairs.append((config["text_config"], theirs.get("text_config", {})))
    return pairs


def write_toy(model: Model, platform: Platform, folder: Path) -> dict[str, Any]:
    """Write a Hugging Face folder with it; returns what its `config.json` says, and where its template is from.

    The weights have bfloat16's precision and are the same each time. The model class is that of Transformers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    template, source = template_of(model)
    control = model.kind.control_tokens
    tokenizer = write_tokenizer(folder, template, control)
    config = toy_config(model, platform)
    ends = [tokenizer.convert_tokens_to_ids(token) for token in control.ends]
    stops = ends[0] if len(ends) == 1 else ends
    text_config(config)["eos_token_id"] = config["eos_token_id"] = stops
    made = make_model(config)
    fill(made)
    made.to(torch.bfloat16).save_pretrained(folder)
    if model.kind.packed_experts:  # Transformers has them so, and writes them one by one
        tensors = made.state_dict()
        if config.get("tie_word_embeddings"):  # one tensor of two names
            del tensors["lm_head.weight"]
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    written = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    kept = _merged(written, config)
    replace_file(folder / "config.json", json.dumps(kept, indent=2).encode())
    generation = {"eos_token_id": stops, "pad_token_id": tokenizer.pad_token_id}
    replace_file(folder / "generation_config.json", json.dumps(generation).encode())
    return {"config": kept, "template": source}


def make_model(config: dict[str, Any]) -> Any:
    """The Transformers model of a `config.json`, on the CPU in float32."""
    import transformers

    kind = config["model_type"]
    given = {key: value for key, value in config.items() if key != "model_type"}
    if "text_config" in config:
        given["vision_config"] = VISION
    settings = transformers.AutoConfig.for_model(kind, **given)
    torch.manual_seed(SEED)
    loader = transformers.AutoModelForImageTextToText if "text_config" in config else transformers.AutoModelForCausalLM
    made: Any = loader
    return made.from_config(settings, attn_implementation="eager").float()


@torch.no_grad()
def fill(model: Any) -> None:
    """Random weights, so that a fault in any of them shows: vectors too, which model classes start as ones or zeros."""
    generator = torch.Generator().manual_seed(SEED)
    for parameter in [*model.parameters(), *_biases(model)]:
        noise = torch.randn(parameter.shape, generator=generator) * DEVIATION
        parameter.copy_(parameter + 2 * noise if parameter.dim() == 1 else noise)


@torch.no_grad()
def end_replies(
    folder: Path, config: Mapping[str, Any], ends: Sequence[int], prompt: Sequence[int], *, likely: int = ENDS_LIKE
) -> None:
    """Let each token of a reply to this prompt, and to ones like it, end it with a probability of some percent.

    Replies have different lengths then, and so different rewards. The rows of these tokens in the output projection get
    what the last hidden states of the prompt have in common. likely: so many other tokens together are as likely.
    """
    model, states = Reference(config, folder).model, []
    model.get_output_embeddings().register_forward_pre_hook(lambda _, given: states.append(given[0][0]))
    model(input_ids=torch.tensor([prompt]), use_cache=False)
    common = states[0].mean(dim=0)
    shift = common * math.log(likely / len(ends)) / common.dot(common)
    (file,) = folder.glob("*.safetensors")
    weights = load_file(file)
    name = next((name for name in weights if name.endswith("lm_head.weight")), "")
    rows = weights[name or next(name for name in weights if name.endswith("embed_tokens.weight"))]  # tied ones
    rows[ends] = (rows[ends] + shift).to(rows.dtype)
    save_file(weights, file, metadata={"format": "pt"})


def _biases(model: Any) -> list[torch.Tensor]:
    """Of routers: buffers, which are in the checkpoint."""
    return [tensor for name, tensor in model.named_buffers() if name.endswith("e_score_correction_bias")]


def _merged(written: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """What Transformers wrote, with the family's own keys, which published models have and SLiME and SGLang read."""
    merged = {**written, **{key: value for key, value in config.items() if not isinstance(value, dict)}}
    if "text_config" in config:
        merged["text_config"] = {**written["text_config"], **config["text_config"]}
    return merged


def shape_keys(config: dict[str, Any], model: Model) -> dict[str, Any]:
    """As many keys of a `config.json` as the family reads, which is what a recipe states."""
    from slime_swe.recipes.families import read_config

    values: Config = read_config(model.kind, config)[1]
    return values.part()
