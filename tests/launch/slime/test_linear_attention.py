"""When SLiME's linear attention is mended, and that another SLiME is refused. What the mend computes:
`tests/launch/slime_cpu/test_stand_ins.py` and `tests/contract/test_layouts.py`.
"""

from __future__ import annotations

import sys

import pytest

from slime_swe.errors import UserError
from slime_swe.launch.slime import linear_attention
from slime_swe.launch.slime.flags import violations
from slime_swe.launch.slime.render import sections
from slime_swe.launch.slime.upstream import SLIME
from slime_swe.recipes.registry import RECIPES, load_recipe
from tests.recipes.changes import variant

MEND = "slime_swe.launch.slime.linear_attention.sum_gradients"
SLIMES = """
class _AllGatherForDuplicatedComputation:
    @staticmethod
    def backward(ctx, *grads):
        return {returned}
"""


def mend_of(recipe, tmp_path):
    return sections(recipe, tmp_path, resume=False)["parallel"].get("custom_megatron_init_path")


@pytest.mark.parametrize("name", RECIPES)
def test_the_recipes_with_linear_attention_are_mended(name, tmp_path):
    recipe = load_recipe(name)
    linear = name in ("qwen3_5_4b", "qwen3_5_9b", "qwen3_6_35b_a3b", "qwen3_coder_next")
    assert mend_of(recipe, tmp_path) == (MEND if linear else None)
    if linear:
        assert mend_of(variant(name, parallel__cp=1), tmp_path) is None


def test_the_flag_that_names_the_mend_is_not_replaced():
    (found,) = violations(variant("qwen3_5_9b", slime__flags={"custom-megatron-init-path": "mine.init"}), SLIME)
    assert found.field == "slime.flags.custom-megatron-init-path"


@pytest.fixture
def slime(tmp_path, monkeypatch):
    """A function that writes SLiME's module with another last line."""

    def write(returned):
        folder = tmp_path / "slime_plugins" / "models"
        folder.mkdir(parents=True)
        (folder / "hf_attention.py").write_text(SLIMES.format(returned=returned))
        monkeypatch.syspath_prepend(tmp_path)

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == "slime_plugins"]:
        del sys.modules[name]


def test_the_fault_is_mended_once(slime):
    slime("grads[ctx.rank], None")
    from slime_plugins.models.hf_attention import _AllGatherForDuplicatedComputation as Gather

    for _ in range(2):
        linear_attention.sum_gradients(None)
        assert Gather.backward is linear_attention.summed_backward


def test_another_slime_is_refused(slime):
    slime("reduce_scattered(grads), None")
    with pytest.raises(UserError, match=r"is not the one that .* mends.*parallel\.cp to 1"):
        linear_attention.sum_gradients(None)
