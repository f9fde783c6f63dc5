"""`ChatEndpoint`: a server of OpenAI's chat completions, whose model follows a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

Said = dict[str, Any]
_PROBE = "Say ok."
KEY = "sk-scripted-0123456789abcdef"


def call(name: str, id: str = "c1", **arguments: str) -> Said:
    function = {"name": name, "arguments": orjson.dumps(arguments).decode()}
    return {"id": id, "type": "function", "function": function}


def calls(*made: Said, text: str | None = None, **more: Any) -> Said:
    return {"role": "assistant", "content": text, "tool_calls": [*made], **more}


VIEW = calls(call("view", path="calc.py"), text="Let me look.")
FIX = calls(call("str_replace", "c2", path="calc.py", old_str="a - b", new_str="a + b"))
SUBMIT = calls(call("submit", "c3"))
REPAIR = (VIEW, FIX, SUBMIT)


def by_turn(*said: Said) -> Callable[[Said], Said]:
    """These messages, one for each of the assistant's in the request; the last one for ever."""
    return lambda asked: said[min(turns_in(asked), len(said) - 1)]


def turns_in(asked: Said) -> int:
    return sum(message["role"] == "assistant" for message in asked["messages"])


@dataclass
class ChatEndpoint:
    """say: the model's next message for a request. fail: (status, body, headers) of each of the next requests, or None
    for one that is answered. seconds: that an answer takes.
    """

    say: Callable[[Said], Said]
    model: str = "large"
    key: str = ""
    fail: list[tuple[int, Any, dict[str, str]] | None] = field(default_factory=list)
    fail_first: tuple[int, Any, dict[str, str]] | None = None  # of the next request that asks whether it is usable
    seconds: float = 0.0
    finish: str = ""
    usage: bool = True
    under_way: int = 0
    most: int = 0  # requests at once
    requests: list[Said] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    @property
    def asked(self) -> list[Said]:
        """The requests of episodes: without those that only ask whether the endpoint is usable."""
        return [request for request in self.requests if request["messages"][-1]["content"] != _PROBE]

    async def complete(self, http: web.Request) -> web.Response:
        self.headers.append(dict(http.headers))
        if self.key and http.headers.get("Authorization") != f"Bearer {self.key}":
            given = http.headers.get("Authorization", "none")
            return _error(401, f"Incorrect API key provided: {given}", "invalid_api_key")
        asked = await http.json()
        self.requests.append(asked)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.under_way -= 1
        failure, is_probe = None, asked["messages"][-1]["content"] == _PROBE
        if is_probe:
            failure, self.fail_first = self.fail_first, None
        elif self.fail:
            failure = self.fail.pop(0)
        if failure:
            status, body, headers = failure
            return web.json_response(body, status=status, headers=headers)
        if asked["model"] != self.model:
            return _error(404, f"The model `{asked['model']}` does not exist.", "model_not_found")
        message = self.say(asked)
        finish = self.finish or ("tool_calls" if message.get("tool_calls") else "stop")
        reply = {
            "id": "x",
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        }
        if self.usage:
            prompt = 100 * len(asked["messages"])
            reply["usage"] = {"prompt_tokens": prompt, "completion_tokens": 10, "total_tokens": prompt + 10,
                              "prompt_tokens_details": {"cached_tokens": prompt - 100}}  # fmt: skip
        return web.json_response(reply)

    async def models(self, http: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self.model, "object": "model"}]})


@asynccontextmanager
async def chat_endpoint(say: Callable[[Said], Said], **settings: Any) -> AsyncIterator[ChatEndpoint]:
    """A `ChatEndpoint`, served on the loopback inside the context."""
    endpoint = ChatEndpoint(say, **settings)
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/chat/completions", endpoint.complete)
    app.router.add_get("/v1/models", endpoint.models)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        endpoint.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        yield endpoint
    finally:
        await runner.cleanup()


def _error(status: int, message: str, code: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "x", "code": code}}, status=status)
