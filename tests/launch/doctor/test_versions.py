"""Versions of the stack: real checkouts, and packages that say what they are."""

from __future__ import annotations

import subprocess
import sys

import pytest
from packaging.specifiers import SpecifierSet

from slime_swe.launch.doctor import Machine, versions
from slime_swe.launch.doctor.versions import Support, check_sources, check_versions
from slime_swe.launch.engines.miles import MILES
from slime_swe.launch.slime.upstream import SLIME
from tests.launch.doctor.machines import before_others, script
from tests.recipes.changes import variant

TESTED = {name: support.tested.removeprefix("==") for name, support in versions.packages(SLIME).items()}


@pytest.fixture
def stack(tmp_path, monkeypatch):
    """What is found with these packages on the job's Python, and checkouts of one commit each: check -> finding."""

    def stack(*, router: str = "0.3.2+slime", **changes: str):
        for name, version in (TESTED | {name.replace("_", "-"): version for name, version in changes.items()}).items():
            folder = tmp_path / "packages" / f"{name.replace('-', '_')}-{version}.dist-info"
            folder.mkdir(parents=True)
            (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (tmp_path / "packages" / "sglang_router.py").write_text(f"__version__ = {router!r}")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
        for variable, inside in ((one.variable, one.mark) for one in (SLIME.loop, SLIME.megatron)):
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


def test_another_router_than_slimes_build_is_refused_where_the_recipe_needs_that(stack):
    refused = stack(router="0.3.2")["sglang-router"]
    assert refused.status == "failure"
    assert (
        "0.3.2 is not the build of SLiME's image, needed for slime.flags.router-policy=consistent_" in refused.message
    )
    plain = variant("qwen25_coder_7b", slime__flags={"router-policy": "manual"})
    assert look(plain)["sglang-router"].status == "ok"
    replayed = variant("qwen3_coder_30b_a3b", slime__flags={}, algorithm__routing_replay="rollout")
    assert "needed for algorithm.routing_replay=rollout" in look(replayed)["sglang-router"].message


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


@pytest.mark.parametrize("upstream", [SLIME, MILES], ids=lambda upstream: upstream.package)
def test_the_commits_are_those_whose_flags_are_known(upstream):
    made_from = upstream.manifest.made_from
    assert (made_from[upstream.package], made_from["megatron"]) == (upstream.loop.commit, upstream.megatron.commit)


def test_miles_has_checkouts_and_versions_of_its_own(monkeypatch, tmp_path):
    for variable in ("MILES_HOME", "MEGATRON_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    mark = tmp_path / "MILES_HOME" / MILES.loop.mark
    mark.parent.mkdir(parents=True)
    mark.touch()
    head = commit(tmp_path / "MILES_HOME")
    script(tmp_path / "bin", "python3", 'echo \'[{"transformer-engine": "2.16.1", "sglang": "0.5.16.post2"}, ""]\'')
    monkeypatch.setenv("PATH", before_others(tmp_path / "bin"))
    found = look(variant("qwen25_coder_7b", engine="miles"))
    assert found["miles"].status == "warning" and head[:9] in found["miles"].message
    assert MILES.loop.commit[:9] in found["miles"].message and "slime" not in found
    assert found["megatron"].status == "failure" and "miles" in found["megatron"].fix
    assert "megatron-bridge" in found["versions"].message and found["sglang"].status == "ok"
    assert found["transformer-engine"].status == "warning" and "==2.17.0" in found["transformer-engine"].message


def test_the_matrix_is_well_formed():
    for support in (versions.driver(), *versions.packages(SLIME).values(), *versions.packages(MILES).values()):
        assert SpecifierSet(support.tested)
        lowest = support.tested.partition(",")[0].lstrip("=>")
        assert support.allows(lowest) and support.knows(lowest)
    assert not Support("", "").allows("no version")
