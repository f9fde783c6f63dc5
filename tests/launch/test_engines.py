"""What each engine takes and refuses, and that one from outside the packages is taken as ours are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slime_swe.errors import UserError
from slime_swe.launch.cli import run
from slime_swe.launch.engines import ENGINES, Engine, engine_of, require_legal, violations
from slime_swe.recipes.base import Parallel
from slime_swe.recipes.registry import load_recipe
from tests.recipes.changes import changed, variant

ALONE = [
    ("cluster.nodes", 2, "it must be 1: this engine runs on one machine"),
    ("cluster.gpus_per_node", 8, "asks for no GPUs"),
    ("cluster.gpu", "H100-80GB", "it must be empty: this engine asks for no GPUs"),
    ("cluster.rollout_gpus", 8, "asks for no GPUs"),
    ("serving.gpus_per_engine", 1, "asks for no GPUs"),
    ("serving.ep", 2, "it must be 1"),
    ("serving.dp_attention", True, "asks for no GPUs"),
    ("serving.external_engines", ["10.0.0.1:30000"], "server started|serving.router_ip"),
    ("algorithm.routing_replay", "rollout", "dense Qwen2"),
    ("optimizer.cpu_offload", True, "one machine's memory"),
]
EMBEDDED = [
    ("parallel.tp", 2, "it must be 1"),
    ("parallel.pp", 5, "it must be 1"),
    ("parallel.cp", 2, "it must be 1"),
    ("parallel.ep", 2, "it must be 1"),
    ("parallel.etp", 2, "it must be 1"),
    ("parallel.recompute", "full", "one machine's memory"),
    ("cluster.colocate", False, "same machine"),
    ("cluster.ray_address", "http://head:8265", "no Ray"),
    ("rollout.schedule", "async", "use sync, carry or continuous"),
    ("algorithm.opsm_delta", 0.01, "leaves out no sequences"),
    ("algorithm.keep_old_actor", True, "keeps no weights but those that it trains"),
    ("algorithm.mismatch", "mis", "use none, truncate or icepop"),
    ("algorithm.reduction", "token", "it must be trajectory"),
    ("algorithm.kl_in", "reward", "it must be loss"),
    ("algorithm.kl_unbiased", True, "it must be false"),
    ("run.save_interval", 5, "every rollout"),
]


@pytest.mark.parametrize("engine", ["embedded", "slime_cpu"])
@pytest.mark.parametrize(("key", "value", "said"), ALONE)
def test_an_engine_without_gpus_refuses_what_needs_them(engine, key, value, said):
    with pytest.raises(UserError, match=said) as error:
        require_legal(changed(variant("tiny_cpu", engine=engine), key, value))
    assert key in str(error.value)


@pytest.mark.parametrize(("key", "value", "said"), EMBEDDED)
def test_the_embedded_engine_refuses_what_it_does_not_compute(key, value, said):
    with pytest.raises(UserError, match=said) as error:
        require_legal(changed(load_recipe("tiny_cpu"), key, value))
    assert key in str(error.value)


@pytest.mark.parametrize(("name", "engine"), [("tiny_cpu", "slime_cpu"), ("qwen25_coder_7b", "slime")])
def test_what_slime_does_not_log_to_is_refused_there(name, engine):
    require_legal(variant("tiny_cpu", run__trackers=["wandb", "trackio", "tensorboard"]))
    require_legal(variant(name, engine=engine, run__trackers=["wandb", "tensorboard"]))
    with pytest.raises(
        UserError, match=r"run\.trackers=.*trackio, which SLiME does not log to: use wandb or tensorboard"
    ):
        require_legal(variant(name, engine=engine, run__trackers=["trackio"]))
    with pytest.raises(UserError, match=r"run\.trackers=.*a list of wandb, trackio, tensorboard"):
        require_legal(variant("tiny_cpu", run__trackers=["mlflow"]))


@pytest.mark.parametrize(("key", "value"), [("estimator", "gspo"), ("estimator", "cispo"), ("dual_clip", 3.0)])
def test_the_embedded_engine_refuses_what_would_act_on_a_ratio_of_1(key, value):
    changes = {f"algorithm__{key}": value}
    require_legal(variant("tiny_cpu", **changes))
    for schedule in ("carry", "continuous"):
        require_legal(variant("tiny_cpu", algorithm__steps_per_rollout=1, rollout__schedule=schedule, **changes))
    one_step = {"algorithm__steps_per_rollout": 1, "rollout__max_staleness": 0}
    for schedule in ("sync", "carry"):
        for own in (True, False):
            recipe = variant(
                "tiny_cpu", **one_step, **changes, rollout__schedule=schedule, algorithm__rollout_logprobs=own
            )
            assert {found.field for found in violations(recipe)} == {f"algorithm.{key}"}


@pytest.mark.parametrize("mismatch", ["truncate", "icepop"])
def test_the_embedded_engine_corrects_for_a_mismatch(mismatch):
    require_legal(variant("tiny_cpu", algorithm__mismatch=mismatch, algorithm__rollout_logprobs=False))


def test_another_engine_is_one_override_away():
    require_legal(variant("tiny_cpu", engine="slime_cpu"))
    require_legal(variant("tiny_cpu", engine="slime_cpu", algorithm__estimator="gspo"))


LAYOUTS = [{"tp": 2}, {"tp": 4, "pp": 1, "cp": 2}, {"pp": 5}, {"cp": 8}, {"tp": 2, "recompute": "full"}]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_real_slime_on_a_cpu_takes_a_layout_of_up_to_eight_ranks(layout):
    require_legal(variant("tiny_cpu", engine="slime_cpu", parallel=Parallel(**layout)))


@pytest.mark.parametrize(
    ("layout", "key", "said"),
    [
        ({"tp": 4, "cp": 4}, "parallel.tp", "make 16 ranks, and this engine runs at most 8 on one machine"),
        ({"tp": 2, "pp": 5}, "parallel.pp", "make 10 ranks"),
        ({"tp": 3}, "parallel.tp", "can't share out 4 attention heads"),
        ({"pp": 2}, "parallel.pp", "does not divide the 5 layers"),
        ({"ep": 2}, "parallel.ep", "the model has no experts"),
    ],
)
def test_real_slime_on_a_cpu_says_what_of_a_layout_does_not_fit(layout, key, said):
    with pytest.raises(UserError) as error:
        require_legal(variant("tiny_cpu", engine="slime_cpu", parallel=Parallel(**layout)))
    assert key in str(error.value) and said in str(error.value)


@pytest.mark.parametrize("base", [variant("tiny_cpu", engine="slime_cpu"), load_recipe("qwen25_coder_7b")])
def test_under_slime_any_number_of_checkpoints_and_exports_may_stay(base):
    for key in ("run.keep_checkpoints", "run.keep_exports"):
        require_legal(changed(base, key, 0))
        require_legal(changed(base, key, 5))


def test_real_slime_on_a_cpu_keeps_slimes_own_rules():
    changes = {"rollout__schedule": "carry", "rollout__generate": "json.loads"}
    fields = {v.field for v in violations(variant("tiny_cpu", engine="slime_cpu", **changes))}
    assert fields == {"rollout.schedule"}


def test_a_recipe_for_gpus_says_what_a_laptop_lacks():
    with pytest.raises(UserError) as error:
        require_legal(variant("qwen25_coder_7b", engine="embedded"))
    assert "cluster.gpus_per_node=8 is not allowed: it must be 0: this engine asks for no GPUs" in str(error.value)


def test_a_recipe_without_gpus_says_what_slime_lacks():
    found = violations(variant("tiny_cpu", engine="slime"))
    assert {v.field for v in found} == {"cluster.gpus_per_node", "cluster.gpu", "serving.gpus_per_engine"}


@pytest.mark.parametrize("name", ENGINES)
def test_a_registered_engine_is_a_class_of_its_own(name):
    engine = engine_of(variant("tiny_cpu", engine=name))
    assert type(engine) is not Engine and f"{type(engine).__module__}.{type(engine).__name__}" == ENGINES[name]
    assert engine.doctor and type(engine).run is not Engine.run


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("slime_cp", "Did you mean 'slime_cpu'"),
        ("verl", "embedded, miles, slime, slime_cpu"),
        ("json.loads", "a subclass of"),
    ],
)
def test_an_unknown_engine_is_refused(name, said):
    with pytest.raises(UserError, match=said):
        require_legal(variant("tiny_cpu", engine=name))


MINE = """
from pathlib import Path
from slime_swe.launch.doctor import ok
from slime_swe.launch.engines import Engine
from slime_swe.recipes.checks import not_fixed, only

def check_counter(recipe, machine):
    yield ok("counter", "it counts")

class Counting(Engine):
    doctor = ("recipe", "machine", "limits", "run folder", "my_engine.check_counter")
    open_files = (3, 4)

    def violations(self, recipe):
        return not_fixed(recipe, [*only("sync", "it counts one by one", "rollout.schedule")])

    def run(self, recipe, folder, start):
        (folder / "counted").write_text(str(recipe.run.num_rollouts))
        return 7
"""


def test_an_engine_from_outside_is_one_file(tmp_path, monkeypatch, capsys):
    """It is planned, examined, refused and run by its dotted path, and no file of ours names it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("my_engine.py").write_text(MINE)
    words = ["recipe=tiny_cpu", "engine=my_engine.Counting", "run.num_rollouts=3", "run.name=a"]
    assert run(["train", *words, "rollout.schedule=async", "--ignore-integrity"]) == 2
    assert "it must be sync: it counts one by one" in capsys.readouterr().err and not Path("runs").exists()
    assert run(["train", *words, "--ignore-integrity"]) == 7
    assert Path("runs/a/counted").read_text() == "3"
    assert run(["train", *words, "--dry-run"]) == 2
    capsys.readouterr()
    assert run(["plan", *words, "--json"]) == 0
    assert "engine my_engine.Counting" in capsys.readouterr().out
    assert run(["doctor", *words, "--json"]) == 0
    status = {f["check"]: f["status"] for f in json.loads(capsys.readouterr().out)["findings"]}
    assert status["counter"] == "ok" and status["open files"] == "ok" and status["gpus"] == "skipped"
