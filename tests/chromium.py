"""Headless Chromium, driven through its DevTools protocol: what a page does, shows, and complains of."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from tests.waiting import wait_for

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions",
    "--no-first-run", "--disable-background-networking", "--hide-scrollbars", "--remote-debugging-port=0",
)  # fmt: skip
_KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "ArrowUp": 38, "ArrowDown": 40, "End": 35, "Home": 36, "PageDown": 34}


class Tab:
    """One page. complaints: errors of the console, exceptions that nobody caught, what the policy blocked."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._number = socket, 0
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.complaints: list[str] = []
        self._reader = asyncio.create_task(self._read())

    async def send(self, method: str, **params: Any) -> Any:
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        return await asyncio.wait_for(answer, 90)

    async def open(self, page: Path, address: str = "") -> None:
        """From the disk, as by a double-click. Returns when the page's script has run."""
        await self.send("Page.navigate", url="about:blank")
        await self.send("Page.navigate", url=page.resolve().as_uri() + address)
        await self.until("document.documentElement?.dataset.ready === 'true'")

    async def run(self, script: str) -> Any:
        found = await self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise AssertionError(json.dumps(found["exceptionDetails"])[:2000])
        return found["result"].get("value")

    async def until(self, script: str, seconds: float = 60) -> None:
        """Wait until the script's value is one that JavaScript takes for true."""
        async with asyncio.timeout(seconds):
            while not await self.run(f"Boolean({script})"):
                await asyncio.sleep(0.02)

    async def press(self, *keys: str) -> None:
        for key in keys:
            about = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS.get(key, 0)}
            if len(key) == 1:
                about |= {"text": key, "windowsVirtualKeyCode": ord(key)}
            if key == "Enter":
                about |= {"text": "\r"}
            await self.send("Input.dispatchKeyEvent", type="keyDown", **about)
            await self.send("Input.dispatchKeyEvent", type="keyUp", **about)

    async def type(self, text: str) -> None:
        await self.send("Input.insertText", text=text)

    async def shape(self, width: int, *, dark: bool, height: int = 900) -> None:
        await self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self, path: Path, *, whole: bool = False) -> None:
        found = await self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    async def _read(self) -> None:
        async for message in self._socket:
            content = json.loads(message.data)
            if "id" in content:
                answer = self._answers.pop(content["id"])
                if "error" in content:
                    answer.set_exception(AssertionError(str(content["error"])))
                else:
                    answer.set_result(content["result"])
            elif complaint := _complaint(content):
                self.complaints.append(complaint)


def _complaint(event: dict[str, Any]) -> str:
    method, params = event["method"], event.get("params", {})
    if method == "Runtime.exceptionThrown":
        return json.dumps(params["exceptionDetails"])[:1000]
    if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
        return json.dumps(params["args"])[:1000]
    if method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
        return json.dumps(params["entry"])[:1000]
    return f"a dialog: {params['message']}" if method == "Page.javascriptDialogOpening" else ""


@contextmanager
def browser() -> Iterator[str]:
    """The address of a new browser, without a network, that ends with the context."""
    assert CHROMIUM
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [CHROMIUM, *_FLAGS, "--proxy-server=127.0.0.1:9", f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            port = Path(profile) / "DevToolsActivePort"
            wait_for(lambda: port.exists() and port.read_text().strip(), "Chromium")
            yield f"http://127.0.0.1:{port.read_text().split()[0]}"
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()


@asynccontextmanager
async def new_tab(address: str) -> AsyncIterator[Tab]:
    """A tab of a running browser, which closes with the context. Only the newest is drawn."""
    async with aiohttp.ClientSession(raise_for_status=True) as client:
        async with client.put(f"{address}/json/new?about:blank") as answer:
            page = await answer.json()
        async with client.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
            tab = Tab(socket)
            for domain in ("Page", "Runtime", "Log"):
                await tab.send(f"{domain}.enable")
            yield tab
        async with client.get(f"{address}/json/close/{page['id']}"):
            pass


@asynccontextmanager
async def browser_tab() -> AsyncIterator[Tab]:
    """The tab of a browser of its own."""
    with browser() as address:
        async with new_tab(address) as tab:
            yield tab
