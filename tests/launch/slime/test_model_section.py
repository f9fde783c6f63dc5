"""A model's shape in Megatron's flags."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from slime_swe.errors import UserError
from slime_swe.launch.engines import require_legal
from slime_swe.launch.slime.manifest import split
from slime_swe.launch.slime.render import model_section, vocabulary_unit
from slime_swe.launch.slime.upstream import SLIME
from slime_swe.recipes.registry import load_recipe
from tests.recipes.changes import variant

SCRIPTS = {
    "qwen25_coder_1_5b": "qwen2.5-1.5B.sh",
    "qwen25_coder_7b": "qwen2.5-7B.sh",
    "qwen25_coder_32b": "qwen2.5-32B.sh",
    "qwen3_coder_30b_a3b": "qwen3-30B-A3B.sh",
}
WRONG_FOR_OUR_CHECKPOINTS = {  # SLiME's script -> flag -> its value, and that of the checkpoint's config.json
    "qwen2.5-1.5B.sh": {"--rotary-base": (10_000, 1_000_000)},
    "qwen2.5-32B.sh": {"--norm-epsilon": (1e-5, 1e-6)},  # the base model's
    "qwen3-30B-A3B.sh": {"--rotary-base": (1_000_000, 10_000_000), "--ffn-hidden-size": (6144, 5472)},
}
OTHERWISE_SAID = {  # flags of either side that say what the other leaves to a default, or says by another flag
    "--use-rotary-position-embeddings", "--position-embedding-type", "--rotary-percent", "--kv-channels",
    "--make-vocab-size-divisible-by", "--attention-dropout", "--hidden-dropout",
    "--moe-router-load-balancing-type", "--moe-token-drop-policy",
}  # fmt: skip


@pytest.mark.parametrize(("name", "script"), SCRIPTS.items())
def test_slime_s_own_script_says_the_same(name, script):
    """But for the values that are wrong for our checkpoints, all of which are named here."""
    if not os.environ.get("SLIME_HOME"):
        pytest.skip("needs a SLiME checkout: set SLIME_HOME")
    theirs = model_flags(Path(os.environ["SLIME_HOME"]) / "scripts" / "models" / script)
    ours = values(SLIME.manifest.to_argv(model_section(load_recipe(name).model.shape)))
    differing = {
        flag: (theirs.get(flag), ours.get(flag)) for flag in theirs | ours if theirs.get(flag) != ours.get(flag)
    }
    assert {flag: pair for flag, pair in differing.items() if flag not in OTHERWISE_SAID} == {
        flag: ((their,), (our,)) for flag, (their, our) in WRONG_FOR_OUR_CHECKPOINTS.get(script, {}).items()
    }


def model_flags(script: Path):
    command = 'source "$0"; printf "%s\\n" "${MODEL_ARGS[@]}"'
    shown = subprocess.run(["bash", "-c", command, str(script)], check=True, capture_output=True, text=True, env={})
    return values(shown.stdout.splitlines())


def values(said):
    """Flag -> its values, numbers as numbers."""
    return {flag: tuple(map(number, given)) for flag, given in split(list(said))}


def number(text: str):
    try:
        return float(text)
    except ValueError:
        return text


def test_a_dense_model():
    said = SLIME.manifest.to_argv(model_section(load_recipe("qwen25_coder_7b").model.shape))
    assert {"--add-qkv-bias", "--untie-embeddings-and-output-weights", "--disable-bias-linear"} <= set(said)
    assert "--qk-layernorm" not in said and not any(word.startswith(("--moe", "--num-experts")) for word in said)


def test_a_tied_model_unties_nothing():
    said = SLIME.manifest.to_argv(model_section(load_recipe("qwen25_coder_1_5b").model.shape))
    assert "--untie-embeddings-and-output-weights" not in said


def test_a_mixture():
    said = SLIME.manifest.to_argv(model_section(load_recipe("qwen3_coder_30b_a3b").model.shape))
    assert "--qk-layernorm" in said and "--add-qkv-bias" not in said
    assert values(said)["--num-experts"] == (128,) and values(said)["--rotary-base"] == (10_000_000,)


@pytest.mark.parametrize("vocab", (151936, 152064))
@pytest.mark.parametrize("tp", (1, 2, 4, 8))
def test_no_row_is_added_to_the_vocabulary(vocab, tp):
    assert vocab % (vocabulary_unit(vocab, tp) * tp) == 0


def test_the_vocabulary_is_padded_where_it_must_be():
    assert (vocabulary_unit(1217, 1), vocabulary_unit(1217, 2)) == (1, 1)


def test_a_base_that_megatron_can_t_take_is_refused():
    with pytest.raises(UserError, match=r"rope_theta=10000\.5"):
        require_legal(variant("tiny_cpu", model__config__rope_theta=1e4 + 0.5))
