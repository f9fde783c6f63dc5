"""`on=gpu`, as far as its code runs without a GPU: command lines, differing flags, layouts, what it refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest

from slime_swe.errors import UserError
from slime_swe.launch.cli import run
from slime_swe.launch.config import resolve
from slime_swe.launch.doctor import Machine
from slime_swe.launch.engines import violations
from slime_swe.launch.rehearse import jobs
from slime_swe.launch.rehearse.jobs import (
    AMOUNTS,
    DRAFTING,
    FIGURES,
    FOLDERS,
    LAYOUT,
    MACHINE,
    MODEL,
    POLICY,
    differences,
)
from slime_swe.launch.rehearse.platforms.gpu import GpuPlatform, gpus_here, require_idle, require_stack
from slime_swe.launch.rehearse.toy import layout_of, one_rank, scaled, shape_keys, toy_config
from slime_swe.launch.slime.checkouts import Checkouts
from slime_swe.launch.slime.paths import SETTINGS
from slime_swe.launch.slime.render import environment, render
from slime_swe.launch.slime.upstream import SLIME
from slime_swe.recipes.registry import RECIPES
from tests.launch.doctor import machines
from tests.launch.rehearse.gpus import node
from tests.launch.rehearse.small import CPU
from tests.launch.slime.scripted_loop import make_checkout

ON_GPUS = [name for name in RECIPES if resolve(name).engine == "slime"]
CHECKOUTS = Checkouts(Path("/slime"), Path("/megatron"))
RUN = Path("/runs/a")
ALLOWED = {MODEL, LAYOUT, AMOUNTS, FOLDERS, POLICY, MACHINE, FIGURES}


def rehearsed(name: str, gpus: int = 8, overrides=()):
    own, platform = resolve(name, overrides), node(gpus)
    config = shape_keys(toy_config(own.model, platform), own.model)
    return own, platform, scaled(own, platform, Path("/runs/toy"), config, Path("/runs"))


def differing(own, platform, recipe):
    job = jobs.train_job(recipe, platform, RUN, CHECKOUTS)
    return job, differences(render(own, RUN, checkouts=CHECKOUTS), job, platform.stand_ins(recipe))


@pytest.mark.parametrize("gpus", [2, 4, 6, 8])
@pytest.mark.parametrize("name", ON_GPUS)
def test_a_recipe_is_rehearsed_as_a_legal_recipe_with_flags_that_slime_has(name, gpus):
    own, platform, recipe = rehearsed(name, gpus)
    assert violations(recipe) == [] == violations(one_rank(recipe))
    job, found = differing(own, platform, recipe)
    SLIME.manifest.check(job.words)
    assert {one.reason for one in found} <= ALLOWED


@pytest.mark.parametrize("name", ON_GPUS)
def test_on_a_node_as_large_as_the_recipe_s_its_servers_and_precision_are_its_own(name):
    own, platform, recipe = rehearsed(name)
    _, found = differing(own, platform, recipe)
    changed = {one.flag for one in found if not one.flag.startswith(tuple(f"--{name}" for name in DRAFTING))}
    kept = ("--colocate", "--sglang-mem-fraction-static", "--router-policy", "--optimizer-cpu-offload", "--rotary-base")
    kept += ("--accumulate-allreduce-grads-in-fp32", "--attention-backend", "--use-fault-tolerance", "bf16", "--bf16")
    assert not changed & set(kept)
    assert not [flag for flag in changed if flag.startswith("--sglang-") and flag != "--sglang-server-concurrency"]
    kept_flags = {name: value for name, value in own.slime.flags.items() if not name.startswith(DRAFTING)}
    assert recipe.slime.flags == kept_flags
    assert recipe.optimizer.cpu_offload == own.optimizer.cpu_offload
    assert recipe.cluster.colocate == own.cluster.colocate
    if own.cluster.colocate:
        assert recipe.serving.gpus_per_engine == own.serving.gpus_per_engine


@pytest.mark.parametrize("name", ON_GPUS)
def test_fewer_flags_differ_than_on_a_cpu(name):
    own, platform, recipe = rehearsed(name)
    small = scaled(own, CPU, Path("/runs/toy"), shape_keys(toy_config(own.model, CPU), own.model), Path("/runs"))
    _, on_gpu = differing(own, platform, recipe)
    _, on_cpu = differing(own, CPU, small)
    assert len(on_gpu) < len(on_cpu)


def test_a_flag_of_the_platform_may_not_differ():
    own, platform, recipe = rehearsed("qwen3_coder_30b_a3b")
    recipe = replace(recipe, cluster=replace(recipe.cluster, colocate=False, rollout_gpus=8))
    with pytest.raises(UserError, match="differs from the recipe's in --colocate, and nothing says why"):
        differing(own, platform, recipe)


@pytest.mark.parametrize(("gpus", "ways", "ranks"), [(8, (4, 2, 8), 8), (4, (2, 2, 4), 4), (1, (1, 1, 1), 1)])
def test_a_layout_is_halved_until_the_node_holds_it(gpus, ways, ranks):
    found = layout_of(resolve("qwen3_coder_30b_a3b"), node(gpus))
    assert (found.parallel.tp, found.parallel.cp, found.parallel.ep) == ways
    assert found.ranks == ranks
    assert found.ranks % prod(ways[:2]) == 0


def test_a_trainer_beside_its_servers_gets_half_of_the_node():
    _, _, recipe = rehearsed("qwen3_coder_30b_a3b_async")
    assert (recipe.cluster.gpus_per_node, recipe.cluster.rollout_gpus) == (4, 4)


@pytest.mark.parametrize("name", ON_GPUS)
def test_a_toy_has_the_model_s_own_heads(name):
    model = resolve(name).model
    theirs = model.config.get("text_config", model.config)
    made = toy_config(model, node(8))
    ours = made.get("text_config", made)
    for key in ("head_dim", "kv_lora_rank", "qk_rope_head_dim", "linear_key_head_dim"):
        assert ours.get(key) == theirs.get(key)
    if "head_dim" not in theirs and "kv_lora_rank" not in theirs:
        assert ours["hidden_size"] // ours["num_attention_heads"] == (
            theirs["hidden_size"] // theirs["num_attention_heads"]
        )
    assert ours["num_hidden_layers"] < theirs["num_hidden_layers"]


def test_it_runs_slime_itself_in_the_environment_of_a_run():
    own, platform, recipe = rehearsed("qwen3_coder_30b_a3b")
    job, _ = differing(own, platform, recipe)
    assert job.program[-1] == "/slime/train.py"
    shown = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7", **jobs.WHOLE_LOGS}
    assert job.environment == environment(recipe, RUN, CHECKOUTS) | shown
    converting = jobs.to_megatron(recipe, platform, RUN, CHECKOUTS)
    assert converting.program == (sys.executable, "/slime/tools/convert_hf_to_torch_dist.py")
    SLIME.manifest.check([word for word in converting.argv[2:] if word])


def test_a_conversion_is_one_process_whatever_slurm_says():
    """SLiME's converter takes SLURM_NTASKS for its number of processes where WORLD_SIZE is not set."""
    _, platform, recipe = rehearsed("qwen25_coder_1_5b")
    for job in (
        jobs.to_megatron(recipe, platform, RUN, CHECKOUTS),
        jobs.to_hugging_face(recipe, platform, RUN, RUN / "b", CHECKOUTS),
    ):
        assert (job.environment["WORLD_SIZE"], job.environment["RANK"]) == ("1", "0")


SCRIPT = """
import os, sys, ray
assert ray.is_initialized() and not {"RAY_ADDRESS", "RAY_JOB_CONFIG_JSON_ENV_VAR"} & os.environ.keys()
print(sys.argv[1:], __name__)
"""


def test_a_script_gets_a_ray_of_its_own(tmp_path):
    """Though this process is a job of another cluster, which would be joined."""
    script, settings = make_checkout(tmp_path / "checkout", "slime", SCRIPT), tmp_path / SETTINGS
    settings.parent.mkdir()
    settings.write_text("{}")
    words = ["-m", "slime_swe.launch.rehearse.platforms.local_ray", str(script), "--a", "1"]
    done = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env=os.environ | {"RAY_ADDRESS": "127.0.0.1:1", "RAY_JOB_CONFIG_JSON_ENV_VAR": "{}"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "['--a', '1'] __main__" in done.stdout


@pytest.fixture
def answering(tmp_path, monkeypatch):
    """An nvidia-smi that answers so."""

    def answer(query: str, *, code: int = 0) -> Machine:
        machines.install(tmp_path / "bin", query, code=code)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
        return Machine()

    return answer


def test_without_gpus_it_says_where_to_go(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(["rehearse", "recipe=qwen25_coder_1_5b", "on=gpu"]) == 2
    said = capsys.readouterr().err
    assert "there is no program 'nvidia-smi'" in said and "run it on a node with GPUs" in said


def test_another_platform_is_refused(capsys):
    assert run(["rehearse", "recipe=qwen25_coder_1_5b", "on=tpu"]) == 2
    assert "cpu, gpu" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("query", "listed", "said"),
    [
        ("", None, "lists no GPU"),
        (machines.NO_DRIVER, None, "the driver must be put right"),
        (machines.H100, "", "hides every GPU"),
        (machines.H100, "0,GPU-f", "names 'GPU-f', and this node has 0 "),
        (machines.H100, "8", "names '8'"),
        (machines.H100, "GPU-0", "names 'GPU-0'"),  # all of them begin so
        (machines.rows(1, "NVIDIA H100 80GB HBM3", 81559, mig="Enabled"), None, "divided into instances"),
    ],
)
def test_gpus_that_can_t_be_used_are_refused(answering, query, listed, said):
    with pytest.raises(UserError, match=said):
        gpus_here(answering(query), listed)


@pytest.mark.parametrize(
    ("listed", "indices"),
    [
        (None, [*range(8)]),
        ("2,3", [2, 3]),
        (f"{machines.uuid(5)},{machines.uuid(1)}", [5, 1]),
        ("GPU-00000006", [6]),
        ("2,-1", [2]),
    ],
)
def test_gpus_that_are_hidden_are_left_out(answering, listed, indices):
    assert [gpu.index for gpu in gpus_here(answering(machines.H100), listed)] == indices


@pytest.mark.parametrize("before", [None, "2,3"])
def test_transformers_sees_no_gpu_and_slime_does(monkeypatch, before):
    """With one, it takes kernels that want tensors there."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if before is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)
    own, _, recipe = rehearsed("qwen3_coder_next")
    platform = GpuPlatform(node(4).gpus, before)
    with platform.computing():
        assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
        job, _ = differing(own, platform, recipe)
        assert job.environment["CUDA_VISIBLE_DEVICES"] == (before or "0,1,2,3")
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == before


def test_gpus_in_use_are_named(answering):
    gpus = gpus_here(answering(machines.rows(2, "NVIDIA H100 80GB HBM3", 81559, used=20480)), None)
    with pytest.raises(UserError, match=r"in use: GPU 0 \(20.0 GiB\), 1 \(20.0 GiB\)"):
        require_idle(gpus)


def test_one_gpu_can_t_train_beside_its_server():
    with pytest.raises(UserError, match="trains and serves on different GPUs"):
        layout_of(resolve("qwen3_coder_30b_a3b_async"), node(1))


def test_a_python_without_slime_s_stack_is_refused():
    with pytest.raises(UserError, match="run it inside the training image"):
        require_stack()
