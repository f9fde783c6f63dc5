"""A backend from outside the packages, by its dotted path, wherever a built-in one is used."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from slime_swe.data_sources.task import Image
from slime_swe.errors import UserError
from slime_swe.launch.doctor import Machine
from slime_swe.launch.doctor.recipe import check_sandbox
from slime_swe.launch.plan import Assumptions
from slime_swe.launch.plan.images import task_images
from slime_swe.rewards.redteam import proof
from slime_swe.rewards.redteam.gate import leaky_image
from slime_swe.rollout.loop_scope import require_room_for
from slime_swe.sandbox.pool import SandboxPool
from tests.recipes.changes import variant

NAME = "backend_from_outside.Outside"
MODULE = """
    from slime_swe.data_sources.task import Image
    from slime_swe.sandbox.base import Requirement
    from slime_swe.sandbox.local import SubprocessBackend

    class Outside(SubprocessBackend):
        takes_images = takes_layers = True
        isolates = "always"
        requirements = (Requirement("the shell", ("sh", "-c", "echo dash"), "apt-get install dash"),)
        facts = ["one"]

        def __init__(self, image="default"):
            super().__init__()
            self.image = image

        def open(self, spec):
            image = spec.image.name if spec.image else self.image
            return super().open(type(spec)({**spec.files, "image.txt": image.encode()}, spec.limits))

        def fingerprint(self):
            yield from self.facts

        def make_image(self, name, add):
            return Image(name)
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "backend_from_outside.py").write_text(dedent(MODULE))
    monkeypatch.syspath_prepend(tmp_path)


async def test_a_pool_opens_its_sandboxes_with_the_task_s_image_or_its_own(tmp_path: Path) -> None:
    for name, image, said in (
        (NAME, None, "default"),
        (f"{NAME}:other", None, "other"),
        (NAME, Image("a/b"), "a/b"),
    ):
        async with SandboxPool(name) as pool, pool.open({"a": "b"}, image=image, layers=[tmp_path]) as sandbox:
            assert (await sandbox.exec("cat image.txt a")).output == f"{said}b"
    with pytest.raises(UserError, match=r"no 'Inside'"):
        SandboxPool("backend_from_outside.Inside")


def test_the_doctor_checks_what_it_needs_and_opens_one() -> None:
    found = {finding.check: finding for finding in check_sandbox(variant("tiny_cpu", rollout__sandbox=NAME), Machine())}
    assert {check: finding.status.value for check, finding in found.items()} == {"the shell": "ok", "sandbox": "ok"}
    assert found["the shell"].message == "dash"


def test_the_planner_counts_its_images() -> None:
    for sandbox, counted in ((NAME, True), ("local", False), ("remote:modal", False)):
        recipe = variant("qwen25_coder_7b", rollout__sandbox=sandbox)
        assert bool(task_images(recipe, Assumptions())) is counted


def test_the_gate_s_proof_holds_as_long_as_its_facts_and_it_makes_the_gate_s_image() -> None:
    from backend_from_outside import Outside

    before = proof.fingerprint(NAME)
    assert proof.fingerprint(NAME) == before
    Outside.facts.append("two")
    assert proof.fingerprint(NAME) != before
    image = leaky_image(NAME)
    assert image is not None and image.name.startswith("gate-")


def test_an_agent_that_is_a_program_finds_room_in_it() -> None:
    require_room_for("aider", NAME)
    with pytest.raises(UserError, match="one of overlay, docker, apptainer"):
        require_room_for("aider", "local")
