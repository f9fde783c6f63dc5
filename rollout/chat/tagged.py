"""The reader of a call whose name and keys stand in tags, as in `<function=NAME><parameter=KEY>VALUE</parameter>…`."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass

from slime_swe.rollout.chat.tool_formats import CallError, MalformedCall, ToolCall, expect, first_of, skip_space


@dataclass(frozen=True)
class CallTags:
    """The tags that a format writes around a call and in it.

    outer: what may stand before the call, and ends where the format says. call, parameter: what comes before a name.
    name: a regular expression for a name, `end_name` after it. around_value: what is no part of the value, once on
    either side of it.
    """

    outer: str
    outer_end: str
    call: str
    call_end: str
    parameter: str
    parameter_end: str
    name: str
    end_name: str
    around_value: str = ""

    def inside(self, text: str, start: int) -> int:
        """Find where the call itself starts."""
        return skip_space(text, start + len(self.outer)) if text.startswith(self.outer, start) else start

    def parse(self, text: str, position: int) -> tuple[ToolCall, int]:
        """Return the call at `position`, and where it ends. Raises `CallError`."""
        name, position = self._named(text, position, self.call)
        arguments: dict[str, str] = {}
        position = skip_space(text, position)
        while text.startswith(self.parameter, position):
            key, position = self._named(text, position, self.parameter)
            if key in arguments:
                raise CallError(f"parameter {key!r} is given twice")
            end = text.find(self.parameter_end, position)
            if end < 0:
                raise CallError(f"parameter {key!r} does not end in {self.parameter_end}")
            arguments[key] = text[position:end].removeprefix(self.around_value).removesuffix(self.around_value)
            position = skip_space(text, end + len(self.parameter_end))
        return ToolCall(name, arguments), expect(text, position, self.call_end)

    def read_malformed(self, text: str, start: int, error: str) -> tuple[MalformedCall, int]:
        """Read a malformed call: one that is whole has its arguments, else it ends at the next tag that ends or begins
        one.
        """
        start = self.inside(text, start)
        try:
            call, end = self.parse(text, start)
        except CallError:
            name = ""
            with suppress(CallError):
                name, start = self._named(text, start, self.call)
            end = first_of(self._ends, text, start + text.startswith(self.call, start))
            after = end + len(self.call_end) if text.startswith(self.call_end, end) else end
            return MalformedCall(name, text[start:end].strip(), error), after
        return MalformedCall(call.name, dict(call.arguments), error), end

    @property
    def _ends(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, (self.outer, self.outer_end, self.call, self.call_end))))

    def _named(self, text: str, position: int, opening: str) -> tuple[str, int]:
        """Return the name in the tag that begins with `opening`, and where the tag ends. Raises `CallError`."""
        if not text.startswith(opening, position):
            raise CallError(f"expected {opening}NAME{self.end_name} but found {text[position : position + 20]!r}")
        found = re.compile(f"({self.name}){self.end_name}").match(text, position + len(opening))
        name = found.group(1).strip() if found else ""
        if found is None or not name or "\n" in name:
            raise CallError(f"{opening}NAME{self.end_name} has no proper name")
        return name, found.end()
