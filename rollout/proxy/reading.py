"""Reading a client's JSON. Any bytes give a value of the right type, or a `ProxyError` that names the field, what was
given and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import orjson

from slime_swe.rollout.proxy.conversation import Message, ProxyError

Object = dict[str, Any]
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
MOST_ITEMS = 10_000  # of one list: a body of millions would keep every other session waiting
MOST_VALUES = 50_000  # of a whole body: the parser holds the interpreter for as long as it takes
_BEFORE_VALUES = (b",", b"[", b"{")
_PLAIN = bytes(set(range(256)) - set(b',[{"'))
_MOST_HALVES = 100_000
_SHOWN = 60  # characters of a wrong value
_ROOM = 14  # levels, for what a client's value is put into
_LEVELS = 254 - _ROOM  # orjson writes 254, and reads 1024
_BACKSLASH = rb"\\"  # escaped
_NO_BACKSLASH = b"\0\0"  # no JSON holds it
# A \u escape of half a surrogate pair, where no backslash is escaped: clients cut text between the halves. It begins
# with mere letters, which a search finds several times as fast as it counts the backslashes before them.
_HALF = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F][0-9a-fA-F]{2})"
)


def load(body: bytes) -> Object:
    """Read a request's body, a JSON object; half a surrogate pair becomes U+FFFD, as no encoder can take it."""
    if sum(map(body.count, _BEFORE_VALUES)) > MOST_VALUES and _values(body) > MOST_VALUES:
        raise ProxyError("invalid_request", f"the body is not JSON in UTF-8 of at most {MOST_VALUES} values")
    try:
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError:
            if b"\0" in body or (rb"\ud" not in body and rb"\uD" not in body):
                raise
            whole = _HALF.sub(rb"\\ufffd", body.replace(_BACKSLASH, _NO_BACKSLASH), count=_MOST_HALVES)
            value = orjson.loads(whole.replace(_NO_BACKSLASH, _BACKSLASH))
    except orjson.JSONDecodeError as error:
        raise ProxyError("invalid_request", f"the body is not JSON in UTF-8: {error}") from error
    if type(value) is not dict:
        raise wrong("the body", value, "a JSON object")
    return value


def _values(body: bytes) -> int:
    """Estimate how many values JSON holds: the number of its strings, or of the commas and brackets outside these."""
    unescaped = body.replace(rb"\\", b"").replace(rb"\"", b"")
    strings = unescaped.count(b'"') // 2
    if strings > MOST_VALUES:
        return strings
    outside = unescaped.translate(None, _PLAIN).split(b'"')[::2]
    return max(strings, sum(map(len, outside)))


def dump(value: Any, where: str) -> str:
    """Write what a client gave as JSON text. Raises `ProxyError` where it is nested too deep to be written."""
    try:
        return orjson.dumps(value).decode()
    except TypeError as error:
        raise ProxyError(
            "invalid_request", f"{where}: nested deeper than {_LEVELS} levels, the most allowed"
        ) from error


def require_shallow(value: Any, where: str) -> None:
    """Raise `ProxyError` for a value that is nested too deep to be written as part of others."""
    for _ in range(_ROOM):
        value = [value]
    dump(value, where)


def wrong(where: str, given: Any, allowed: str) -> ProxyError:
    return ProxyError("invalid_request", f"{where}: {_shown(given)} was given, {allowed} is allowed")


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    if type(value) is str:
        return repr(value if len(value) <= _SHOWN else value[:_SHOWN] + "…")
    if type(value) is list:
        return f"a list of {len(value)}"
    return "an object" if type(value) is dict else orjson.dumps(value).decode()


def inside(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _typed(given: Mapping[str, Any], key: str, where: str, kind: type, allowed: str, default: Any = None) -> Any:
    """Return a field of just this type. `default` is for one that is absent or null; None where it must be there."""
    value = given.get(key)
    if value is None and default is not None:
        return default
    if type(value) is not kind:
        raise wrong(inside(where, key), value, allowed)
    return value


def string(given: Mapping[str, Any], key: str, where: str = "") -> str:
    """Return a string that must be there."""
    return cast(str, _typed(given, key, where, str, "a string"))


def name(given: Mapping[str, Any], key: str, where: str = "") -> str:
    value = string(given, key, where)
    if not value:
        raise wrong(inside(where, key), value, "a name that is not empty")
    return value


def text(given: Mapping[str, Any], key: str, where: str = "") -> str:
    """Return a string that may be absent or null, and is empty then."""
    return cast(str, _typed(given, key, where, str, "a string or null", ""))


def flag(given: Mapping[str, Any], key: str, where: str = "") -> bool:
    return cast(bool, _typed(given, key, where, bool, "true, false or null", False))


def object_(given: Mapping[str, Any], key: str, where: str = "") -> Object:
    return cast(Object, _typed(given, key, where, dict, "an object"))


def objects(
    given: Mapping[str, Any], key: str, where: str = "", allowed: str = "a list of objects"
) -> Iterator[tuple[str, Object]]:
    """Yield the objects of a list that may be absent or null, each with its path for errors."""
    value = given.get(key)
    if value is None:
        return
    at = inside(where, key)
    if type(value) is not list:
        raise wrong(at, value, allowed)
    if len(value) > MOST_ITEMS:
        raise wrong(at, value, f"one of at most {MOST_ITEMS}")
    for i, item in enumerate(value):
        if type(item) is not dict:
            raise wrong(f"{at}[{i}]", item, "an object")
        yield f"{at}[{i}]", item


def parts(given: Mapping[str, Any], key: str, where: str = "") -> Iterable[tuple[str, Object]]:
    """Return the parts of content, which may be a string (a part of text), null, absent or a list."""
    value = given.get(key)
    if type(value) is str:
        return [(inside(where, key), {"type": "text", "text": value})]
    return objects(given, key, where, "a string or a list of parts")


def tokens(given: Mapping[str, Any], *keys: str) -> int | None:
    """Return a limit of tokens, by the first of its names that is given."""
    for key in keys:
        value = given.get(key)
        if value is None:
            continue
        if type(value) is not int or value < 1:
            raise wrong(key, value, "a whole number of tokens, 1 or more,")
        return value
    return None


def sampling(given: Mapping[str, Any], numbers: Iterable[str], others: Iterable[str]) -> Object:
    """Return those of these fields that the client gave: numbers are checked, the others are passed on as they are."""
    found = {}
    for key in numbers:
        value = given.get(key)
        if value is not None:
            if type(value) not in (int, float):
                raise wrong(key, value, "a number")
            found[key] = value
    for key in others:
        value = given.get(key)
        if value is not None:
            require_shallow(value, key)
            found[key] = value
    return found


def joined(
    given: Mapping[str, Any],
    key: str,
    where: str,
    kinds: Sequence[str] = ("text",),
    *,
    between: str = "\n",
    stand_ins: bool = False,
) -> str:
    """Return the text of content that is a string, null, absent, or a list of parts of `kinds`.

    A part of another kind (an image, a file) is an error, or with `stand_ins` is replaced by a note: a tool's result
    was caused by the policy, and is no reason to refuse its client.
    """
    texts = (part(value, at, kinds, stand_ins=stand_ins) for at, value in parts(given, key, where))
    return between.join(filter(None, texts))


def part(given: Object, where: str, kinds: Sequence[str] = ("text",), *, stand_ins: bool = False) -> str:
    """Return the text of one part of content."""
    kind = given.get("type")
    if kind in kinds:
        return string(given, "text", where)
    if stand_ins and type(kind) is str:
        return f"[{kind} left out: this model reads text only]"
    raise wrong(f"{where}.type", kind, one_of(kinds))


def one_of(names: Sequence[str]) -> str:
    *most, last = map(repr, names)
    return f"{', '.join(most)} or {last}" if most else f"only {last}"


def function(tool: str, description: str, parameters: Any, where: str) -> Object:
    """Return a function's schema as chat templates take it; absent parameters mean that it takes none."""
    if parameters is None:
        parameters = NO_PARAMETERS
    elif type(parameters) is not dict:
        raise wrong(where, parameters, "a JSON schema (an object)")
    require_shallow(parameters, where)
    return {"type": "function", "function": {"name": tool, "description": description, "parameters": parameters}}


def distinct(tools: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Return the tools, whose names must differ: a call says by name which it means."""
    seen = set()
    for tool in tools:
        named = tool["function"]["name"]
        if named in seen:
            raise wrong("tools", named, "each name once")
        seen.add(named)
    return tuple(tools)


def history(messages: Sequence[Message], key: str = "messages") -> tuple[Message, ...]:
    """Return the messages, which must ask for a reply: a client can't begin the policy's own turn.

    An empty assistant message at the end is dropped.
    """
    if messages and messages[-1] == Message("assistant", ""):
        messages = messages[:-1]
    if not messages:
        raise ProxyError("invalid_request", f"{key}: no message was given, at least one is needed")
    if messages[-1].role == "assistant":
        raise ProxyError(
            "invalid_request",
            f"{key}: the last message is the assistant's; the policy's turns are its own from their first token, so end"
            " with a user's or a tool's message",
        )
    return tuple(messages)


def allow(given: Mapping[str, Any], key: str, values: Sequence[Any], allowed: str, where: str = "") -> None:
    """Refuse the field unless it is absent, null or among `values`."""
    value = given.get(key)
    if value is not None and value not in values:
        raise wrong(inside(where, key), value, allowed)
