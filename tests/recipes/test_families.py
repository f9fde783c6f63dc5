"""What a family states: shapes read from config.json, parameter counts of real models, and one from outside."""

from __future__ import annotations

import json

import pytest

from slime_swe.errors import UserError
from slime_swe.launch.config import resolve
from slime_swe.launch.model import read_folder
from slime_swe.launch.plan.plan import make_plan
from slime_swe.launch.rehearse.toy import template_of, write_tokenizer
from slime_swe.launch.slime.checkouts import Checkouts
from slime_swe.launch.slime.render import render
from slime_swe.recipes.families import FAMILIES, load_family, read_config
from slime_swe.recipes.registry import RECIPES, load_recipe
from slime_swe.rollout.agents.native import load_template
from slime_swe.rollout.chat.tool_formats import TOOL_FORMATS

DENSE = {
    "model_type": "qwen2",
    "hidden_act": "silu",
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
}
MIXTURE = {
    "model_type": "qwen3_moe",
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 5472,
    "max_position_embeddings": 262144,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 10000000,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def read(config):
    return read_config(load_family("", config["model_type"]), config)[0]


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [  # exactly where the published count is known, else to the digits of the model card
        ("qwen25_coder_1_5b", 1_543_714_304, 1_543_714_304),
        ("qwen25_coder_7b", 7_615_616_512, 7_615_616_512),
        ("qwen25_coder_32b", 32_763_876_352, 32_763_876_352),
        ("qwen3_coder_30b_a3b", pytest.approx(30.53e9, abs=5e6), pytest.approx(3.35e9, abs=5e6)),
        ("qwen3_30b_a3b_instruct", pytest.approx(30.53e9, abs=5e6), pytest.approx(3.35e9, abs=5e6)),
        ("qwen3_8b", pytest.approx(8.19e9, abs=5e6), pytest.approx(8.19e9, abs=5e6)),
        ("qwen3_4b_instruct", pytest.approx(4.02e9, abs=5e6), pytest.approx(4.02e9, abs=5e6)),
    ],
)
def test_parameters_of_published_models(name, total, active):
    shape = load_recipe(name).model.shape
    assert shape.parameters == total
    assert shape.active_parameters == active


@pytest.mark.parametrize("name", FAMILIES)
def test_transformers_builds_a_family_s_toy_with_the_parameters_that_we_count(name):
    transformers = pytest.importorskip("transformers")
    family = load_family(name)
    toy = family.toy()
    text = toy.get("text_config", toy)  # without a vision tower
    kind = toy["model_type"] + "_text" * (text is not toy)
    config = transformers.AutoConfig.for_model(kind, **{key: text[key] for key in text if key != "model_type"})
    model = transformers.AutoModelForCausalLM.from_config(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == read(toy).parameters


@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_config_leaves_out_is_refused_or_read_as_transformers_has_it(name):
    transformers = pytest.importorskip("transformers")
    family = load_family(name)
    toy = family.toy()
    text = toy.get("text_config", toy)  # without a vision tower
    kind = toy["model_type"] + "_text" * (text is not toy)
    for left_out in text.keys() - {"model_type"}:
        given = {key: value for key, value in text.items() if key != left_out}
        try:
            found = read_config(family, {**toy, "text_config": given} if text is not toy else given)[1].values
        except UserError as error:
            assert f"{left_out} is missing" in str(error)
            continue
        given.pop("model_type", None)
        theirs = transformers.AutoConfig.for_model(kind, **given).to_dict()
        for place, value in found.items():
            key = place.removeprefix("text_config.")
            assert key == "model_type" or value == theirs.get(key, value), (left_out, key)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_family_states_is_there(name):
    family = load_family(name)
    assert family.tool_format in ("", *TOOL_FORMATS)
    _, config = read_config(family, family.toy())
    assert config.part() == family.toy() and config.unread() == []


@pytest.mark.parametrize(("name", "config"), [("qwen25_coder_1_5b", DENSE), ("qwen3_coder_30b_a3b", MIXTURE)])
def test_recipes_state_what_the_published_config_says(name, config):
    model = load_recipe(name).model
    assert read_config(model.kind, model.config)[1].values == read_config(model.kind, config)[1].values
    assert model.shape == read(config)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_states_no_more_of_a_config_than_is_read(name):
    model = load_recipe(name).model
    assert read_config(model.kind, model.config)[1].part() == model.config


def test_the_rotary_base_is_read_where_newer_writers_put_it():
    config = {**DENSE, "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}
    del config["rope_theta"]
    assert read(config) == read(DENSE)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({**DENSE, "use_sliding_window": True}, "use_sliding_window is True"),
        ({**DENSE, "hidden_act": "gelu"}, "hidden_act is 'gelu', and only 'silu'"),
        ({**DENSE, "rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling.type is 'yarn'"),
        ({**DENSE, "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6}}, "rope_parameters.rope_type is 'yarn'"),
        ({**MIXTURE, "attention_bias": True}, "attention_bias is True"),
        ({**MIXTURE, "mlp_only_layers": [0]}, r"mlp_only_layers is \[0\]"),
        ({**MIXTURE, "decoder_sparse_step": 2}, "decoder_sparse_step is 2"),
        ({**MIXTURE, "norm_topk_prob": False}, "norm_topk_prob is False"),
        ({key: value for key, value in MIXTURE.items() if key != "norm_topk_prob"}, "norm_topk_prob is missing"),
        ({name: value for name, value in DENSE.items() if name != "hidden_size"}, "hidden_size is missing"),
        ({**DENSE, "quantization_config": {"quant_method": "awq", "bits": 4}}, "quant_method is 'awq': weights"),
        ({**MIXTURE, "quantization_config": {"quant_method": "mxfp4"}}, "a server may have fp8 or compressed-tensors"),
        ({name: value for name, value in DENSE.items() if name != "rope_theta"}, "rope_theta is missing"),
    ],
)
def test_what_could_not_be_trained_is_refused(config, said):
    with pytest.raises(UserError, match=said):
        read(config)


def test_a_server_s_weights_may_be_of_a_form_that_they_are_updated_in():
    for form in ({"quant_method": "fp8"}, {"quant_method": "compressed-tensors"}, None):
        assert read({**DENSE, "quantization_config": form}) == read(DENSE)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not JSON"),
        ('{"model_type": "gpt2"}', "config.json: it is a gpt2 model, and the recipe is for qwen2 models"),
        (None, r"can't read .*config\.json: No such file"),
    ],
)
def test_a_file_that_is_no_such_config_is_named(tmp_path, content, said):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError, match=said) as error:
        read_folder(tmp_path, load_family("qwen2"))
    assert str(tmp_path) in str(error.value)


OUTSIDE = """
from dataclasses import dataclass, replace

from slime_swe.recipes import qwen25_coder_7b
from slime_swe.recipes.families import Family
from slime_swe.recipes.families.decoder import attention_flags, decoder, grouped_attention, toy_decoder
from slime_swe.recipes.families import ControlTokens
from slime_swe.recipes.layers import Layer, Part
from slime_swe.recipes.layers.feed_forward import GatedFeedForward
from slime_swe.recipes.layers import Cut, Shard


@dataclass(frozen=True)
class Lookup(Part):
    '''A feed-forward layer that is a table, of which a token reads one row; each GPU of a pipeline stage has all.'''

    rows: int

    def shard(self, layout):
        return Shard(dense=self.hidden * (self.rows + 1))

    def saved(self, layout, *, selective, skew):
        return (self.norm_bytes + 2 * self.hidden) / layout.tp

    def workspace(self, layout, *, skew):
        return self.gathered_bytes

    @property
    def active(self):
        return 2 * self.hidden

    def state(self, engine):
        return 4 * self.rows

    def engine_cuts(self):
        return (Cut("gpus", f"a table of {self.rows} rows", self.rows),)


class Ours(Family):
    model_types = ("ours",)
    tool_format = "qwen3_coder"
    control_tokens = ControlTokens(("<|turn|>", "<|stop|>"), ("<|stop|>",), "<|none|>")
    served_on_cpu = in_miles = False

    def read(self, config):
        attention = grouped_attention(config, output_gate=True)
        dense = GatedFeedForward(attention.hidden, config.size("intermediate_size"))
        table = Lookup(attention.hidden, config.size("table_rows"))
        layers = [Layer(attention, part) for part in (dense, table)] * (config.size("num_hidden_layers") // 2)
        spec = {"spec": ["ours.megatron", "layer_spec"], "ffn_hidden_size": dense.width}
        return decoder(config, layers, **spec, **attention_flags(attention))

    def toy(self):
        return toy_decoder("ours", table_rows=1000, max_position_embeddings=65536)


def recipe():
    base = qwen25_coder_7b.recipe()
    model = replace(base.model, checkpoint="me/ours", config=Ours().toy(), family="ourfamily.Ours", tool_format="")
    return replace(base, name="ours", model=model)
"""


@pytest.fixture
def ours(tmp_path, monkeypatch):
    """A module with a kind of layer, a family of it and a recipe; a checkpoint's config.json in the model folder."""
    (tmp_path / "ourfamily.py").write_text(OUTSIDE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "models" / "me" / "ours"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(load_family("ourfamily.Ours").toy() | {"torch_dtype": "bfloat16"}))
    return folder


def test_a_family_from_outside_is_checked_planned_and_rendered(ours, tmp_path):
    recipe = resolve("ourfamily", ["parallel.tp=2", "serving.gpus_per_engine=2"])
    shape = recipe.model.shape
    attention, dense, table = 64 * (3 * 128 + 2 * 64) + 64, 64 * (3 * 128 + 1), 64 * (1000 + 1)
    assert shape.parameters == 2 * attention + dense + table + 512 * 64 + 64
    found = make_plan(recipe)
    assert found.fits
    cut, norms = 2 * attention + dense + 512 * 64, 64 * 4  # a table, and norms, are on both GPUs
    assert found.budgets[0].components[0].bytes == 2 * (table + (cut - 64 * 3) / 2 + norms)
    assert recipe.model.tool_calls == "qwen3_coder"
    flags = render(recipe, tmp_path / "run", checkouts=Checkouts(tmp_path, tmp_path)).flags["model"]
    assert " ".join(flags).find("--spec ours.megatron layer_spec") >= 0


def test_a_checkpoint_of_a_family_from_outside_is_compared(ours):
    larger = load_family("ourfamily.Ours").toy() | {"num_hidden_layers": 8}
    (ours / "config.json").write_text(json.dumps(larger))
    assert resolve("ourfamily", ["model=me/ours", "parallel.tp=1"]).model.config == larger
    with pytest.raises(UserError, match=r"model\.config\.num_hidden_layers=2 is not what .* says, 8"):
        resolve("ourfamily", ["parallel.tp=1"])


def test_the_rules_hold_for_a_family_from_outside(ours):
    with pytest.raises(UserError, match=r"gpus_per_engine=8 can't share out .* a table of 1004 rows: use 1, 2 or 4"):
        resolve("ourfamily", ["model.config.table_rows=1004", "serving.gpus_per_engine=8"])
    with pytest.raises(UserError, match=r"table_row is not a part .*: did you mean model\.config\.table_rows"):
        resolve("ourfamily", ["model.config.table_row=5"])
    assert resolve("ourfamily", ["parallel.tp=1", "model.tool_format=slime_swe.rollout.chat.hermes.HERMES"])


def test_miles_refuses_a_family_from_outside_that_says_so(ours):
    with pytest.raises(UserError, match=r"miles trains no ours models: use engine=slime"):
        resolve("ourfamily", ["parallel.tp=1", "engine=miles"])


def test_the_tokenizer_of_a_rehearsal_is_that_of_a_family_from_outside(ours, tmp_path):
    turn = "<|turn|>{{ message.role }}\n{{ message.content }}<|stop|>\n"
    template = f"{{% for message in messages %}}{turn}{{% endfor %}}{{{{ '<|turn|>assistant\n' }}}}"
    (ours / "chat_template.jinja").write_text(template)
    model = resolve("ourfamily", ["parallel.tp=1"]).model
    made = write_tokenizer(tmp_path / "toy", template_of(model)[0], model.kind.control_tokens)
    assert load_template(str(tmp_path / "toy")).stop_token_ids == [made.eos_token_id]
    assert (made.eos_token, made.pad_token) == ("<|stop|>", "<|none|>")


@pytest.mark.parametrize("name", ["gemma", "ourfamily.NONE", "ourfamily.recipe", "nowhere.Family"])
def test_what_is_no_family_is_refused_with_what_there_is(ours, name):
    with pytest.raises(UserError, match=r"model\.family=.*qwen2, qwen3, qwen3_moe.*or a dotted path"):
        resolve("ourfamily", [f"model.family={name}"])
