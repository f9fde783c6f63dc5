"""Images that a run removes when the disk is nearly full: real ones, and a disk that holds ten of them."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slime_swe.data_sources.task import Image
from slime_swe.errors import UserError
from slime_swe.sandbox import cache as module
from slime_swe.sandbox.cache import cache_folder
from slime_swe.sandbox.docker import client as docker_client
from slime_swe.sandbox.docker.backend import DockerRoom as Room
from slime_swe.sandbox.docker.backend import Images
from slime_swe.sandbox.image.host import HOST_IMAGE
from slime_swe.sandbox.overlay.backend import FolderRoom, Roots, hold
from slime_swe.sandbox.pool import SandboxPool
from tests.recipes.changes import variant

docker = pytest.importorskip("docker")
PREFIX = f"slime-swe/test-room-{os.getpid()}"
NAMES = [f"{PREFIX}-{letter}:1" for letter in "abcde"]
A, B, C, D, MINE = NAMES


def bring(client, name: str) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        entry = tarfile.TarInfo("testbed/hello.txt")
        entry.size = len(name)
        tar.addfile(entry, io.BytesIO(name.encode()))
    repository, _, tag = name.partition(":")
    client.import_image_from_data(packed.getvalue(), repository=repository, tag=tag)


def here() -> set[str]:
    return {name for name in NAMES if docker_client.find(name) is not None}


@pytest.fixture
def client(monkeypatch) -> Iterator[object]:
    """Pulls from a registry that has every image; the disk has room for ten, less those that are here."""
    if not docker_client.answers():
        pytest.skip("no Docker daemon answers")
    monkeypatch.setattr(docker.APIClient, "pull", lambda self, name, tag: bring(self, name))
    monkeypatch.setattr(module, "free_gib", lambda folder: 10.0 - len(here()))
    client = docker_client.connect()
    yield client
    for name in here():
        client.remove_image(name, force=True)


def test_those_that_were_used_longest_ago_go(client, tmp_path):
    room = Room(client, tmp_path, keep_free=9)
    room.pulled(A)
    room.pulled(B)
    room.used(A)
    identity = room.pulled(C)
    assert here() == {A, C} and not room.has_gone(identity)
    room.pulled(B)
    assert here() == {B, C}


def test_what_a_container_has_stays_and_what_somebody_else_has_pulled(client, tmp_path, caplog):
    bring(client, MINE)
    room = Room(client, tmp_path, keep_free=9)
    room.pulled(MINE)
    room.pulled(A)
    with docker_client.created(A):
        room.pulled(B)
        assert here() == {MINE, A, B}, "nothing could go"
        assert "8 GiB free, and no image is left to remove" in caplog.text
        room.pulled(C)
        assert here() == {MINE, A, C}
    room.pulled(D)
    assert here() == {MINE, D}


def test_what_was_made_of_an_image_goes_before_it(client, tmp_path):
    room = Room(client, tmp_path, keep_free=10)
    room.pulled(A)
    client.tag(A, *D.split(":"))
    folder = tmp_path / "originals"
    (folder / "testbed").mkdir(parents=True)
    for _ in range(2):  # by two processes
        room.made(A, D, str(folder))
    room.pulled(B)
    assert here() == {B} and not folder.exists()


def test_another_process_knows_what_was_pulled(client, tmp_path):
    Room(client, tmp_path, keep_free=10).pulled(A)
    Room(client, tmp_path, keep_free=10).pulled(B)
    assert here() == {B}


def test_a_record_that_was_half_written_is_nobody_s(client, tmp_path):
    """By a process that ended meanwhile."""
    room = Room(client, tmp_path, keep_free=10)
    room.pulled(A)
    (record,) = (tmp_path / "pulled").iterdir()
    half = record.with_name(f".{record.name}.tmp")
    half.touch()
    room.pulled(B)
    assert here() == {B} and half.exists()


def test_without_a_figure_nothing_is_removed_or_noted(client, tmp_path):
    room = Room(client, tmp_path, keep_free=0)
    for name in (A, B, C):
        identity = room.pulled(name)
    assert here() == {A, B, C} and not Path(tmp_path, "pulled").exists()
    client.remove_image(C)
    assert not room.has_gone(identity), "it is not looked for"


async def test_an_image_that_has_gone_is_pulled_again(client, tmp_path, monkeypatch):
    """By a run that knew it, after another had removed it."""
    images = Images(client, tmp_path, keep_free=1)
    monkeypatch.setattr(images, "_without_history", lambda source, *rest: source)  # which takes a bash in the image
    await images.find(Image(A))
    client.remove_image(A)
    assert here() == set()
    (noted,) = (tmp_path / "pulled").iterdir()
    (originals,) = tmp_path.glob("originals-????????????????")
    assert noted.read_text().split("\n") == [A, str(originals)]
    assert (await images.find(Image(A))).identity == docker_client.find(A)


@pytest.fixture
def unpacked(monkeypatch, tmp_path):
    """Unpacks an image, named by a letter, on a disk that holds ten folders."""
    monkeypatch.setattr(module, "free_gib", lambda folder: 10.0 - len(folders(tmp_path)))
    room = FolderRoom(tmp_path, keep_free=9)

    def unpack(letter: str) -> Path:
        def write() -> Path:
            (tmp_path / letter / "root").mkdir(parents=True)
            return tmp_path / letter

        return room.unpacked(letter, write)

    unpack.room = room
    return unpack


def folders(cache: Path) -> str:
    return "".join(sorted(each.name for each in cache.iterdir() if len(each.name) == 1))


def test_folders_that_were_used_longest_ago_go(unpacked, tmp_path):
    unpacked("a")
    unpacked("b")
    unpacked.room.used("a")
    unpacked("c")
    assert folders(tmp_path) == "ac"


def test_a_folder_stays_while_any_sandbox_has_it(unpacked, tmp_path):
    held = hold(unpacked("a"))
    also = hold(tmp_path / "a")
    unpacked("b")
    unpacked("c")
    assert folders(tmp_path) == "ac", "the older one is in use"
    os.close(held)
    unpacked("d")
    assert folders(tmp_path) == "ad", "one of its two sandboxes is left"
    os.close(also)
    unpacked("e")
    assert folders(tmp_path) == "de"


def test_a_folder_that_was_got_beforehand_stays(unpacked, tmp_path):
    (tmp_path / "m").mkdir()
    unpacked("a")
    unpacked("b")
    assert folders(tmp_path) == "bm"


def test_a_layer_over_a_folder_goes_with_it(unpacked, tmp_path):
    unpacked("a")
    (tmp_path / "history-a" / "upper").mkdir(parents=True)
    unpacked.room.made("a", str(tmp_path / "history-a"))
    unpacked("b")
    unpacked("c")
    assert folders(tmp_path) == "bc" and not (tmp_path / "history-a").exists()


async def test_an_unpacked_image_that_has_gone_is_unpacked_again(client, tmp_path):
    """By a run that knew it, after another had removed it; and it stays while one of its sandboxes is open."""
    bring(client, A)
    roots, other = Roots(tmp_path, keep_free=20), FolderRoom(tmp_path, keep_free=20)  # the disk never has that much
    for _ in range(2):
        root, _, held = await roots.find(Image(A))
        other.make(tmp_path)
        assert Path(root.layers[0]).is_dir()
        os.close(held)
        other.make(tmp_path)
        assert not Path(root.layers[0]).exists()


@pytest.mark.asyncio(loop_scope="session")
async def test_the_image_of_an_open_sandbox_stays(overlay_pool):
    """An unpacked one, whose files are those of the host's image."""
    cache, name = cache_folder(), f"kept-{os.getpid()}"
    roots, image = Roots(cache), cache / name
    image.mkdir()
    (image / "root").symlink_to(roots.unpacked(HOST_IMAGE)[0])
    (image / "environment.json").write_text("{}")
    roots._named(name).parent.mkdir(exist_ok=True)
    roots._named(name).write_text(image.name)
    room = FolderRoom(cache, keep_free=1e9)
    room.unpacked(name, lambda: image)
    async with overlay_pool.open({"a": "1"}, image=Image(name)) as sandbox:
        room.make(cache)
        assert (await sandbox.exec("cat a")).output == "1"
    room.make(cache)
    assert not image.exists()


def test_only_a_sandbox_that_removes_images_is_asked_to():
    with pytest.raises(UserError, match="local sandboxes remove no images: use overlay, docker, apptainer"):
        SandboxPool("local", keep_free=10)
    for name in ("overlay", "docker", "apptainer"):
        assert SandboxPool(name, keep_free=10)._backend.keep_free == 10


@pytest.mark.parametrize(
    ("sandbox", "keep", "said"),
    [
        (
            "remote:modal",
            10,
            "a sandbox that removes images, which rollout.sandbox=remote:modal does not: use 0, or overlay, docker or "
            "apptainer",
        ),
        ("docker", 8192, "leaves nothing of cluster.disk_per_node=8192"),
        ("docker", 200, ""),
        ("ray:docker", 200, ""),
        ("ray:overlay", 200, ""),
        ("apptainer", 200, ""),
        ("remote:modal", 0, ""),
    ],
)
def test_a_recipe_that_can_not_make_room_is_refused(sandbox, keep, said):
    from slime_swe.recipes.checks import room

    recipe = variant("qwen25_coder_7b", rollout__sandbox=sandbox, rollout__keep_disk_free=keep)
    assert [said in str(violation) for violation in room(recipe)] == [True] * bool(said)
