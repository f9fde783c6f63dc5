"""What `slime-swe plan` prints, and its exit codes."""

from __future__ import annotations

import json

import pytest

from slime_swe.launch.cli import run

pytestmark = pytest.mark.usefixtures("few_steps")


def test_a_plan_that_fits_exits_with_0_and_100_columns(capsys):
    assert run(["plan", "recipe=qwen25_coder_7b"]) == 0
    text = capsys.readouterr().out
    assert "it is legal and fits" in text
    assert max(map(len, text.splitlines())) <= 100
    for name in (
        "optimizer states",
        "KV cache",
        "logits",
        "sandboxes",
        "idle slots",
        "of the slots' time is of use",
        "bottleneck",
    ):
        assert name in text


def test_a_plan_that_does_not_exits_with_1_and_says_what_would(capsys):
    words = ["recipe=qwen25_coder_32b", "cluster.nodes=1", "parallel.cp=1", "parallel.max_tokens_per_gpu=32768"]
    words += ["parallel.recompute=full", "rollout.sandbox_concurrency=96"]
    assert run(["plan", *words]) == 1
    text = capsys.readouterr().out
    assert "set optimizer.cpu_offload=true" in " ".join(text.split())
    assert "\n  optimizer.cpu_offload=true   # a step in " in text


def test_what_nothing_cures_is_said_with_the_nearest_changes(capsys):
    assert run(["plan", "recipe=qwen25_coder_32b", "cluster.memory_per_node=128", "parallel.tp=4"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "that was tried makes it run." in text
    assert "Nearest to it are the changes below; they leave cluster.memory_per_node=128 is too little" in text


def test_an_illegal_layout_is_shown_without_numbers(capsys):
    assert run(["plan", "recipe=qwen25_coder_7b", "parallel.tp=3", "serving.gpus_per_engine=3"]) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert "parallel.tp=3" in text
    assert "serving.gpus_per_engine=3" in text
    assert "Memory" not in text


def test_the_tiny_recipe(capsys):
    assert run(["plan"]) == 0
    text = capsys.readouterr().out
    assert "tiny_cpu on 2 CPU cores, 4 GiB, no GPU: it is legal and fits" in text
    assert len(text.splitlines()) < 15


def test_json_holds_the_sums(capsys):
    assert run(["plan", "recipe=qwen25_coder_7b", "serving.mem_fraction=0.97", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["fits"] is False
    assert found["problems"][0]["field"] == "serving.mem_fraction"
    assert found["proposals"][0] == ["serving.mem_fraction=0.85"]
    for budget in found["budgets"]:
        assert budget["bytes"] == pytest.approx(sum(part["bytes"] for part in budget["components"]))
    assert found["timing"] is None, "what can't run takes no time"
    assert run(["plan", "recipe=qwen25_coder_7b", "--json"]) == 0
    timing = json.loads(capsys.readouterr().out)["timing"]
    assert 0 < timing["slot_use"] < 1 and "cluster.cpus_per_node" in timing["limit"]
    assert timing["seconds"] == pytest.approx(timing["rollout_seconds"] + timing["training_seconds"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["recipe=qwen25_coder_7"], "did you mean qwen25_coder_7b"),
        (["recipe=qwen25_coder_7b", "parallel.tpp=2"], "parallel.tp"),
        (["recipe=qwen25_coder_7b", "parallel.tp=two"], "a whole number"),
        (["--assume", "contxt=1"], "there is no assumption 'contxt'"),
    ],
)
def test_bad_input_is_a_usage_error(capsys, words, said):
    assert run(["plan", *words]) == 2
    assert said in capsys.readouterr().err


def test_hours_at_other_shares_and_with_carry_are_shown_and_in_the_json(capsys):
    assert run(["plan", "recipe=qwen3_coder_30b_a3b"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "200 steps and 11 evaluations" in text
    assert "GPU hours are those where 41% of the groups pass the filter: " in text
    assert "rollout.schedule=carry: " in text and "no run on GPUs has shown yet" in text
    assert run(["plan", "recipe=qwen3_coder_30b_a3b", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    low, high = found["outlook"]["low"], found["outlook"]["high"]
    assert low["gpu_hours"] > found["run"]["gpu_hours"] > high["gpu_hours"]
    assert found["evaluations"]["count"] == 11
