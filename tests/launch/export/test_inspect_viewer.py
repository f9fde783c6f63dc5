"""Inspect's own viewer lists what was exported, in a real browser, and complains of nothing."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import aiohttp
import pytest

from tests.chromium import CHROMIUM, Tab, browser_tab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

START = 300  # seconds, of a machine that does much else
ABSENT = "/api/flow?"  # the viewer asks for a file of Inspect Flow, and takes 404 for there is none


@asynccontextmanager
async def viewer(logs: Path, home: Path) -> AsyncIterator[str]:
    """`inspect view` on loopback; its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    command = [str(Path(sys.executable).parent / "inspect"), "view", "--log-dir", str(logs), "--port", str(port)]
    process = subprocess.Popen(command, env={**os.environ, "HOME": str(home)})
    try:
        async with asyncio.timeout(START), aiohttp.ClientSession() as client:
            while True:
                assert process.poll() is None, "the viewer has ended"
                try:
                    async with client.get(f"http://127.0.0.1:{port}/"):
                        break
                except aiohttp.ClientError:
                    await asyncio.sleep(0.1)
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        process.wait(60)


async def text_with(tab: Tab, wanted: str) -> str:
    """What the page shows once it shows this."""
    await tab.until(f"document.body?.innerText.includes({wanted!r})", START)
    return await tab.run("document.body.innerText")


@pytest.mark.extended("tests/launch/export/test_formats.py::test_inspect_reads_back_the_episodes_of_training")
@pytest.mark.skipif(not CHROMIUM, reason="no Chromium here: apt-get install chromium")
async def test_the_viewer_lists_the_episodes(export, tmp_path):
    logs = await asyncio.to_thread(export, "inspect")  # beside a running loop Inspect replaces `asyncio.run` for good
    async with viewer(logs, tmp_path) as address, browser_tab() as tab:
        await tab.shape(1600, dark=False)
        await tab.send("Page.navigate", url=address)
        assert "train-rollout5" in await text_with(tab, "train-rollout4")
        (log,) = logs.glob("*train-rollout4*.eval")
        await tab.send("Page.navigate", url=f"{address}#/logs/{quote(log.name)}/samples")
        shown = await text_with(tab, "4 Samples")
        lines = shown.splitlines()
        assert lines.count("calc-1") == 4 and lines.count("C") == 1 and lines.count("I") == 2
        assert "1 of 4 samples (25%) had errors" in shown and "NaN" not in shown
        assert [complaint for complaint in tab.complaints if ABSENT not in complaint] == []
