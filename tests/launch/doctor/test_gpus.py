"""GPUs and their links, on machines of several kinds and states."""

from __future__ import annotations

import pytest

from slime_swe.launch.doctor import Machine, Status
from slime_swe.launch.doctor.gpus import check_gpus, check_links, parse
from tests.launch.doctor import machines
from tests.recipes.changes import variant

RECIPE = variant("qwen25_coder_7b")  # 8 x H100-80GB, mem_fraction 0.7


@pytest.fixture
def look(tmp_path, monkeypatch):
    """What both checks find with such an nvidia-smi: (check, status) -> message."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", machines.before_others(tmp_path / "bin"))

    def look(query: str, topology: str = "", *, code: int = 0, recipe=RECIPE) -> dict[tuple[str, str], str]:
        machines.install(tmp_path / "bin", query, topology, code=code)
        found = [*check_gpus(recipe, Machine()), *check_links(recipe, Machine())]
        return {(finding.check, finding.status.value): f"{finding.message} → {finding.fix}" for finding in found}

    return look


def test_eight_h100_with_nvlink_are_fine(look):
    found = look(machines.H100, machines.matrix(8, "NV18", cards=9))
    assert set(found) == {("gpus", "ok"), ("driver", "ok"), ("nvlink", "ok")}
    assert "8 × NVIDIA H100 80GB HBM3, 79.6 GiB each" in found["gpus", "ok"]
    assert "NV18 between all pairs" in found["nvlink", "ok"]


def test_another_chip_with_the_memory_is_a_warning(look):
    found = look(machines.A100, machines.matrix(8, "NV12"))
    assert "NVIDIA A100-SXM4-80GB here, cluster.gpu=H100-80GB" in found["gpus", "warning"]
    assert ("gpus", "failure") not in found


@pytest.mark.parametrize(
    ("name", "memory", "gpu"),
    [
        ("NVIDIA A100-SXM4-40GB", 40960, "A100-40GB"),
        ("NVIDIA A100-SXM4-40GB", 40536, "A100-40GB"),
        ("NVIDIA A100 80GB PCIe", 81920, "A100-80GB"),
        ("NVIDIA H100 PCIe", 81559, "H100-80GB"),
        ("NVIDIA H200", 143771, "H200-141GB"),
        ("NVIDIA H800", 81559, "H800-80GB"),
        ("NVIDIA H20", 97871, "H20-96GB"),
        ("NVIDIA B200", 183359, "B200-180GB"),
        ("NVIDIA L40S", 46068, "L40S-48GB"),
    ],
)
def test_each_kind_is_known_by_what_it_reports(look, name, memory, gpu):
    recipe = variant("qwen25_coder_7b", cluster__gpu=gpu)
    found = look(machines.rows(8, name, memory), machines.matrix(8, "NV12"), recipe=recipe)
    assert {status for check, status in found if check == "gpus"} == {"ok"}


def test_a_chip_whose_name_begins_as_another_s_is_another(look):
    recipe = variant("qwen25_coder_7b", cluster__gpu="H20-96GB")
    found = look(machines.rows(8, "NVIDIA H200", 143771), machines.matrix(8, "NV18"), recipe=recipe)
    assert "NVIDIA H200 here, cluster.gpu=H20-96GB in the recipe" in found["gpus", "warning"]


def test_too_little_memory_is_a_failure(look):
    found = look(machines.A100_SMALL, machines.matrix(8, "NV12"))
    assert "has 40.0 GiB; cluster.gpu=H100-80GB has 74.5" in found["gpus", "failure"]


def test_too_few_is_a_failure_that_says_how_many(look):
    found = look(machines.rows(4, "NVIDIA H100 80GB HBM3", 81559), machines.matrix(4, "NV18"))
    assert "the recipe wants 8 on each machine" in found["gpus", "failure"]
    assert "cluster.gpus_per_node=4" in found["gpus", "failure"]


def test_more_than_wanted_is_said(look):
    recipe = variant("qwen25_coder_7b", cluster__gpus_per_node=4)
    found = look(machines.H100, machines.matrix(8, "NV18"), recipe=recipe)
    assert "4 of them are used" in found["gpus", "ok"]


@pytest.mark.parametrize(("listed", "count"), [("0,1", 2), ("", 0), ("-1", 0)])
def test_hidden_gpus_are_counted_out(look, monkeypatch, listed, count):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    found = look(machines.H100, machines.matrix(8, "NV18"))
    assert f"shows {count} of the 8 GPUs" in found["gpus", "failure"]


@pytest.mark.parametrize(
    ("driver", "status"),
    [("470.256.02", "failure"), ("525.60.13", "warning"), ("550.163.01", "warning"), ("580.65.06", "ok")],
)
def test_the_driver_is_old_new_or_in_between(look, driver, status):
    found = look(machines.rows(8, "NVIDIA H100 80GB HBM3", 81559, driver=driver), machines.matrix(8, "NV18"))
    assert driver in found["driver", status]


@pytest.mark.parametrize(("used", "status"), [(700, None), (9000, "warning"), (30000, "failure")])
def test_a_gpu_in_use_is_reported(look, used, status):
    """mem_fraction 0.7 leaves 24 GiB to others."""
    found = look(machines.rows(8, "NVIDIA H100 80GB HBM3", 81559, used=used), machines.matrix(8, "NV18"))
    reported = [state for check, state in found if check == "gpus" and state != "ok"]
    assert reported == ([status] if status else [])


def test_divided_gpus_are_refused(look):
    found = look(machines.rows(8, "NVIDIA H100 80GB HBM3", 81559, mig="Enabled"), machines.matrix(8, "NV18"))
    assert "divided into instances (MIG)" in found["gpus", "failure"]


def test_a_gpu_without_mig_is_read_too():
    gpus, strange = parse(machines.rows(1, "Tesla V100-SXM2-32GB", 32768, mig="[N/A]"))
    assert (len(gpus), strange) == (1, [])


@pytest.mark.parametrize(("text", "code"), [(machines.NO_DRIVER, 9), (machines.MISMATCH, 18)])
def test_a_driver_that_does_not_answer_is_quoted(look, text, code):
    found = look(text, text, code=code)
    assert text.splitlines()[0][:40] in found["gpus", "failure"]
    assert "driver must be put right" in found["gpus", "failure"]


@pytest.mark.parametrize("text", ("No devices were found\n", "\x00\x01 garbage ,,, \n1, x\n", ""))
def test_garbage_is_a_failure_and_no_crash(look, text):
    assert look(text, text)["gpus", "failure"]


def test_one_strange_line_among_good_ones_is_a_warning(look):
    strange = "WARNING: infoROM is corrupted at gpu 0000:5E:00.0\n"
    found = look(machines.H100 + strange, machines.matrix(8, "NV18"))
    assert "infoROM is corrupted" in found["gpus", "warning"]
    assert "8 ×" in found["gpus", "ok"]


def test_a_hanging_nvidia_smi_is_given_up(tmp_path, monkeypatch):
    machines.script(tmp_path / "bin", "nvidia-smi", "sleep 600")
    monkeypatch.setenv("PATH", machines.before_others(tmp_path / "bin"))
    found = [*check_gpus(RECIPE, Machine(0.3)), *check_links(RECIPE, Machine(0.3))]
    assert [finding.status for finding in found] == [Status.FAILURE, Status.WARNING]
    assert all("has not answered within 0.3 s" in finding.message for finding in found)


def test_no_gpu_is_a_failure_unless_the_job_goes_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (finding,) = check_gpus(RECIPE, Machine())
    assert finding.status == Status.FAILURE and "there is no program 'nvidia-smi'" in finding.message
    away = variant("qwen25_coder_7b", cluster__ray_address="http://head:8265")
    (finding,) = check_gpus(away, Machine())
    assert finding.status == Status.SKIPPED and "http://head:8265" in finding.message


def test_gpus_that_nvlink_does_not_join_are_named(look):
    found = look(machines.H100, machines.matrix(8, "NV18", apart=(2, 5)))
    assert "none between GPU 2 and GPU 5 (SYS), nor for 1 of 28 pairs" in found["nvlink", "warning"]
    found = look(machines.H100, machines.matrix(8, "NODE"))
    assert "28 of 28 pairs" in found["nvlink", "warning"]


def test_links_of_gpus_that_are_not_used_do_not_count(look):
    recipe = variant("qwen25_coder_7b", cluster__gpus_per_node=2)
    assert ("nvlink", "ok") in look(machines.H100, machines.matrix(8, "NV18", apart=(2, 5)), recipe=recipe)
    recipe = variant("qwen25_coder_7b", cluster__gpus_per_node=1)
    assert ("nvlink", "skipped") in look(machines.H100, machines.matrix(8, "NV18"), recipe=recipe)


def test_several_machines_want_fast_network_cards(look):
    recipe = variant("qwen25_coder_7b", cluster__nodes=2)
    assert (
        "9 fast network cards"
        in look(machines.H100, machines.matrix(8, "NV18", cards=9), recipe=recipe)["network", "ok"]
    )
    assert "over TCP" in look(machines.H100, machines.matrix(8, "NV18"), recipe=recipe)["network", "warning"]
