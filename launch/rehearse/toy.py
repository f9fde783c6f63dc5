"""A toy of a recipe's model: all kinds of its layers, its switches and its chat template, and random weights; and the
recipe that is rehearsed with it, in which all else is small too."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from slime_swe.errors import UserError
from slime_swe.files import replace_file
from slime_swe.launch.model import checkpoint_path, own_template
from slime_swe.launch.rehearse.evidence import ROLLOUTS as DUMPED
from slime_swe.launch.rehearse.evidence import Reference
from slime_swe.launch.rehearse.platforms import Platform
from slime_swe.recipes.base import Data, Model, Parallel, Recipe
from slime_swe.recipes.families import Config, ControlTokens
from slime_swe.rewards.compose import GAPS
from slime_swe.rollout.agents.native import cut_notice
from slime_swe.rollout.chat.tokenizer import template_path
from slime_swe.rollout.chat.tool_formats import tool_format
from slime_swe.rollout.records import write_version_spans
from slime_swe.rollout.tools import TOOLS
from slime_swe.sample import Sample

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
    """Make the toy's `config.json`: the family's own small one, with the recipe's values where sizes have no part."""
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
    """Return how many layers the toy has."""
    return int(text_config(model.kind.toy())["num_hidden_layers"])


def _as_dense(config: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Remove the experts of a family's toy, for a recipe's model that has none."""
    inner, stated = text_config(config), text_config(theirs)
    for key in [key for key in inner if "expert" in key or key.startswith("moe_")]:
        assert key not in stated, key
        del inner[key]
    inner.setdefault("intermediate_size", WIDTH)
    return {**config, "model_type": theirs["model_type"]}


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Put what newer versions of Transformers write in `rope_parameters` beside the rest, as older ones do."""
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
    """Write a Hugging Face folder with the toy; returns what its `config.json` says, and where its template is from.

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


# A tokenizer of a small vocabulary with a model's control tokens and chat template.
WORDS = 1024  # tokens of plain text


def template_of(model: Model) -> tuple[str, str]:
    """Return the chat template of the recipe's run, and what it is: the recipe's, the checkpoint's, or, where that is
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
    """Train a tokenizer on the template and what the agent says, and write its files; returns the tokenizer.

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


def make_model(config: dict[str, Any]) -> Any:
    """Make the Transformers model of a `config.json`, on the CPU in float32."""
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
    """Fill in random weights, so that a fault in any of them shows: also in vectors, which start as ones or zeros."""
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
    """List the routers' biases: they are buffers, which are in the checkpoint."""
    return [tensor for name, tensor in model.named_buffers() if name.endswith("e_score_correction_bias")]


def _merged(written: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Add to what Transformers wrote the family's own keys, which published models have and SLiME and SGLang read."""
    merged = {**written, **{key: value for key, value in config.items() if not isinstance(value, dict)}}
    if "text_config" in config:
        merged["text_config"] = {**written["text_config"], **config["text_config"]}
    return merged


def shape_keys(config: dict[str, Any], model: Model) -> dict[str, Any]:
    """Return the keys of a `config.json` that the family reads, which are what a recipe states."""
    from slime_swe.recipes.families import read_config

    values: Config = read_config(model.kind, config)[1]
    return values.part()


# A recipe -> the recipe that is rehearsed: its algorithm, schedule and layout, with a toy of its model, small amounts
# and no more ranks than one machine bears.
ROLLOUTS = 3
GROUPS, EPISODES = 2, 4
CONTEXT, REPLY, TURNS = 2048, 48, 4  # tokens of an episode, and of a micro-batch; of a reply; replies
EPSILON = 1e-4  # of AdamW: what a gradient of 0 has of rounding is then no step
SECONDS = 900.0  # of an episode, on a machine that trains meanwhile


@dataclass(frozen=True)
class Layout:
    """A layout of ranks. parallel: the sizes. ranks: the trainer's. halved: what is smaller than the recipe's."""

    parallel: Parallel
    ranks: int
    halved: tuple[str, ...]


def layout_of(recipe: Recipe, platform: Platform) -> Layout:
    """Shrink the recipe's layout to the machine.

    Context, then tensor, then pipeline parallelism is halved, the largest first, until it fits; then experts'
    parallelism. A stage of the pipeline has one of the toy's layers at least. The copies of the model are as many as
    the recipe has, fit, and show how they share.
    """
    given, most = recipe.parallel, platform.ranks(recipe)
    sizes = {"cp": given.cp, "tp": given.tp, "pp": given.pp}
    while layers(recipe.model) % sizes["pp"]:
        sizes["pp"] //= 2
    while prod(sizes.values()) > most:
        largest = max(sizes, key=lambda way: sizes[way])
        sizes[largest] //= 2
    group = prod(sizes.values())
    copies = recipe.cluster.train_gpus // prod((given.cp, given.tp, given.pp))
    kept = min(copies, platform.copies, most // group)
    ranks = kept * group
    sizes |= {"ep": given.ep, "etp": given.etp}
    while ranks % (sizes["ep"] * sizes["etp"] * sizes["pp"]):
        sizes["ep" if sizes["ep"] > 1 else "etp"] //= 2
    if given.etp > 1 and sizes["ep"] == 1:
        sizes["etp"] = sizes["tp"]  # another size leaves gradients unsummed (recipes/rules.py)
    parallel = replace(
        given,
        tp=sizes["tp"],
        pp=sizes["pp"],
        cp=sizes["cp"],
        ep=sizes["ep"],
        etp=sizes["etp"],
        max_tokens_per_gpu=CONTEXT // sizes["cp"],
    )
    pairs = {f"parallel.{way}": (int(getattr(given, way)), size) for way, size in sizes.items()}
    pairs["copies of the model"] = (copies, kept)
    halved = tuple(f"{name} {whole} -> {size}" for name, (whole, size) in pairs.items() if whole != size)
    return Layout(parallel, ranks, halved)


def scaled(recipe: Recipe, platform: Platform, toy: Path, config: dict[str, Any], folder: Path) -> Recipe:
    """Return the recipe that is rehearsed. toy: a model's folder. config: its `config.json`. folder: that of runs."""
    layout = layout_of(recipe, platform)
    small = replace(
        recipe,
        model=replace(recipe.model, checkpoint=str(toy), config=config, folder=str(toy.parent)),
        cluster=replace(recipe.cluster, nodes=1, ray_address=""),
        parallel=layout.parallel,
        serving=replace(
            recipe.serving,
            concurrency=2 * GROUPS * EPISODES,
            external_engines=[],
            router_ip="",
            router_port=0,
        ),
        rollout=replace(
            recipe.rollout,
            batch_size=GROUPS,
            samples_per_task=EPISODES,
            max_turns=TURNS,
            max_response=REPLY,
            max_context=CONTEXT,
            time_budget=SECONDS,
            wall_time_budget=0.0,
            agent="native",
            grammar="",
            sandbox="local",
            sandbox_concurrency=2,
        ),
        reward=replace(
            recipe.reward,
            overlong_tokens=CONTEXT - 1,
            overlong_penalty=GAPS[recipe.reward.mode] / 2,
            overlong_turns=0,
            weights={},
        ),
        data=Data(train=["synthetic:train"], shuffle=recipe.data.shuffle),
        algorithm=replace(recipe.algorithm, group_filter="", opsm_delta=0.0),
        optimizer=replace(recipe.optimizer, lr=platform.learning_rate, eps=EPSILON, warmup_steps=0),
        run=replace(
            recipe.run,
            name="",
            dir=str(folder),
            num_rollouts=ROLLOUTS,
            eval_interval=0,
            save_interval=1,
            save_every_minutes=0.0,
            keep_checkpoints=0,
            keep_exports=0,
            keep_best="",
            trackers=["tensorboard"],
        ),
    )
    return platform.placed(small, layout.ranks)


def one_rank(recipe: Recipe) -> Recipe:
    """Return the rehearsed recipe, trained by a single rank."""
    alone = Parallel(max_tokens_per_gpu=CONTEXT, recompute=recipe.parallel.recompute)
    serving = replace(recipe.serving, gpus_per_engine=1, ep=1, dp_attention=False)
    return replace(recipe, parallel=alone, serving=serving, cluster=replace(recipe.cluster, gpus_per_node=1))


# Batches of random tokens in the format of SLiME's dumps, to train on where no server can sample from the model.
#
# They are no rollouts: there is no agent, no sandbox and no reward in them. Their log-probabilities, and experts where
# the recipe replays them, are those that Transformers computes with the toy's weights.
LEAST, MOST, PROMPT = 200, 400, 100  # tokens of a sample, and of its prompt


def write_batches(recipe: Recipe, config: dict[str, Any], folder: Path) -> None:
    """Write a batch for each rollout of the recipe, all of the first weights."""
    model, generator = Reference(config, Path(recipe.model.checkpoint)), torch.Generator().manual_seed(recipe.run.seed)
    for number in range(recipe.run.num_rollouts):
        samples = [_sample(recipe, model, generator, number, place) for place in range(GROUPS * EPISODES)]
        path = folder / DUMPED.format(rollout_id=number)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"rollout_id": number, "samples": [sample.to_dict() for sample in samples]}, path)


def _sample(recipe: Recipe, model: Reference, generator: torch.Generator, number: int, place: int) -> Sample:
    length = int(torch.randint(LEAST, MOST, (), generator=generator))
    tokens = torch.randint(recipe.model.shape.vocab, (length,), generator=generator).tolist()
    found, first = model.forward(tokens), number * GROUPS * EPISODES
    sample = Sample(index=first + place, group_index=number * GROUPS + place // EPISODES, metadata={})
    sample.tokens, sample.response_length = tokens, length - PROMPT
    sample.loss_mask = [1] * sample.response_length
    sample.rollout_log_probs = found.log_probs_T[PROMPT - 1 :].tolist()
    sample.reward, sample.status = float(torch.rand((), generator=generator)), Sample.Status.COMPLETED
    write_version_spans(sample, [("1", sample.response_length)])
    if recipe.algorithm.routing_replay == "rollout":
        layers = recipe.model.shape.megatron["num_layers"]
        chosen = next(iter(found.experts.values()))
        table = torch.zeros(length - 1, layers, chosen.shape[-1], dtype=torch.int32)
        for layer, experts in found.experts.items():
            table[:, layer] = experts[: length - 1].int()
        sample.rollout_routed_experts = table
    return sample
