"""The parts of the Modal launcher that need no Modal: settings, command, and the forwarder with real servers."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from slime_swe import errors
from slime_swe.errors import UserError
from slime_swe.launch.modal import settings
from slime_swe.launch.modal.__main__ import main
from slime_swe.launch.modal.forward import forwarder
from slime_swe.launch.modal.settings import Served, command, from_json


async def answer(request: web.Request) -> web.StreamResponse:
    if request.path == "/slow":
        stream = web.StreamResponse()
        await stream.prepare(request)
        for piece in (b"one ", b"two"):
            await stream.write(piece)
        return stream
    seen = {"key": request.headers.get("Modal-Key"), "path": request.path_qs, "body": await request.text()}
    return web.json_response(seen | {"method": request.method}, status=int(request.query.get("status", 200)))


@pytest.fixture
async def target():
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(application) as server:
        yield server


@pytest.fixture
async def front(target):
    async with (
        TestServer(forwarder(str(target.make_url("/")), {"Modal-Key": "k"})) as server,
        ClientSession() as client,
    ):
        yield server, client


async def test_a_request_arrives_as_it_was_with_the_key_added(front):
    server, client = front
    async with client.post(server.make_url("/generate?a=1&b=%20"), data="prompt") as response:
        assert await response.json() == {"key": "k", "path": "/generate?a=1&b=%20", "body": "prompt", "method": "POST"}


async def test_status_and_stream_come_back(front):
    server, client = front
    async with client.get(server.make_url("/x?status=503")) as response:
        assert response.status == 503
    async with client.get(server.make_url("/slow")) as response:
        assert await response.read() == b"one two"


async def test_a_target_that_has_gone_is_said(front, target):
    server, client = front
    await target.close()
    async with client.get(server.make_url("/health")) as response:
        assert response.status == 502
        assert "can't be reached" in await response.text()


def test_settings_survive_the_way_into_the_container():
    served = Served("org/name", gpus=2, weights="/shared/weights", bucket="mine", secret="aws")
    assert from_json(served.to_json()) == served
    assert " ".join(command(served)).count("--tp-size 2") == 1
    assert "--revision" not in command(served) and "--revision" in command(Served("org/name", revision="abc"))


def test_what_the_container_imports_is_what_it_is_given(tmp_path):
    """Beside the standard library: the settings, and the errors that they raise."""
    here = Path(settings.__file__).resolve().parent
    shutil.copytree(here, tmp_path / "slime_swe/launch/modal")
    shutil.copy(Path(errors.__file__).resolve(), tmp_path / "slime_swe/errors.py")
    code = "import slime_swe.launch.modal.settings as s; print(s.command(s.Served('org/name'))[0])"
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", code], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.stdout == "python3\n", done.stderr


def test_new_weights_need_a_folder_and_a_bucket():
    with pytest.raises(UserError, match="go together"):
        Served("org/name", weights="/shared/weights")
    with pytest.raises(UserError, match="absolute path"):
        Served("org/name", weights="weights", bucket="mine")


def test_a_missing_key_is_said_with_the_command_that_makes_one(monkeypatch):
    for name in ("MODAL_PROXY_KEY", "MODAL_PROXY_SECRET"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit, match="modal workspace proxy-tokens create"):
        main(["connect", "https://somewhere.example"])
