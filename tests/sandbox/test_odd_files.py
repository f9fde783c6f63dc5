"""Whatever a command leaves in the repository, the patch is read; what no patch holds is left out."""

from __future__ import annotations

import pytest

from slime_swe.data_sources.task import Image
from slime_swe.sandbox.base import Limits, Sandbox
from slime_swe.sandbox.pool import SandboxPool
from tests.sandbox.conftest import FILES

NAMES = r"""
import os
for name in (b"\xff\xfe", b"a\nb", b"\x1b[31m", "\ufffd".encode(), b"x" * 255, b'a\tb"c\\', b" ", b"-rf", b"%2e%2e"):
    os.makedirs(b"folder" + name[:200])
    for path in (name, b"folder" + name[:200] + b"/" + name):
        open(path, "w").write("x")
"""
# Files of which some can be opened by a path from the repository, and not by one from /.
LENGTHS = """
import os
for length in range(4070, 4110):
    os.chdir(os.environ["PWD"])
    for _ in range(length // 201):
        os.makedirs("d" * 200, exist_ok=True)
        os.chdir("d" * 200)
    open("f" * (length % 201), "w").write("x")
"""
STATES = {
    "a link to itself": "ln -s loop loop",
    "a link to itself for a folder": "rm -r pkg; ln -s pkg pkg",
    "a link to itself for a file": "rm pkg/mod.py; ln -s mod.py pkg/mod.py",
    "two links to each other": "rm -r pkg; ln -s other pkg; ln -s pkg other",
    "links to themselves for caches": "rm -rf .git; ln -s .git .git; ln -s __pycache__ __pycache__; ln -s a.pyc a.pyc",
    "links that quote an error": "ln -s ': no space left on device' ': no space left on device'",
    "a link through a file": "ln -s data.bin/x through",
    "a link to a name too long": "ln -s $(printf 'a%.0s' $(seq 300)) a; ln -s $(printf 'aa/%.0s' $(seq 1300)) b",
    "a chain of links": "for i in $(seq 300); do ln -s chain$((i + 1)) chain$i; done",
    "links to odd places": "ln -s /proc/1/mem a; ln -s /proc/self/fd/0 b; ln -s /dev/zero c; ln -s / d; ln -s .. e",
    "no regular files": "mkfifo fifo; python3 -c 'import socket; socket.socket(1).bind(\"socket\")'",
    "a fifo for a folder": "rm -r pkg; mkfifo pkg",
    "odd names": f"python3 -c '{NAMES}'",
    "paths of any length": f"python3 -c '{LENGTHS}'",
    "a folder too deep": 'python3 -c \'import os\nfor _ in range(1500): os.mkdir("d" * 200); os.chdir("d" * 200)\'',
    "thousands of files": "mkdir many; cd many; seq 12000 | xargs touch",
    "files that can't be read": "chmod 000 pkg/mod.py data.bin pkg",
    "odd times": "touch -d @-99999999999 old; touch -d @99999999999999 new",
}
IN_THE_PLACE = {
    "a link to itself": "ln -s repo repo",
    "a link elsewhere": "mkdir other; ln -s other repo",
    "a link to the system": "ln -s / repo",
    "a file": "touch repo",
    "a fifo": "mkfifo repo",
    "nothing": "true",
}


async def require_a_patch(sandbox: Sandbox, state: str) -> None:
    home = (await sandbox.exec("pwd")).output.strip()
    await sandbox.exec(STATES[state])
    assert isinstance(await sandbox.diff(), str)
    await sandbox.exec(f"cd {home}; echo fixed > fix.txt")
    assert "\n+fixed\n" in await sandbox.diff()


@pytest.mark.parametrize("state", STATES)
async def test_odd_files_keep_no_patch_from_being_read(image_pool: SandboxPool, image: Image, state: str) -> None:
    async with image_pool.open({}, image=image) as sandbox:
        await require_a_patch(sandbox, state)


async def test_nor_do_they_where_there_is_no_image(contained_pool: SandboxPool) -> None:
    for state in STATES:
        async with contained_pool.open(FILES, Limits()) as sandbox:
            await require_a_patch(sandbox, state)


@pytest.mark.parametrize("what", IN_THE_PLACE)
async def test_what_is_in_the_place_of_the_repository_is_not_it(
    image_pool: SandboxPool, image: Image, what: str
) -> None:
    async with image_pool.open({}, image=image) as sandbox:
        await sandbox.exec(f"cd /; rm -rf repo; {IN_THE_PLACE[what]}")
        patch = await sandbox.diff()
        assert patch.count("\ndeleted file mode") == patch.count("diff --git ") == 5
