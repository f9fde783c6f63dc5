"""The supervised stage before the rollouts: what it is, when it runs, and what is refused."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from slime_swe.errors import UserError
from slime_swe.launch.cli import run
from slime_swe.launch.config import read_recipe, resolve
from slime_swe.launch.engines import Engine, Start, engine_of, violations
from slime_swe.launch.engines.slime import Slime
from slime_swe.launch.slime.render import render, to_args
from slime_swe.launch.warm_start import FOLDER, require_trainable, stage_of
from slime_swe.recipes.base import WarmStart
from slime_swe.recipes.registry import RECIPES, load_recipe
from slime_swe.rollout.hooks import is_supervised
from tests.launch.warm_start.recorded import line, with_data, write

ROLLOUTS = load_recipe("tiny_cpu").run.num_rollouts
TASKS = "data.train=[tests.data_sources.test_slime_plugin.seven:x]"


class Noting(Engine):
    """Writes down what it is asked to train."""

    def run(self, recipe, folder, start) -> int:
        top = folder.parent if recipe.supervised else folder
        said = {"stage": recipe.supervised, "resume": start.resume, "model": recipe.model.checkpoint,
                "steps": recipe.run.num_rollouts}  # fmt: skip
        with (top / "asked.jsonl").open("a") as file:
            file.write(json.dumps(said) + "\n")
        print("a summary")
        if recipe.supervised:
            (folder / "model").mkdir()
        return 0

    def trained(self, recipe, folder) -> str:
        return str(folder / "model") if (folder / "model").is_dir() else ""


def asked(folder: Path) -> list[dict]:
    return [json.loads(one) for one in (folder / "asked.jsonl").read_text().splitlines()]


@pytest.fixture
def begin(tmp_path):
    data = write(tmp_path / "solved.jsonl", line("a"), line("b"), line("c"))
    words = [
        "recipe=tiny_cpu",
        f"engine={__name__}.Noting",
        "run.name=warm",
        f"run.dir={tmp_path}",
        TASKS,
        "data.eval={}",
    ]
    more = [TASKS, "data.eval={}", f"warm_start.data={data}", "warm_start.batch_size=2", "--ignore-integrity"]
    return lambda *changes: run(["train", *words, *more, *changes])


def test_the_stage_runs_first_and_the_rollouts_begin_with_its_weights(begin, tmp_path, capsys):
    assert begin() == 0
    stage, rollouts = asked(tmp_path / "warm")
    assert stage == {"stage": True, "resume": False, "model": "embedded:seed", "steps": 5}  # 3 epochs of 3 by 2
    assert rollouts == {
        "stage": False,
        "resume": False,
        "model": str(tmp_path / "warm" / FOLDER / "model"),
        "steps": ROLLOUTS,
    }
    own = read_recipe(tmp_path / "warm" / FOLDER / "recipe.yaml")
    assert own.supervised and not own.warm_start.data and not own.data.eval
    assert not read_recipe(tmp_path / "warm" / "recipe.yaml").supervised
    assert capsys.readouterr().out == "a summary\n"  # the run's, and none of the stage


def test_a_stage_that_ended_early_is_resumed_and_a_finished_one_is_not_run_again(begin, tmp_path, monkeypatch):
    folder = tmp_path / "warm"
    with monkeypatch.context() as ending:
        ending.setattr(Noting, "run", lambda self, recipe, own, start: 3)
        assert begin() == 1
    resume = ["train", "run.name=warm", f"run.dir={tmp_path}", "--resume", "--ignore-integrity"]
    (tmp_path / "solved.jsonl").unlink()  # what has begun needs it no more to know its steps
    assert run(resume) == 0
    assert [(one["stage"], one["resume"], one["steps"]) for one in asked(folder)] == [
        (True, True, 5),
        (False, True, ROLLOUTS),
    ]
    assert run(resume) == 0
    assert [one["stage"] for one in asked(folder)] == [True, False, False]


def test_a_stage_that_ends_without_weights_is_refused_with_what_to_do(begin, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as ending:
        ending.setattr(Noting, "run", lambda self, recipe, own, start: 0)
        assert begin() == 2
    own = tmp_path / "warm" / FOLDER
    said = capsys.readouterr().err
    assert f"{own} has ended without the weights of its last step" in said and f"first remove {own}" in said
    shutil.rmtree(own)
    resume = shlex.split(re.search(r"\(slime-swe (train .*--resume)\)", said)[1])
    assert run([*resume, "--ignore-integrity"]) == 0


class Unsupervised(Engine):
    """Has no stage of its own."""


def test_an_engine_without_a_stage_refuses_it(tmp_path):
    recipe = with_data(resolve("tiny_cpu", [f"run.dir={tmp_path}"]), tmp_path / "solved.jsonl")
    with pytest.raises(UserError, match=r"engine=mine\.Own has no supervised stage: leave warm_start\.data empty"):
        require_trainable(Unsupervised(), replace(recipe, engine="mine.Own"))


def test_miles_refuses_it_with_what_to_do_instead_which_is_allowed(tmp_path):
    data = write(tmp_path / "solved.jsonl", line("a"), line("b"), line("c"))
    words = ["engine=miles", "algorithm.lora_rank=32", "algorithm.reduction=trajectory"]
    with pytest.raises(UserError, match=r"has not been tried with miles: .* under engine=slime") as refused:
        resolve("qwen25_coder_7b", [*words, f"warm_start.data={data}"])
    assert "(algorithm.lora_rank=0 run.num_rollouts=1)" in str(refused.value)
    assert "model.checkpoint: RUN/warm_start/exports/STEP" in str(refused.value)
    instead = resolve("qwen25_coder_7b", ["algorithm.lora_rank=0", "run.num_rollouts=1", f"warm_start.data={data}"])
    stage = stage_of(instead, tmp_path / "run")
    assert not violations(instead) and not violations(stage)
    export = tmp_path / "run" / FOLDER / "exports" / f"{stage.run.num_rollouts - 1}"
    export.mkdir(parents=True)
    (export / "model.safetensors.index.json").write_text("{}")
    (tmp_path / "run" / FOLDER / "checkpoints").mkdir()
    (tmp_path / "run" / FOLDER / "checkpoints" / "latest_checkpointed_iteration.txt").write_text(export.name)
    assert Slime().trained(stage, tmp_path / "run" / FOLDER) == str(export)
    assert resolve("qwen25_coder_7b", [*words, f"model.checkpoint={export}"]).model.checkpoint == str(export)


@pytest.mark.parametrize(
    ("changes", "overrides", "said"),
    [
        ({"tokens": [1] * 641}, ["data.eval={}"], "1 of 3 samples have more tokens than rollout.max_context=640"),
        ({"vocabulary": "another"}, ["data.eval={}"], "1 of 3 samples are of another vocabulary"),
        ({"task": "TASK-3"}, ["data.eval={x: 'tests.data_sources.test_slime_plugin.seven:x'}"], "such as task-3"),
    ],
)
def test_data_that_can_t_be_trained_are_refused(tmp_path, changes, overrides, said):
    data = write(tmp_path / "solved.jsonl", line("a"), line("b", **changes), line("c"))
    recipe = resolve("tiny_cpu", [f"warm_start.data={data}", *overrides])
    with pytest.raises(UserError, match=said):
        require_trainable(engine_of(recipe), recipe)


def test_an_overlap_that_the_recipe_allows_is_trained(tmp_path):
    data = write(tmp_path / "solved.jsonl", line("a", task="task-3"))
    evaluated = "data.eval={x: 'tests.data_sources.test_slime_plugin.seven:x'}"
    recipe = resolve("tiny_cpu", [f"warm_start.data={data}", evaluated, "data.allow_overlap=[task-*]"])
    require_trainable(engine_of(recipe), recipe)


def test_both_engines_have_the_same_loss_and_hooks(tmp_path):
    recipe = with_data(resolve("qwen25_coder_7b"), tmp_path / "solved.jsonl")
    stage = stage_of(recipe, tmp_path / "run")
    flags = render(stage, tmp_path / "run" / FOLDER).argv
    for words in (["--loss-type", "sft_loss"], ["--rollout-batch-size", "2"], ["--num-rollout", "5"]):
        assert flags[flags.index(words[0]) + 1] == words[1]
    alone = {"--calculate-per-token-loss", "--disable-compute-advantages-and-returns", "--debug-train-only"}
    assert alone <= {*flags} and not [flag for flag in flags if flag.startswith(("--sglang", "--eval"))]
    args = to_args(stage_of(with_data(resolve("tiny_cpu"), tmp_path / "tiny.jsonl"), tmp_path), tmp_path)
    assert is_supervised(args) and args.calculate_per_token_loss
    assert "--loss-type" not in render(recipe, tmp_path / "run").argv


def test_slime_s_rollouts_load_the_stage_s_megatron_checkpoint(tmp_path):
    stage = stage_of(with_data(resolve("qwen25_coder_7b"), tmp_path / "solved.jsonl"), tmp_path / "run")
    folder = tmp_path / "run" / FOLDER
    (folder / "checkpoints").mkdir(parents=True)
    engine = Slime()
    assert engine.trained(stage, folder) == ""
    (folder / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("4")
    assert engine.trained(stage, folder) == ""  # the export is not whole
    export = folder / "exports" / "4"
    export.mkdir(parents=True)
    (export / "model.safetensors.index.json").write_text("{}")
    assert engine.trained(stage, folder) == str(export)
    recipe = resolve("qwen25_coder_7b")
    after = replace(recipe, model=replace(recipe.model, checkpoint=str(export)))
    flags = render(after, tmp_path / "run").argv
    assert Path(flags[flags.index("--ref-load") + 1]).resolve() == (folder / "checkpoints").resolve()
    assert flags[flags.index("--hf-checkpoint") + 1] == str(export)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_link_to_the_stage_s_megatron_checkpoint_goes_with_a_run_that_is_moved(elsewhere, tmp_path):
    """Where a person has the exports on another disk, the link is made anew before it is read."""
    stage = stage_of(with_data(resolve("qwen25_coder_7b"), tmp_path / "solved.jsonl"), tmp_path / "run")
    before, after = (tmp_path / name / FOLDER for name in ("before", "after"))
    (before / "checkpoints").mkdir(parents=True)
    (before / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("4")
    if elsewhere:
        (tmp_path / "disk/exports").mkdir(parents=True)
        (before / "exports").symlink_to(tmp_path / "disk/exports")
    (before / "exports/4").mkdir(parents=True)
    (before / "exports/4/model.safetensors.index.json").write_text("{}")
    (before / "exports/4_torch_dist").symlink_to(tmp_path / "old/checkpoints")  # absolute, as it once was
    Slime().trained(stage, before)
    assert (before / "exports/4_torch_dist").resolve() == before / "checkpoints"
    before.parent.rename(after.parent)
    if elsewhere:
        Slime().trained(stage, after)
    assert (after / "exports/4_torch_dist").resolve() == after / "checkpoints"


def test_slime_goes_on_from_no_checkpoint_of_a_stage_s_last_step_without_its_export(tmp_path):
    stage = stage_of(with_data(resolve("qwen25_coder_7b"), tmp_path / "solved.jsonl"), tmp_path / "run")
    folder = tmp_path / "run" / FOLDER
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("4")
    with pytest.raises(UserError, match=r"exports/4/model\.safetensors\.index\.json is missing"):
        Slime().run(stage, folder, Start(resume=True))


@pytest.mark.parametrize("name", RECIPES)
def test_the_stage_of_every_recipe_is_legal_with_the_default_batch(tmp_path, name):
    data = write(tmp_path / "solved.jsonl", line("a"))
    recipe = replace(resolve(name), warm_start=WarmStart(data=str(data)))
    assert violations(stage_of(recipe, tmp_path)) == []
