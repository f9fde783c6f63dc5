"""`EndpointClient` of an OpenAI-compatible endpoint: messages and tools in, what the model says out."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, Self
from urllib.parse import urlsplit

import aiohttp
import orjson

from slime_swe.errors import UserError
from slime_swe.journal import encoded
from slime_swe.redaction import LEAST, secrets_of
from slime_swe.rollout.client import UNREACHABLE, Gate, read_body
from slime_swe.rollout.endpoint.replies import (
    SPENDING,
    ChatReply,
    ContextFull,
    Passing,
    Spending,
    Unfit,
    failure_of,
    parse_chat_reply,
    said_in,
)
from slime_swe.rollout.loop_scope import opened_once
from slime_swe.rollout.replies import EngineError, Refused
from slime_swe.rollout.settings import RolloutSettings

_MOST_NAMES = 8  # models that are named to the user
_PROBE_TOKENS = 1024  # reasoning models refuse limits that their thoughts don't fit

Message = Mapping[str, Any]


async def endpoint_client(settings: RolloutSettings) -> EndpointClient:
    """Make the connections of a run's agent to its endpoint, to be entered. Raises `UserError` where the environment
    has no key by the name that is given.

    One request may take half as long as an episode's time budget.
    """
    return EndpointClient(
        settings.endpoint,
        settings.endpoint_model,
        key=key_of(settings.endpoint_key),
        timeout=settings.time_budget / 2,
        spending=await spending_of(Spending(settings.run_dir / SPENDING)),
    )


async def spending_of(spending: Spending) -> Spending:
    """Return the running loop's count of what is spent, which is the first caller's."""
    return await opened_once("spending", lambda: nullcontext(spending))


def key_of(variable: str) -> str:
    """Read the key that a variable of the environment holds; empty where none is named. Raises `UserError`."""
    if not variable:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UserError(f"--key-variable {variable}: the environment has no such variable, or it is empty: export it")
    if not secrets_of({variable: "a" * 16}):
        raise UserError(
            f"--key-variable {variable}: give the variable a name that says what it holds, as API_KEY does: by their "
            "names secrets are kept out of records, exports and reports"
        )
    if not key.isascii() or not key.isprintable():
        raise UserError(f"--key-variable {variable}: a key has printable ASCII characters only")
    return key


def require_endpoint(url: str) -> str:
    """Return the URL without a slash at its end. Raises `UserError` for one that is no base of an API."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise UserError(f"{url} is no address ({error}): give it as https://HOST/v1") from error
    if parts.username or parts.password:
        raise UserError("an endpoint's address must hold no user and no password: name the key by --key-variable")
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise UserError(f"{url} is no address of an API: give its base, as in https://HOST/v1")
    base = url.rstrip("/")
    if base.endswith("/chat/completions"):
        raise UserError(f"{url}: give the base of the API, {base.removesuffix('/chat/completions')}")
    return base


@dataclass(eq=False)
class EndpointClient:
    """One pool of connections, to be used as an async context manager in one event loop.

    url: the API's base, below which `/chat/completions` is. timeout, connect_timeout: seconds, of one request.
    What fails by a connection or with status 408, 409, 425, 429 or 5xx is asked `attempts` times, with doubling pauses
    or as long a one as the endpoint asks for; where it asks for more than `most_wait` seconds, the request has failed.
    What the endpoint refuses for good (a wrong key, model or option) is a `Refused`, which ends the evaluation. The key
    goes into the requests' header and nowhere else.

    Not covered: HTTP proxies of the environment are not asked.
    """

    url: str
    model: str
    _: KW_ONLY
    spending: Spending
    key: str = field(default="", repr=False)
    timeout: float = 600.0
    connect_timeout: float = 10.0
    attempts: int = 7
    pause: float = 0.5
    most_wait: float = 120.0
    max_body: int = 8 << 20
    gate: Gate = field(default_factory=Gate)
    _http: aiohttp.ClientSession | None = field(default=None, init=False)
    _limit: str = field(default="max_tokens", init=False)  # the option's name; newer models of OpenAI's have another
    _reasoning: str = field(default="reasoning_content", init=False)  # the field that it comes in

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=self.timeout, sock_connect=self.connect_timeout),
            headers={"Content-Type": "application/json"} | self._authorization(),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._http is not None:
            await self._http.close()

    async def require_usable(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """Ask once for a few words, and raise `UserError` where nothing answers at the address, or it refuses the key,
        the model or tools. Not counted. An endpoint that is merely busy is usable."""
        try:
            await self._ask([{"role": "user", "content": "Say ok."}], tools, {"max_new_tokens": _PROBE_TOKENS})
        except Passing as error:
            if error.cause == UNREACHABLE:
                raise UserError(f"{error}: is the address right, and the server up?") from error
        except (Unfit, ContextFull) as error:
            raise UserError(str(error)) from error

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], params: Mapping[str, Any]
    ) -> ChatReply:
        """Ask for the model's next message. params: SGLang's names. Raises `EngineError`, of which `ContextFull` is
        one, and `Refused`; cancelling drops the request.
        """
        retries = Counter[str]()
        while True:
            try:
                reply = await self._ask(messages, tools, params)
            except Passing as error:
                retries[error.cause] += 1
                failures = retries.total()
                if failures == self.attempts or (error.wait or 0.0) > self.most_wait:
                    raise
                pause = self.pause * 2 ** (failures - 1)
                await asyncio.sleep(pause if error.wait is None else error.wait)
            else:
                self._reasoning = reply.reasoning_field or self._reasoning
                self.spending.add(reply.usage)
                return replace(reply, retries=retries)

    async def _ask(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], params: Mapping[str, Any]
    ) -> ChatReply:
        while True:
            limit = self._limit
            body = encoded(self._request(messages, tools, params))
            try:
                status, headers, reply = await self._post(body)
            except aiohttp.ConnectionTimeoutError as error:
                raise Passing(UNREACHABLE, f"{self.url}: no connection in {self.connect_timeout:g} s") from error
            except TimeoutError as error:
                raise EngineError(f"{self.url} did not reply within {self.timeout:g} s") from error
            except aiohttp.ClientError as error:
                raise Passing(UNREACHABLE, f"{self.url} can't be reached: {error}") from error
            if status == 200:
                return parse_chat_reply(reply)
            if status == 400 and limit == "max_tokens" and "max_completion_tokens" in said_in(reply):
                self._limit = "max_completion_tokens"
                continue
            failure = self._failure(status, headers, reply)
            raise await self._with_models(failure) if status == 404 else failure

    def _request(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], params: Mapping[str, Any]
    ) -> dict[str, Any]:
        request: dict[str, Any] = {
            "model": self.model,
            "messages": [self._renamed(message) for message in messages],
            self._limit: params["max_new_tokens"],
            "temperature": params.get("temperature", 1.0),
        }
        if params.get("top_p", 1.0) != 1.0:
            request["top_p"] = params["top_p"]
        return request | {"tools": [*tools]} if tools else request

    def _renamed(self, message: Message) -> Message:
        """Return a message with its reasoning in the field in which the endpoint's own came."""
        given = dict(message)
        reasoning = given.pop("reasoning_content", None)
        return given | {self._reasoning: reasoning} if reasoning else given

    async def _post(self, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        async with self.gate.passing():
            return await self._request_to("POST", "/chat/completions", data=body)

    async def _get(self, path: str) -> tuple[int, Mapping[str, str], bytes]:
        limit = aiohttp.ClientTimeout(total=3 * self.connect_timeout, sock_connect=self.connect_timeout)
        return await self._request_to("GET", path, timeout=limit)

    async def _request_to(self, method: str, path: str, **options: Any) -> tuple[int, Mapping[str, str], bytes]:
        if self._http is None:
            raise RuntimeError("EndpointClient is used outside its `async with`")
        async with self._http.request(method, f"{self.url}{path}", allow_redirects=False, **options) as response:
            return response.status, response.headers, await read_body(response, self.url, self.max_body)

    def _failure(self, status: int, headers: Mapping[str, str], body: bytes) -> UserError | EngineError:
        if len(self.key) >= LEAST:  # an error may repeat it
            body = body.replace(self.key.encode(), b"[key]")
        return failure_of(status, headers, body, self.url)

    async def _with_models(self, failure: UserError | EngineError) -> UserError | EngineError:
        """Add to a failure the names of the endpoint's models, where it lists them without the one asked for."""
        try:
            status, _, body = await self._get("/models")
            listed = orjson.loads(body)["data"] if status == 200 else []
            names = [str(model["id"]) for model in listed]
        except (aiohttp.ClientError, TimeoutError, EngineError, ValueError, LookupError, TypeError):
            return failure
        if not names or self.model in names:
            return failure
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        there = f"{', '.join(names[:_MOST_NAMES])}{more}"
        return Refused(f"{failure}. There is no model {self.model!r}: the endpoint has {there}")

    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}
