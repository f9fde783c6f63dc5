"""Layers: what many sandboxes have over their images, read-only and without a copy."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import pytest

from slime_swe.data_sources.task import Image
from slime_swe.errors import UserError
from slime_swe.sandbox.pool import SandboxPool
from tests.sandbox.conftest import require_here
from tests.sandbox.contents import contents

TOOL = "/opt/agents/tool/bin/run"
SCRIPT = "#!/bin/sh\necho the tool\n"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the layers of these tests are."""
    return tmp_path_factory.mktemp("layers")


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
    require_here(image_pool)
    async with image_pool.open({}, layers=[layer]) as sandbox:
        await sandbox._kill()  # type: ignore[attr-defined]
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
        assert "opt" not in os.listdir(sandbox._upper)  # type: ignore[attr-defined]


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
    if own == "bin/tools" and image_pool._name.endswith("docker"):
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
