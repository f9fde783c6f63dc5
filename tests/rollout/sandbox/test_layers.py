"""Layers: what many sandboxes have over their images, read-only and without a copy."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.rollout.sandbox.contents import contents

from slime_swe.data_sources.task import Image
from slime_swe.errors import UserError
from slime_swe.rollout.sandbox.base import Sandbox
from slime_swe.rollout.sandbox.docker import client as docker_client
from slime_swe.rollout.sandbox.docker.backend import DockerBackend
from slime_swe.rollout.sandbox.docker.volumes import LAYER_LABEL
from slime_swe.rollout.sandbox.pool import SandboxPool

TOOL = "/opt/agents/tool/bin/run"
SCRIPT = "#!/bin/sh\necho the tool\n"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the layers of these tests are; their volumes are removed."""
    folder = tmp_path_factory.mktemp("layers")
    yield folder
    with contextlib.suppress(RuntimeError, ValueError):  # no daemon here
        client = docker_client.connect()
        for volume in client.volumes(filters={"label": LAYER_LABEL})["Volumes"] or ():
            if volume["Labels"][LAYER_LABEL].startswith(str(folder)):
                for container in client.containers(all=True, filters={"volume": volume["Name"]}):
                    client.remove_container(container["Id"], force=True, v=True)
                client.remove_volume(volume["Name"])


def make_layer(folder: Path, own: str = "opt/agents/tool", files: int = 2) -> Path:
    (folder / own / "bin").mkdir(parents=True)
    (folder / own / "bin" / "run").write_text(SCRIPT)
    (folder / own / "bin" / "run").chmod(0o755)
    (folder / own / "link").symlink_to("bin/run")
    for number in range(files - 1):
        (folder / own / f"data{number}").write_text(f"{number}\n")
    return folder


@pytest.fixture(scope="module")
def layer(folders: Path) -> Path:
    return make_layer(folders / "tool")


async def test_a_layer_is_seen_and_is_no_change(image_pool: SandboxPool, layer: Path) -> None:
    async with image_pool.open({"a": "b"}, layers=[layer]) as sandbox:
        result = await sandbox.exec(f"{TOOL}; /opt/agents/tool/link; cat /opt/agents/tool/data0 a; stat -c %a {TOOL}")
        assert result.output == "the tool\nthe tool\n0\nb755\n"
        assert (await sandbox.exec("ls /usr/bin | wc -l; ls / | grep -c -e ^bin -e ^opt")).output.split()[1] == "2"
        assert await sandbox.diff() == ""
        assert await contents(sandbox) == {"a": b"b"}
    async with image_pool.open({}) as sandbox:
        assert (await sandbox.exec(f"test -e {TOOL}")).exit_code == 1


async def test_what_one_does_to_a_layer_no_other_sees(image_pool: SandboxPool, layer: Path) -> None:
    async with image_pool.open({}, layers=[layer]) as first, image_pool.open({}, layers=[layer]) as second:
        for command in (f"echo bad > {TOOL}", f"chmod 777 {TOOL}", "rm -rf /opt/agents/tool", "rm -rf /opt"):
            await first.exec(command)
            assert (await second.exec(TOOL)).output == "the tool\n"
        assert await first.diff() == ""
    assert (layer / TOOL.lstrip("/")).read_text() == SCRIPT
    assert (layer / TOOL.lstrip("/")).stat().st_mode & 0o777 == 0o755
    async with image_pool.open({}, layers=[layer]) as third:
        assert (await third.exec(TOOL)).output == "the tool\n"


async def test_a_layer_outlives_the_driver(image_pool: SandboxPool, layer: Path) -> None:
    async with image_pool.open({}, layers=[layer]) as sandbox:
        await sandbox._container.kill()  # type: ignore[attr-defined]
        assert (await sandbox.exec(TOOL)).output == "the tool\n"


async def test_many_share_a_layer(image_pool: SandboxPool, layer: Path) -> None:
    async def episode(number: int) -> str:
        async with image_pool.open({}, layers=[layer]) as sandbox:
            return (await sandbox.exec(f"{TOOL}; echo {number}")).output

    assert await asyncio.gather(*map(episode, range(16))) == [f"the tool\n{number}\n" for number in range(16)]


async def test_layers_lie_side_by_side(image_pool: SandboxPool, layer: Path, folders: Path) -> None:
    other = make_layer(Path(tempfile.mkdtemp(dir=folders)), "opt/agents/other")
    async with image_pool.open({}, layers=[layer, other]) as sandbox:
        assert (await sandbox.exec("ls /opt/agents; /opt/agents/other/bin/run")).output == "other\ntool\nthe tool\n"


async def test_an_overlay_copies_nothing_of_a_layer(overlay_pool: SandboxPool, folders: Path) -> None:
    large = make_layer(Path(tempfile.mkdtemp(dir=folders)), "opt/agents/large", files=5000)
    async with overlay_pool.open({}, layers=[large]) as sandbox:
        assert (await sandbox.exec("ls /opt/agents/large | wc -l")).output == "5001\n"
        assert "opt" not in os.listdir(sandbox._container._upper)  # type: ignore[attr-defined]


@pytest.mark.matrix("sandbox backends")
async def test_a_container_has_a_volume_that_it_can_t_write(docker_pool: SandboxPool, layer: Path) -> None:
    client = docker_client.connect()
    async with docker_pool.open({}, layers=[layer]) as first, docker_pool.open({}, layers=[layer]) as second:
        mounts = [client.inspect_container(_container(sandbox))["Mounts"] for sandbox in (first, second)]
        assert (await first.exec(f"echo x > {TOOL}")).output.endswith("Read-only file system\n")
    assert mounts[0] == mounts[1]
    ((mount,),) = mounts[:1]
    assert (mount["Type"], mount["RW"], mount["Destination"]) == ("volume", False, "/opt/agents/tool")
    assert client.inspect_volume(mount["Name"])["Labels"] == {LAYER_LABEL: str(layer)}


@pytest.mark.matrix("sandbox backends")
async def test_a_changed_layer_is_another_volume(docker_pool: SandboxPool, folders: Path) -> None:
    changing = make_layer(folders / "changing")
    for script in (SCRIPT, SCRIPT.replace("the", "our")):
        (changing / TOOL.lstrip("/")).write_text(script)
        async with SandboxPool("docker") as pool, pool.open({}, layers=[changing]) as sandbox:
            assert (await sandbox.exec(TOOL)).output == script.split("echo ")[1]


@pytest.mark.matrix("sandbox backends")
async def test_a_volume_that_was_not_filled_is_made_again(docker_pool: SandboxPool, folders: Path, cache: Path) -> None:
    broken = make_layer(folders / "broken")
    client = docker_client.connect()
    for _ in range(2):
        async with SandboxPool("docker") as pool, pool.open({}, layers=[broken]) as sandbox:
            assert (await sandbox.exec(TOOL)).output == "the tool\n"
            mount = client.inspect_container(_container(sandbox))["Mounts"][0]
        (cache / "slime-swe" / "sandbox" / f"{mount['Name']}.filled").unlink()  # as where a run was killed meanwhile


def _container(sandbox: Sandbox) -> str:
    container: str = sandbox._container._id  # type: ignore[attr-defined]
    return container


@pytest.mark.parametrize(
    ("own", "image", "message"),
    [
        ("testbed", None, "adds /testbed, where the repository /testbed is"),
        ("testbed/tools", None, "adds /testbed/tools, where the repository"),
        ("srv", Image("host", "/srv/repository"), "adds /srv, where the repository"),
        ("usr/bin", None, r"adds /usr/bin, which the image \S+ has already: .*opt/agents/NAME"),
        ("bin/tools", None, "adds /bin/tools, which the image .* has already"),
        ("", None, "must hold a tree as seen from /, in one folder"),
    ],
)
async def test_what_is_no_layer_of_an_image_is_refused(
    image_pool: SandboxPool, tmp_path: Path, own: str, image: Image | None, message: str
) -> None:
    if own == "bin/tools" and isinstance(image_pool._backend, DockerBackend):
        pytest.skip("docker mounts it where the link leads")
    layer = make_layer(tmp_path / "layer", own)
    with pytest.raises(UserError, match=message):
        async with image_pool.open({}, image=image, layers=[layer]):
            pass


async def test_layers_that_are_not_there_or_meet_are_refused(image_pool: SandboxPool, tmp_path: Path) -> None:
    one, other = make_layer(tmp_path / "one"), make_layer(tmp_path / "other", "opt/agents/tool/bin")
    (tmp_path / "empty" / "opt").mkdir(parents=True)
    for layers, message in (
        ([tmp_path / "none"], "is no folder on this machine"),
        ([tmp_path / "empty"], "must hold a tree"),
        ([one, other], "add /opt/agents/tool and /opt/agents/tool/bin: each needs a folder that is its own"),
    ):
        with pytest.raises(UserError, match=message):
            async with image_pool.open({}, layers=layers):
                pass


async def test_an_overlay_takes_no_layer_with_a_separator_in_its_path(
    overlay_pool: SandboxPool, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="can't have ':'"):
        async with overlay_pool.open({}, layers=[make_layer(tmp_path / "a:b")]):
            pass
