"""Tool calls of Qwen2.5-Coder, whose template asks for Hermes' form and who writes others.

Measured of the untrained 7B (vllm#32926): without examples of a form all calls are JSON in a fence; with examples of
Hermes' form three in five are in a fence, the others bare JSON; with examples of JSON in `<tools>` all are in these
tags. It was also seen to write `<function_call>` (vllm#17821), the 14B bare JSON (ollama#12174) and the 32B `<tools>`
(vllm#10952). Of each call, `ToolCall.form` says which of `FORMS` it has.

JSON is also what a policy quotes: settings, listings of tools, examples of an API. So only an object of exactly the
keys `name` and `arguments` is a call, and only if the name is that of a tool that is offered: no text says more clearly
that a call is meant, and an unknown name in such an object is as often an example of another program's API. A policy
that wrote nothing else is told the tools and the form. Between `<tool_call>` and `</tool_call>`, tokens that the models
have for this alone, any name is a call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal, NamedTuple, cast

from slime_swe.rollout.chat import hermes
from slime_swe.rollout.chat.fences import Fence, fences
from slime_swe.rollout.chat.tool_formats import (
    MAX_TURN,
    MOST_CALLS,
    CallError,
    MalformedCall,
    ParsedTurn,
    ToolCall,
    ToolFormat,
    Tools,
    names_of,
    skip_space,
    too_long,
)

Form = Literal["tool_call", "fenced", "bare", "tools", "function_call"]
FORMS: tuple[Form, ...] = ("tool_call", "fenced", "bare", "tools", "function_call")  # the template asks for the first

EXAMPLE = """\
```json
{"name": "bash", "arguments": {"command": "ls"}}
```"""
_FORM = f"Write a call in this form:\n{EXAMPLE}"
_TAGS: Mapping[Form, tuple[str, str]] = {form: (f"<{form}>", f"</{form}>") for form in ("tools", "function_call")}
_STARTS = re.compile(
    r"(?P<tool_call><tool_call>)|^[ \t]*+(?:(?P<tools><tools>)|(?P<function_call><function_call>)|"
    r'(?P<bare>(?:\[\s*+)?\{\s*+"(?:name|arguments)"\s*+:))',
    re.MULTILINE,
)
_OPENINGS = (hermes.OPEN, *(opening for opening, _ in _TAGS.values()))
_MEANT = re.compile(r'(?:\[\s*+)?\{\s*+"name"\s*+:\s*+"([^"\\\n]*)"\s*+,\s*+"arguments"\s*+:')
_OF_JSON = frozenset({"", "json"})  # languages of fences
_OF_TAGS = _OF_JSON | {"xml"}
_MOST_UNREAD = 8  # of what begins as JSON outside of fences and is none: each may be read up to the turn's end

Call = ToolCall | MalformedCall


class _Written(NamedTuple):
    start: int  # of the call, or of the fence that it is in
    call: Call


def parse_qwen25_coder(text: str, tools: Tools = ()) -> ParsedTurn:
    """Parse the turn's calls, each with its `form`. JSON outside of fences is a call only if the turn ends with it."""
    if len(text) > MAX_TURN:
        return too_long("") if hermes.OPEN in text or '"arguments"' in text else ParsedTurn(text, [])
    found = _Reader(text, names_of(tools)).calls()
    first = next(found, None)
    if first is None:
        return ParsedTurn(text, [])
    return ParsedTurn(text[: first.start], [first.call, *(each.call for each in islice(found, MOST_CALLS - 1))])


@dataclass
class _Reader:
    """A reader of one turn, by one who was offered tools of these names."""

    text: str
    offered: frozenset[str]
    unread: int = field(default=0, init=False)

    def calls(self) -> Iterator[_Written]:
        """Yield the turn's calls in order."""
        at, found = 0, False
        for fence in fences(self.text):
            if fence.closed and fence.start >= at:
                at, some = yield from self._between(at, fence.start)
                found |= some
                if at <= fence.start:
                    found |= yield from self._inside(fence)
                    at = fence.end
        _, some = yield from self._between(at, len(self.text))
        if not (found or some or hermes.OPEN in self.text) and self.text.rstrip().endswith(hermes.CLOSE):
            turn = hermes.parse_hermes(self.text)
            yield from (_Written(len(turn.text_before), _shown(call, "tool_call")) for call in turn.written)

    def _inside(self, fence: Fence) -> Generator[_Written, None, bool]:
        """Yield the calls of a fence; return whether there are any."""
        content = self.text[fence.content : fence.content_end]
        at = skip_space(content, 0)
        if fence.language in _OF_JSON and content.startswith(("{", "["), at):
            calls, _ = self._read(content, at, "fenced")
            if calls:
                yield from (_Written(fence.start, call) for call in calls)
                return True
        if fence.language in _OF_TAGS and content.startswith(_OPENINGS, at):
            _, found = yield from self._between(fence.content, fence.content_end, bare=False)
            return found
        return False

    def _between(self, at: int, stop: int, *, bare: bool = True) -> Generator[_Written, None, tuple[int, bool]]:
        """Yield the calls that begin in a part of the turn that has no fence; return where it ends, or where the last
        of them does behind that, and whether there are any. bare: also those without tags.
        """
        any_found = False
        while found := _STARTS.search(self.text, at, stop):
            form = cast(Form, found.lastgroup)
            start, at = found.start(form), found.end()
            calls: list[Call] = []
            if form == "tool_call":
                call, at = self._hermes(start)
                calls = [call]
            elif (form in _TAGS or bare) and self.unread < _MOST_UNREAD:
                content = skip_space(self.text, at) if form in _TAGS else start
                if self.text.startswith(("{", "["), content):
                    calls, end = self._read(self.text, content, form)
                    at = max(at, end)
            yield from (_Written(start, call) for call in calls)
            any_found |= bool(calls)
        return max(at, stop), any_found

    def _hermes(self, start: int) -> tuple[Call, int]:
        call: Call
        try:
            call, end = hermes.parse_one(self.text, start)
        except CallError as error:
            call, end = hermes.read_malformed(self.text, start, str(error))
        return _shown(call, "tool_call"), end

    def _read(self, text: str, at: int, form: Form) -> tuple[list[Call], int]:
        """Return the calls that JSON at a place writes, and where it ends. There are none where anything else stands
        beside them up to the text's end, or to the closing tag, but for what is meant as a call and can't be read.
        """
        calls, stop = list[Call](), len(text)
        _, closing = _TAGS.get(form, ("", ""))
        while not calls or not (at >= stop or (closing and text.startswith(closing, at))):
            try:
                value, end = hermes.decode(text, at)
            except CallError as error:
                self.unread += form != "fenced"
                if not self._is_meant(text, at):
                    return [], at
                end = _find(text, closing, at) if closing else stop
                broken = hermes.malformed(text[at:end], str(error), closed=form != "bare")
                return [*calls, _shown(broken, form)], _behind(text, closing, end)
            read = self._calls_of(value)
            if not read:
                return [], end
            calls += [_shown(call, form) for call in read]
            at = skip_space(text, end)
        if closing and not text.startswith(closing, at):
            last = calls[-1]
            calls[-1] = _shown(
                MalformedCall(last.name, last.arguments, f"the tool call does not end in {closing}"), form
            )
        return calls, _behind(text, closing, at)

    def _calls_of(self, value: Any) -> list[Call]:
        """Return the calls that a JSON value is; none if it, or a part of a list, is something else."""
        if not isinstance(value, list):
            one = self._call(value)
            return [one] if one else []
        each = [self._call(part) for part in value if isinstance(part, dict) and "arguments" in part]
        calls = [call for call in each if call]
        return calls if len(calls) == len(value) else []

    def _call(self, value: Any) -> Call | None:
        if not isinstance(value, dict) or not value.keys() <= {"name", "arguments"}:
            return None
        name, arguments = value.get("name"), value.get("arguments")
        if not isinstance(name, str) or name not in self.offered:
            return None
        if isinstance(arguments, dict):
            return ToolCall(name, arguments)
        if "arguments" not in value:
            return MalformedCall(name, "", 'the tool call has no "arguments"; of a tool that takes none they are {}')
        written = json.dumps(arguments, ensure_ascii=False)
        return MalformedCall(name, written, f'"arguments" must be an object, got {type(arguments).__name__}')

    def _is_meant(self, text: str, at: int) -> bool:
        """Say whether JSON that can't be read begins as a call of an offered tool does."""
        found = _MEANT.match(text, at)
        return found is not None and found.group(1) in self.offered


def _shown(call: Call, form: Form) -> Call:
    """Return the call with its form; the error of a malformed one shows the form that it should have."""
    if isinstance(call, MalformedCall):
        return replace(call, error=f"{call.error}. {_FORM}", form=form)
    return replace(call, form=form)


def _find(text: str, tag: str, at: int) -> int:
    found = text.find(tag, at)
    return found if found >= 0 else len(text)


def _behind(text: str, tag: str, at: int) -> int:
    return at + len(tag) if text.startswith(tag, at) else at


# Others' calls are written as the models' own template writes them, so that a history is the same text on every server.
QWEN25_CODER = ToolFormat(parse_qwen25_coder, hermes.render_hermes, template="qwen3", example=EXAMPLE)
