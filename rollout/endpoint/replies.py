"""What an OpenAI-compatible endpoint answers: a reply of chat completions, or why there is none."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from secrets import token_hex
from typing import Any, Self

import msgspec
import orjson
from msgspec import UNSET, UnsetType

from slime_swe.errors import UserError
from slime_swe.files import writing
from slime_swe.rollout.client import Generation
from slime_swe.rollout.episode import UNNAMED
from slime_swe.rollout.proxy.conversation import MessageCall
from slime_swe.rollout.replies import EngineError, Refused

_SHOWN = 400  # characters of an endpoint's own words
_TOO_LONG = re.compile(
    r"context[ _-]?(?:length|window)|maximum (?:input|context|prompt|model) ?\w* ?length|too many (?:input )?tokens|"
    r"(?:prompt|input) is too long|longer than the (?:model|maximum)",
    re.IGNORECASE,
)
_UNPAID = {"insufficient_quota", "billing_hard_limit_reached", "insufficient_balance"}
_OF_REQUEST = {400, 413, 422}
_PASSING = {408, 409, 425, 429}  # statuses that another try may not have


class ContextFull(EngineError):
    """The conversation does not fit the model's context."""


class Unfit(EngineError):
    """The endpoint does not take this request, which does not say that it takes no other."""


class Passing(EngineError):
    """The request may pass later. cause: a name to count it by. wait: seconds that the endpoint asks for, if any."""

    def __init__(self, cause: str, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.cause = cause
        self.wait = wait


@dataclass(frozen=True)
class ChatReply(Generation):
    """A model's reply, without its tokens. reasoning_field: the message's field that the reasoning came in, if any."""

    text: str = ""
    reasoning: str = ""
    reasoning_field: str = ""
    reasoning_tokens: int = 0
    calls: tuple[MessageCall, ...] = ()
    usage: Usage | None = None


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = None


class _Call(msgspec.Struct):
    id: str | None = None
    function: _Function = msgspec.field(default_factory=_Function)


class _Message(msgspec.Struct):
    content: Any = None
    tool_calls: list[_Call] | None = None
    reasoning_content: Any = None
    reasoning: Any = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None


class _Used(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None


class _Reply(msgspec.Struct):
    """The fields of a reply that are read; further ones are ignored."""

    choices: list[_Choice] | UnsetType = UNSET
    usage: _Used | None = None
    error: Any = None


def parse_chat_reply(body: bytes) -> ChatReply:
    """Parse the body of a reply. Raises `Passing` or `EngineError` for what is no reply of chat completions."""
    try:
        reply = msgspec.json.decode(body, type=_Reply)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise EngineError(f"the endpoint's reply is none of chat completions ({error}): {body[:80]!r}") from error
    if not reply.choices:
        said = said_in(body)
        if reply.error:  # some gateways report their provider's failure so, with status 200
            raise Passing("error_in_reply", f"the endpoint replied with an error: {said}")
        raise EngineError(f"the endpoint's reply has no choice: {said}")
    choice, used = reply.choices[0], reply.usage
    message = choice.message
    field = next((name for name in ("reasoning_content", "reasoning") if _text(getattr(message, name))), "")
    usage = _usage(used) if used else None
    details = used.completion_tokens_details if used else None
    return ChatReply(
        [],
        [],
        "length" if choice.finish_reason == "length" else "stop",
        prompt_tokens=usage.prompt if usage else 0,
        cached_tokens=usage.cached if usage else 0,
        unseen_tokens=usage.completion if usage else 0,
        text=_text(message.content),
        reasoning=_text(getattr(message, field)) if field else "",
        reasoning_field=field,
        reasoning_tokens=(details.reasoning_tokens or 0) if details else 0,
        calls=tuple(map(_called, message.tool_calls or ())),
        usage=usage,
    )


def failure_of(status: int, headers: Mapping[str, str], body: bytes, url: str) -> UserError | EngineError:
    """Return the error that says why a request was not answered."""
    said, code = said_in(body), _code(body)
    what = f"{url} replied with status {status}: {said}"
    if status == 402 or code in _UNPAID:
        return Refused(f"{what}. There is no more credit there: what was played is kept, and --resume goes on")
    if status in _PASSING or status >= 500:
        return Passing(f"http_{status}", what, retry_after(headers.get("Retry-After", "")))
    if status in _OF_REQUEST and (code == "context_length_exceeded" or _TOO_LONG.search(said)):
        return ContextFull(what)
    if status in (401, 403):
        return Refused(f"{what}. --key-variable names the environment's variable that holds the key")
    if status in _OF_REQUEST:
        return Unfit(what)
    if 300 <= status < 400:
        return Refused(f"{url} leads on to {headers.get('Location', 'nowhere')}: give that address")
    return Refused(what)


def retry_after(value: str, now: datetime | None = None) -> float | None:
    """Read seconds from a header in seconds or with a date (RFC 9110, 10.2.3); None where it says nothing."""
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        then = parsedate_to_datetime(value)
    except (TypeError, ValueError):
        return None
    then = then if then.tzinfo else then.replace(tzinfo=UTC)
    return max(0.0, (then - (now or datetime.now(UTC))).total_seconds())


def said_in(body: bytes) -> str:
    """Return an endpoint's own words for an error, on one line."""
    found = _error(body)
    message = found.get("message") if isinstance(found, dict) else found
    text = message if isinstance(message, str) and message else body[:4096].decode("utf-8", "replace")
    text = " ".join(text.split()) or "nothing"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _code(body: bytes) -> str:
    found = _error(body)
    return str(found.get("code") or "") if isinstance(found, dict) else ""


def _error(body: bytes) -> Any:
    """Find an error's `message` and `code`: OpenAI has them under `error`, others at the top or under `detail`."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(found, dict):
        return found
    return found.get("error") or found.get("detail") or found


def _usage(used: _Used) -> Usage:
    details = used.prompt_tokens_details
    cached = (details.cached_tokens or 0) if details else 0
    return Usage(used.prompt_tokens, used.completion_tokens or 0, min(cached, used.prompt_tokens))


# The cost of an endpoint's calls is counted as its replies say, kept in a file, and held against a budget.
SPENDING = "spending.jsonl"
_MILLION = 1_000_000


class Usage(msgspec.Struct, frozen=True):
    """The tokens of model calls. `cached` ones are among those of the prompts."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0

    @property
    def total(self) -> int:
        return self.prompt + self.completion

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.prompt + other.prompt, self.completion + other.completion, self.cached + other.cached)


@dataclass(frozen=True)
class Prices:
    """The prices of a million tokens in dollars."""

    prompt: float
    completion: float
    cached: float

    def dollars(self, used: Usage) -> float:
        uncached = (used.prompt - used.cached) * self.prompt
        return (uncached + used.cached * self.cached + used.completion * self.completion) / _MILLION


@dataclass(frozen=True)
class Budget:
    """The limits on what may be spent; None: no limit."""

    dollars: float | None = None
    tokens: float | None = None

    def __bool__(self) -> bool:
        return self.dollars is not None or self.tokens is not None


@dataclass
class Spending:
    """The tokens of all model calls that were answered, those of episodes that infrastructure broke or a kill cut short
    included.

    file: has a line for each, so that a later attempt goes on counting. Not covered: a machine that loses its power,
    with the lines of the last seconds.
    """

    file: Path
    _: KW_ONLY
    prices: Prices | None = None
    budget: Budget = Budget()
    used: Usage = field(default_factory=Usage)

    @classmethod
    def of(cls, file: Path, prices: Prices | None = None, budget: Budget = Budget()) -> Self:
        """Count on from what earlier attempts have spent, as the file says."""
        spending = cls(file, prices=prices, budget=budget)
        written = file.read_bytes() if file.exists() else b""
        if written and not written.endswith(b"\n"):
            spending._append(b"\n")
        for line in written.splitlines():
            try:
                spending.used += msgspec.json.decode(line, type=Usage)
            except msgspec.DecodeError:
                continue  # cut short by a crash
        return spending

    @property
    def dollars(self) -> float | None:
        """The dollars spent; None where no prices are given."""
        return self.prices.dollars(self.used) if self.prices else None

    @property
    def is_spent(self) -> bool:
        """True once one of the budget's limits is reached."""
        dollars, tokens = self.budget.dollars, self.budget.tokens
        spent = self.dollars
        too_dear = dollars is not None and spent is not None and spent >= dollars
        return too_dear or (tokens is not None and self.used.total >= tokens)

    def add(self, used: Usage | None) -> None:
        """Count a call. Raises `UserError` where the endpoint does not say what it used, and that is to be counted."""
        if used is None:
            if self.prices or self.budget:
                raise UserError(
                    "the endpoint's replies have no `usage`, so that nothing can be counted: leave out --price and "
                    "--budget"
                )
            return
        self.used += used
        self._append(msgspec.json.encode(used) + b"\n")

    def _append(self, line: bytes) -> None:
        with writing(self.file), self.file.open("ab") as file:
            file.write(line)


def _text(content: Any) -> str:
    """Return a content's text, which some endpoints give in parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))


def _called(call: _Call) -> MessageCall:
    """Convert a call, with an id of its own where the endpoint gives none."""
    given = call.function.arguments
    arguments = given if isinstance(given, str) else "" if given is None else orjson.dumps(given).decode()
    return MessageCall(call.id or f"call_{token_hex(12)}", call.function.name or UNNAMED, arguments)
