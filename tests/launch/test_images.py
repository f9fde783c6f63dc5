"""The images of tasks: which are here, getting the others, and what a run says and refuses before it starts."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from slime_swe.data_sources.task import Image, Workspace
from slime_swe.errors import UserError
from slime_swe.launch.cli import run
from slime_swe.launch.doctor import Machine
from slime_swe.launch.doctor.recipe import check_tasks
from slime_swe.launch.images import backends_here, remedy, survey
from slime_swe.launch.plan import Assumptions
from slime_swe.launch.plan.images import task_images
from slime_swe.sandbox.apptainer import ApptainerBackend
from slime_swe.sandbox.base import Backend, SandboxError
from slime_swe.sandbox.docker import client as docker_client
from slime_swe.sandbox.docker.backend import DockerBackend
from slime_swe.sandbox.overlay.backend import OverlayBackend
from tests.data_sources.tasks import make_task
from tests.data_sources.test_corpora import FIXTURES
from tests.launch.doctor.machines import script
from tests.recipes.changes import variant

WHERE = "tests.launch.test_images"


class Shelf(Backend):
    """Keeps its images as files of the folder `shelf`; some can't be had."""

    takes_images = True
    refused = "no such image"

    def has_image(self, name: str) -> bool:
        return (Path("shelf") / name).exists()

    def get_image(self, name: str) -> None:
        if name.startswith("gone"):
            raise SandboxError(f"{name}: {self.refused}")
        (Path("shelf") / name).touch()

    def image_folder(self) -> Path:
        return Path("shelf")


class Measured(Shelf):
    def images_gib(self, names: Sequence[str]) -> float:
        return 2.0 * len(names)


class Limited(Shelf):
    refused = "toomanyrequests: You have reached your pull rate limit"


class Large(Shelf):
    image_gib = 1e9
    shares_layers = False  # so that what is published of images that do is no smaller figure for it


def with_images(*images: str) -> list:
    workspaces = [Workspace(image=Image(name)) for name in images]
    return [dataclasses.replace(make_task(f"t{n}"), workspace=workspace) for n, workspace in enumerate(workspaces)]


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "shelf").mkdir()


@pytest.fixture
def tasks(tmp_path) -> str:
    """Four tasks in three images."""
    lines = [orjson.dumps(task.to_dict()) for task in with_images("a", "b", "gone-1", "a")]
    (tmp_path / "tasks.jsonl").write_bytes(b"\n".join(lines))
    return str(tmp_path / "tasks.jsonl")


def test_what_is_here_and_what_the_rest_takes_is_said_before_it_is_got(tasks, capsys):
    Path("shelf/a").touch()
    assert run(["tasks", "images", tasks, "--sandbox", f"{WHERE}.Shelf"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(
        f"3 images for {WHERE}.Shelf sandboxes: 1 here, 2 missing, which take about 1 GiB (assumed: "
    )
    assert said.endswith(f"get them: slime-swe tasks images {tasks} --sandbox {WHERE}.Shelf --pull\n")
    assert not Path("shelf/b").exists(), "nothing is got unasked"


def test_what_is_missing_is_taken_to_be_as_large_as_what_is_here():
    names = [f"image-{number}" for number in range(10)]
    for name in names[:7]:
        Path("shelf", name).touch()
    few = survey(with_images(*names), f"{WHERE}.Measured")
    assert (few.here_gib, few.gib, few.how) == (14.0, 1.5, "assumed"), "seven may be unlike the others"
    Path("shelf", names[7]).touch()
    enough = survey(with_images(*names), f"{WHERE}.Measured")
    assert (enough.here_gib, enough.gib, enough.how) == (16.0, 4.0, "measured")
    assert "8 here (16.0 GiB), 2 missing, which take about 4 GiB (measured: 2 GiB each)" in str(enough)


def test_what_was_measured_of_a_set_is_what_a_plan_and_the_next_look_count():
    """Also where its images are here no more; of another kind of sandbox it says nothing."""
    ours = [dataclasses.replace(task, source="swegym", split="train") for task in with_images(*"abcdefghij")]

    def planned(sandbox):
        recipe = variant("qwen25_coder_7b", data__eval={}, rollout__sandbox=sandbox)
        return [(each.spec, each.gib, each.how) for each in task_images(recipe, Assumptions())]

    assert [how for *_, how in planned(f"{WHERE}.Measured")] == ["published"]
    for name in "abcdefgh":
        Path("shelf", name).touch()
    assert survey(ours, f"{WHERE}.Measured").how == "measured"
    for name in "abcdefgh":
        Path("shelf", name).unlink()
    again = survey(ours, f"{WHERE}.Measured")
    assert (again.gib, again.how) == (20.0, "measured") and not again.here_gib
    assert planned(f"{WHERE}.Measured") == [("swegym:train", 2.0, "measured")]
    assert [how for *_, how in planned(f"{WHERE}.Shelf")] == ["published"]
    (sizes,) = (Path("cache") / "slime-swe" / "image_sizes").iterdir()
    sizes.write_text("{")
    with pytest.raises(UserError, match="does not hold the sizes of images"):
        survey(ours, f"{WHERE}.Measured")


def test_a_corpus_s_published_size_is_taken():
    named = [dataclasses.replace(task, source="swegym", split="train") for task in with_images("a", "b")]
    assert survey(named, f"{WHERE}.Shelf").gib == pytest.approx(2 * 2.29, rel=0.01)
    both = survey([*named, *with_images("c")], f"{WHERE}.Shelf")
    assert both.gib == pytest.approx(2 * 2.29 + 0.5, rel=0.01) and both.how == "assumed and published"


def test_images_are_got_and_one_that_can_not_be_had_stops_no_other(tasks, capsys):
    command = ["tasks", "images", tasks, "--sandbox", f"{WHERE}.Shelf", "--pull"]
    assert run(command) == 1
    said = capsys.readouterr()
    assert "2 images came, 1 could not be had" in said.out and "gone-1: gone-1: no such image" in said.err
    assert {path.name for path in Path("shelf").iterdir()} == {"a", "b"}
    assert run([*command, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["missing"] == ["gone-1"] == list(document["failed"]) and len(document["images"]) == 3


def test_a_registry_s_limit_ends_it_with_what_to_do(tasks, capsys):
    assert run(["tasks", "images", tasks, "--sandbox", f"{WHERE}.Limited", "--pull"]) == 2
    said = capsys.readouterr().err
    assert "the registry gives no more images for now" in said and "`docker login` raises the limit" in said


def test_a_disk_that_is_too_small_is_refused_with_a_part_that_fits(tasks, capsys):
    command = ["tasks", "images", tasks, "--sandbox", f"{WHERE}.Large"]
    assert run(command) == 0, "only looked at"
    command.append("--pull")
    assert run(command) == 2
    assert f"too little room: take a part, such as {tasks}?limit=0" in capsys.readouterr().err
    assert [*Path("shelf").iterdir()] == []
    assert run([*command, "--ignore-disk"]) == 1


def no_docker() -> Any:
    raise docker_client.DockerError("no Docker daemon answers")


def test_an_overlay_finds_what_was_exported_where_there_is_no_docker_any_more(tmp_path, monkeypatch):
    """As on a node that got a copy of the cache: the names are in it, and no daemon is asked."""
    name = f"slime-swe/test-exported-{os.getpid()}:1"
    cache = tmp_path / "cache"
    backend = OverlayBackend(cache=cache)
    with docker_image(name):
        assert not backend.has_image(name)
        backend.get_image(name)
        assert backend.has_image(name)
    monkeypatch.setattr("slime_swe.sandbox.docker.client.connect", no_docker)
    elsewhere = OverlayBackend(cache=Path(shutil.copytree(cache, tmp_path / "copy")))
    assert elsewhere.has_image(name) and not elsewhere.has_image("example/other:1")
    root, environment = elsewhere.roots(tmp_path / "copy").unpacked(name)
    assert (root / "testbed" / "hello.txt").read_text() == "hello" and environment["GREETING"] == "hello"
    with pytest.raises(SandboxError, match="no Docker daemon answers"):
        elsewhere.get_image("example/other:1")


@contextmanager
def docker_image(name: str, size: int = 5) -> Iterator[None]:
    """A real image of one file; the test is skipped where no daemon answers."""
    if not docker_client.answers():
        pytest.skip("no Docker daemon answers")
    client, packed = docker_client.connect(), io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        entry = tarfile.TarInfo("testbed/hello.txt")
        entry.size = size
        tar.addfile(entry, io.BytesIO(b"hello".ljust(size)))
    repository, _, tag = name.partition(":")
    client.import_image_from_data(packed.getvalue(), repository=repository, tag=tag, changes=["ENV GREETING=hello"])
    try:
        yield
    finally:
        client.remove_image(name, force=True)


def test_docker_s_layers_are_counted_once(monkeypatch):
    """Of two images that share 3 GiB and have one each, beside others of which two share 2 and one shares nothing."""
    images = [("a", 4, 3), ("b", 4, 3), ("c", 2, 0), ("d", 2, 2), ("e", 2, 2)]
    known = [{"Id": name, "Size": size << 30, "SharedSize": shared << 30} for name, size, shared in images]

    class Daemon:
        def df(self) -> dict:
            return {"LayersSize": 9 << 30, "Images": known}

    monkeypatch.setattr("slime_swe.sandbox.docker.client.connect", Daemon)
    monkeypatch.setattr("slime_swe.sandbox.docker.client.find", lambda name: name)
    taken = DockerBackend().images_gib
    assert (taken(["a"]), taken(["c"]), taken(["d"]), taken([])) == (4, 2, 2, 0)
    assert taken(["a", "b"]) == 7, "5, and the 2 that others share, which can't be told from what these do"


def test_docker_says_what_an_image_takes():
    name = f"slime-swe/test-taken-{os.getpid()}:1"
    with docker_image(name, size=3 << 20):
        assert DockerBackend().images_gib([name]) >= 3 / 1024


def test_apptainer_pulls_by_itself_where_there_is_no_docker(tmp_path, monkeypatch):
    """A corpus names its images as Docker does, and a cluster's nodes have no Docker."""
    log = tmp_path / "log"
    program = f"""echo "$@" >>{log}; case "$*" in *build*) for last; do :; done
      while [ "$1" != --sandbox ]; do shift; done; mkdir -p "$2" ;; *env*) printf "PATH=/usr/bin\\0A=b\\0" ;; esac"""
    script(tmp_path, "apptainer", program)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("slime_swe.sandbox.docker.client.connect", no_docker)
    backend = ApptainerBackend(cache=tmp_path / "cache")
    assert not backend.has_image("example/one")
    backend.get_image("example/one")
    assert backend.has_image("example/one") and backend.has_image("docker://example/one")
    assert " docker://example/one\n" in log.read_text()
    backend.get_image("example/one")
    assert log.read_text().count("build") == 1


def test_sandboxes_that_keep_no_images_here_need_none():
    assert survey(with_images("a", "b"), "remote:modal").missing == []


@pytest.mark.parametrize("sandbox", ["local", "subprocess", "bubblewrap"])
@pytest.mark.parametrize("kind", ["file", "corpus that is not here"])
@pytest.mark.parametrize("how", ["train", "dry run", "doctor"])
def test_tasks_in_images_are_refused_by_a_sandbox_that_takes_none(tasks, sandbox, kind, how, capsys, monkeypatch):
    """Before a run has a folder, by each way to start one, with the backends that work on this machine."""
    monkeypatch.setattr("slime_swe.launch.images.backends_here", lambda machine: ["overlay"])
    spec = tasks if kind == "file" else "swegym:train"
    words = ["recipe=qwen25_coder_7b", f"data.train=['{spec}']", "data.eval={}", f"rollout.sandbox={sandbox}"]
    if how == "doctor":
        recipe = variant("tiny_cpu", data__train=[spec], data__eval={}, rollout__sandbox=sandbox)
        failures = [found for found in check_tasks(recipe, Machine()) if found.status == "failure"]
        said = " ".join(f"{found.message} {found.fix}" for found in failures)
    else:
        assert run(["train", *words, *(["--dry-run"] if how == "dry run" else [])]) == 2
        printed = capsys.readouterr()
        said = printed.err
        assert printed.out == "" and not Path("runs").exists()
    assert f"rollout.sandbox={sandbox} takes none" in said.replace("takes \nnone", "takes none")
    assert "set rollout.sandbox to one that does, on this machine overlay" in said


def test_the_backends_of_this_machine_are_those_whose_programs_answer(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert backends_here(Machine()) == []
    assert "none of them has what it needs on this machine yet" in remedy(Machine())
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.defpath}")
    script(tmp_path, "docker", "echo 28.3.2")
    assert "docker" in backends_here(Machine())


def test_a_run_is_refused_with_the_one_command_that_brings_all_its_tasks(capsys, monkeypatch):
    words = ["recipe=tiny_cpu", "data.train=['swegym:train','quixbugs:python']", "data.eval={v: 'swebench:verified'}"]
    command = "slime-swe tasks fetch swebench:verified swegym:train quixbugs:python"
    assert run(["train", *words, f"rollout.sandbox={WHERE}.Shelf"]) == 2
    assert command in capsys.readouterr().err and not Path("runs").exists()
    without_slime = ["recipe=tiny_cpu", "engine=slime_cpu", *words[1:], f"rollout.sandbox={WHERE}.Shelf"]
    monkeypatch.delenv("SLIME_HOME", raising=False)
    assert run(["train", *without_slime]) == 2
    said = capsys.readouterr().err
    assert command in said and "SLIME_HOME is not set" in said, "what is missing is said at once"
    assert run(["train", "recipe=qwen25_coder_7b", *words[1:], f"rollout.sandbox={WHERE}.Shelf", "--dry-run"]) == 0
    printed = capsys.readouterr()
    assert f"note: swebench:verified, swegym:train, quixbugs:python not on this machine: {command}" in printed.err
    assert "train.py" in printed.out, "a dry run shows the command all the same"
    own = ["recipe=qwen25_coder_7b", *words[1:], f"rollout.sandbox={WHERE}.Shelf", "reward.function=nowhere.reward"]
    assert run(["train", *own, "--dry-run"]) == 0
    assert "note: reward.function='nowhere.reward': there is no module 'nowhere'" in capsys.readouterr().err
    recipe = variant("tiny_cpu", data__train=["swegym:train"], data__eval={}, rollout__sandbox=f"{WHERE}.Shelf")
    found, harness = check_tasks(recipe, Machine())
    assert found.status == "failure" and found.command == "slime-swe tasks fetch swegym:train"
    assert (harness.check, harness.status) == ("swebench", "skipped"), "what its tasks need is not known yet"


def test_missing_images_are_said_before_a_run(capsys):
    spec = f"swegym:train?folder={FIXTURES}/swegym"
    words = [f"data.train=['{spec}']", "data.eval={}", f"rollout.sandbox={WHERE}.Shelf", "--dry-run"]
    assert run(["train", "recipe=qwen25_coder_7b", *words]) == 0
    said = capsys.readouterr().err
    assert "note: 2 images for" in said and "0 here, 2 missing, which take about 5 GiB" in said
    assert f"To get them before: slime-swe tasks images '{spec}' --sandbox {WHERE}.Shelf --pull" in said
    recipe = variant("tiny_cpu", data__train=[spec], data__eval={}, rollout__sandbox=f"{WHERE}.Shelf")
    found = {finding.check: finding for finding in check_tasks(recipe, Machine())}
    assert found["images"].status == "warning" and found["images"].command.endswith("--pull")
    without = dataclasses.replace(recipe, reward=dataclasses.replace(recipe.reward, harness_python="/bin/false"))
    (harness,) = (finding for finding in check_tasks(without, Machine()) if finding.check == "swebench")
    assert harness.status == "failure" and "pip install 'swebench>=5.0.2'" in harness.command
    large = dataclasses.replace(recipe, rollout=dataclasses.replace(recipe.rollout, sandbox=f"{WHERE}.Large"))
    assert {finding.check: finding.status for finding in check_tasks(large, Machine())}["images"] == "failure"
