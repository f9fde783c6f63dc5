"""The plan of a recipe with a supervised stage before its rollouts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from slime_swe.errors import UserError
from slime_swe.launch.cli import run
from slime_swe.launch.config import assemble
from slime_swe.launch.engines import Start
from slime_swe.launch.engines.slime import Slime
from slime_swe.launch.plan import Assumptions
from slime_swe.launch.plan.memory import budgets, most_kept, supervised
from slime_swe.launch.plan.plan import make_plan
from slime_swe.launch.plan.training import train_flops
from slime_swe.recipes.gpus import GPUS
from slime_swe.recipes.registry import RECIPES, load_recipe
from tests.launch.warm_start.recorded import line, write

ON_GPUS = [name for name in RECIPES if load_recipe(name).engine == "slime"]
DENSE = "qwen25_coder_7b"

pytestmark = pytest.mark.usefixtures("few_steps")


def episodes(folder: Path, count: int = 30, tokens: int = 1000) -> str:
    """The override that names a file of so many episodes of one sample each."""
    path = write(folder / "solved.jsonl", *(line(str(name), tokens=[1] * tokens) for name in range(count)))
    return f"warm_start.data={path}"


def plan(name: str, *overrides: str):
    return make_plan(assemble(name, overrides))


@pytest.mark.parametrize("name", ON_GPUS)
def test_the_stage_takes_no_more_of_a_gpu_and_a_machine_than_the_rollouts_training(name, tmp_path):
    recipe = assemble(name, [episodes(tmp_path)])
    stage = supervised(recipe)
    alone = replace(stage, cluster=replace(stage.cluster, colocate=False))  # it has no server
    found = ({each.name: each.bytes for each in budgets(one, Assumptions(), ())} for one in (alone, recipe))
    of_stage, of_rollouts = found
    training = next(name for name in of_rollouts if name.startswith("training"))
    for budget in (training, "machine"):
        assert 0 < of_stage[budget] <= of_rollouts[budget]


def test_its_steps_and_their_time_are_in_the_plan(tmp_path):
    batch = "warm_start.batch_size=16"
    before, found = plan(DENSE), plan(DENSE, episodes(tmp_path), batch)
    stage = found.warm_start
    assert (stage.steps, stage.episodes, stage.tokens, stage.longest) == (6, 16, 16_000, 1000)  # 90 episodes, 16 a step
    recipe = assemble(DENSE, [])
    gpu = GPUS[recipe.cluster.gpu]
    flops = 16_000 * train_flops(recipe.model.shape, 1000, recipe.parallel.recompute)
    assert stage.step > flops / (8 * gpu.flops * 1e12 * gpu.mfu) > 0
    assert plan(DENSE, episodes(tmp_path), batch, "warm_start.epochs=8").warm_start.seconds == 15 / 6 * stage.seconds
    assert stage.gpu_hours == 8 * stage.seconds / 3600
    assert found.timing == before.timing
    assert "warm start: 6 steps of 16 episodes and 0.02 M tokens" in found.notes[0]
    assert "longest sample has 1000 tokens, of rollout.max_context=" in found.notes[0]
    assert any(note.startswith("the whole run: the warm start and ") for note in found.notes)


def test_its_checkpoints_lie_there_while_the_rollouts_run(tmp_path):
    recipe = assemble(DENSE, [episodes(tmp_path, 64), "warm_start.batch_size=1", "run.save_interval=20"])
    stage = supervised(recipe)
    assert stage.run.num_rollouts == 192
    assert most_kept(recipe)[0] == 2 * (recipe.run.keep_checkpoints + 1)

    def kept(*overrides: str) -> int:
        return most_kept(assemble(DENSE, [episodes(tmp_path, 64), "warm_start.batch_size=1", *overrides]))[0]

    everything = "run.save_interval=20", "run.save_every_minutes=0", "run.keep_checkpoints=0", "run.num_rollouts=40"
    assert kept(*everything) == 2 + 10  # the stage's last save is that of its last step
    parts = plan(DENSE, episodes(tmp_path, 64), "warm_start.batch_size=1", *everything).budget("disk").components
    (checkpoints,) = (part for part in parts if part.name == "checkpoints")
    assert checkpoints.detail == "12 of weights and optimizer states, 10 of the warm start"
    size = next(part for part in plan(DENSE, *everything).budget("disk").components if part.name == "checkpoints").bytes
    assert checkpoints.bytes == 6 * size


def test_a_sample_that_no_micro_batch_was_planned_for_is_a_problem(tmp_path):
    most = load_recipe(DENSE).rollout.max_context
    assert plan(DENSE, episodes(tmp_path, 2, most)).fits
    data = episodes(tmp_path, 2, most + 1)
    (problem,) = plan(DENSE, data).problems
    assert problem.field == "warm_start.data"
    assert f"2 of 2 samples have more tokens than rollout.max_context={most}" in problem.message
    assert problem.fix == f"write it with --max-tokens {most}, or raise max_context to {most + 1}"
    with pytest.raises(UserError, match="the plan of qwen25_coder_7b does not fit its cluster"):
        Slime().check(assemble(DENSE, [data]), Start())


def test_a_batch_that_the_copies_of_the_model_can_t_share_is_a_problem(tmp_path, capsys):
    name = "qwen25_coder_1_5b"
    copies = load_recipe(name).data_parallel
    assert copies > 1
    words = [episodes(tmp_path), f"warm_start.batch_size={copies + 1}"]
    (problem,) = plan(name, *words).problems
    assert problem.field == "warm_start.batch_size"
    assert problem.fix.startswith(f"make them a multiple of {copies}, or set parallel.")
    assert run(["plan", f"recipe={name}", *words]) == 1
    assert "the supervised stage" in capsys.readouterr().out


def test_where_the_file_is_not_here_the_plan_says_so(tmp_path):
    found = plan(DENSE, f"warm_start.data={tmp_path}/none.jsonl")
    assert found.fits and found.warm_start is None
    assert found.notes[0].endswith("none.jsonl: no such file is on this machine, so nothing of the stage is counted")


def test_a_file_of_another_kind_is_refused(tmp_path, capsys):
    (tmp_path / "x.jsonl").write_text('{"messages": []}\n')
    assert run(["plan", f"recipe={DENSE}", f"warm_start.data={tmp_path}/x.jsonl"]) == 2
    assert "is no sample that `slime-swe sft` has written" in capsys.readouterr().err


def test_without_gpus_the_plan_has_its_steps_and_no_time(tmp_path, capsys):
    assert run(["plan", "recipe=tiny_cpu", episodes(tmp_path, 3, 100), "warm_start.batch_size=2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["warm_start"]["steps"] == 5 and found["warm_start"]["step"] == 0
    assert "warm start: 5 steps of 2 episodes and 0.00 M tokens. It" in found["notes"][1]
