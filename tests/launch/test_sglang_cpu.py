"""What starts real SGLang on a CPU, as far as it goes without SGLang."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slime_swe.launch.engines import violations
from slime_swe.launch.slime.checkouts import Checkouts
from slime_swe.launch.slime.upstream import SLIME
from slime_swe.launch.slime_cpu.render import render
from slime_swe.launch.slime_cpu.sglang_cpu import SITE, environment
from slime_swe.recipes.registry import load_recipe
from tests.recipes.changes import changed, variant

CHECKOUTS = Checkouts(Path("/slime"), Path("/megatron"))
BY_SGLANG = variant("tiny_cpu", engine="slime_cpu", serving__server="sglang", serving__deterministic=False)


def job_of(recipe, address=None):
    return render(recipe, Path("/runs/a"), address, checkouts=CHECKOUTS)


def test_slime_starts_the_server_and_sends_it_weights_by_itself():
    job = job_of(BY_SGLANG)
    SLIME.manifest.check(job.argv[4:])
    said = [word for group in job.flags.values() for word in group]
    assert {"--sglang-device", "--sglang-disable-overlap-schedule", "--rollout-num-gpus"} <= {*said}
    assert not {"--rollout-external-engine-addrs", "--update-weight-transport"} & {*said}
    assert job.environment["PYTHONPATH"].split(os.pathsep)[0] == str(SITE)
    assert job.environment["SGLANG_USE_CPU_ENGINE"] == "1"


def test_the_embedded_server_is_named_to_slime_as_before():
    recipe = variant("tiny_cpu", engine="slime_cpu")
    assert job_of(recipe, "h:1") == job_of(changed(recipe, "serving.server", "embedded"), "h:1")
    assert str(SITE) not in job_of(recipe, "h:1").environment["PYTHONPATH"]


@pytest.mark.parametrize(
    ("recipe", "fields"),
    [
        (BY_SGLANG, set()),
        (variant("tiny_cpu", serving__server="embedded"), set()),
        (variant("tiny_cpu", engine="slime_cpu", serving__server="embedded"), set()),
        (variant("tiny_cpu", engine="slime_cpu", serving__server="sglang"), {"serving.deterministic"}),
        (changed(BY_SGLANG, "slime.flags", {"sglang-chunked-prefill-size": 4096}), set()),
        (changed(BY_SGLANG, "slime.flags", {"sglang-device": "cuda"}), {"slime.flags.sglang-device"}),
        (variant("tiny_cpu", serving__server="sglang"), {"serving.server"}),
        (changed(load_recipe("qwen25_coder_7b"), "serving.server", "embedded"), {"serving.server"}),
        (changed(load_recipe("qwen25_coder_7b"), "serving.server", "sglang"), set()),
        (changed(load_recipe("qwen25_coder_7b"), "serving.server", "vllm"), {"serving.server"}),
    ],
)
def test_each_engine_has_its_servers(recipe, fields):
    assert {found.field for found in violations(recipe)} == fields


@pytest.mark.parametrize("name", ["qwen3_coder_30b_a3b", "glm4_7_flash"])
def test_only_the_embedded_server_asks_for_dense_qwen2(name):
    by_sglang = changed(changed(load_recipe(name), "engine", "slime_cpu"), "serving.server", "sglang")
    asked = {"model.config.model_type", "algorithm.routing_replay"}
    assert not asked & {found.field for found in violations(by_sglang)}
    by_embedded = changed(by_sglang, "serving.server", "embedded")
    assert "model.config.model_type" in {found.field for found in violations(by_embedded)}


def test_a_process_that_imports_no_sglang_is_left_as_it_is():
    code = "import sys, sitecustomize as site; print(site.__file__, 'torch' in sys.modules, 'slime_swe' in sys.modules)"
    found = environment(os.environ.get("PYTHONPATH", ""), 2)
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | found, capture_output=True, text=True)
    assert done.stdout.split() == [str(SITE / "sitecustomize.py"), "False", "False"], done.stderr
    assert found["SGLANG_CPU_OMP_THREADS_BIND"] == "0|1"


def test_the_shims_are_in_place_when_sglang_is_imported(tmp_path):
    pytest.importorskip("psutil", reason="comes with SLiME's environment")
    (tmp_path / "sglang.py").write_text(
        "import torch; print(torch.zeros(1, pin_memory=True), torch.ops.torchvision.nms)"
    )
    found = environment(os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    done = subprocess.run(
        [sys.executable, "-c", "import sglang"], env=os.environ | found, capture_output=True, text=True
    )
    assert done.stdout.split() == ["tensor([0.])", "torchvision.nms"], done.stderr
