"""Versions of the stack: real checkouts, and packages that say what they are."""

from __future__ import annotations

import subprocess
import sys

import pytest
from packaging.specifiers import SpecifierSet
from tests.launch.doctor.machines import before_others, script
from tests.recipes.changes import variant

from slime_swe.launch.doctor import versions
from slime_swe.launch.doctor.machine import Machine
from slime_swe.launch.doctor.versions import Support, check_sources, check_versions
from slime_swe.launch.slime.checkouts import MEGATRON, SLIME
from slime_swe.launch.slime.manifest import load_manifest

TESTED = {name: support.tested.removeprefix("==") for name, support in versions.packages().items()}


@pytest.fixture
def stack(tmp_path, monkeypatch):
    """What is found with these packages on the job's Python, and checkouts of one commit each: check -> finding."""

    def stack(**changes: str):
        for name, version in (TESTED | {name.replace("_", "-"): version for name, version in changes.items()}).items():
            folder = tmp_path / "packages" / f"{name.replace('-', '_')}-{version}.dist-info"
            folder.mkdir(parents=True)
            (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
        for variable, inside in ((one.variable, one.mark) for one in (SLIME, MEGATRON)):
            (tmp_path / variable / inside).parent.mkdir(parents=True)
            (tmp_path / variable / inside).write_text("")
            monkeypatch.setenv(variable, str(tmp_path / variable))
        return look(variant("qwen25_coder_7b"))

    return stack


def look(recipe):
    return {finding.check: finding for check in (check_sources, check_versions) for finding in check(recipe, Machine())}


def commit(folder) -> str:
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
        subprocess.run([*git, *words], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


def test_what_was_tested_is_fine_and_local_builds_of_it_are(stack):
    found = stack(torch="2.11.0+cu129")
    assert {finding.status.value for name, finding in found.items() if name in TESTED} == {"ok"}


def test_another_version_warns_and_one_beyond_the_bound_fails(stack):
    found = stack(numpy="2.1.0", ray="2.50.1", sglang="0.5.15.post1")
    assert found["numpy"].status == "failure" and "must be <2" in found["numpy"].message
    assert found["ray"].status == "warning" and "tested with ==2.60.0" in found["ray"].message
    assert found["sglang"].status == "ok"


def test_the_commit_of_a_checkout_is_read(stack, tmp_path):
    stack()
    head = commit(tmp_path / "SLIME_HOME")
    slime = look(variant("tiny_cpu", engine="slime_cpu"))["slime"]
    assert slime.status == "warning" and head[:9] in slime.message and "624b824a" in slime.message


def test_a_folder_without_git_is_a_warning(stack, monkeypatch, tmp_path):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    found = stack()
    assert found["slime"].status == "warning" and "commit unknown" in found["slime"].message


def test_without_the_stack_every_part_is_missing(monkeypatch, tmp_path):
    monkeypatch.setenv("SLIME_HOME", str(tmp_path / "no-slime"))
    monkeypatch.setenv("MEGATRON_HOME", str(tmp_path / "no-megatron"))
    found = look(variant("qwen25_coder_7b"))
    assert found["slime"].status == found["megatron"].status == "failure"
    assert "SLIME_HOME" in found["slime"].fix and "training image" in found["slime"].fix
    script(tmp_path / "bin", "python3", f'exec {sys.executable} -I -S "$@"')  # without any site-packages
    monkeypatch.setenv("PATH", before_others(tmp_path / "bin"))
    assert f"{', '.join(TESTED)} not installed" in look(variant("qwen25_coder_7b"))["versions"].message
    away = variant("qwen25_coder_7b", cluster__ray_address="http://head:8265")
    assert {finding.status for finding in look(away).values()} == {"skipped"}


def test_a_python_that_tells_nothing_is_a_failure(stack, monkeypatch, tmp_path):
    script(tmp_path / "bin", "python3", "echo not JSON")
    monkeypatch.setenv("PATH", before_others(tmp_path / "bin"))
    assert "does not list its packages" in stack()["versions"].message


def test_the_commit_of_slime_is_the_one_whose_flags_are_known():
    made_from = load_manifest().made_from
    assert made_from["slime"].startswith(SLIME.commit[:9])
    assert MEGATRON.commit.startswith(made_from["megatron"])


def test_the_matrix_is_well_formed():
    for support in (versions.driver(), *versions.packages().values()):
        assert SpecifierSet(support.tested)
        lowest = support.tested.lstrip("=>")
        assert support.allows(lowest) and support.knows(lowest)
    assert not Support("", "").allows("no version")
