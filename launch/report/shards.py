"""What the page reads only when an episode is opened, cut into pieces of about a megabyte."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from slime_swe.rollout.json_lines import encoded

SHARD = 1_000_000  # bytes
_ESCAPED = {b"<": rb"\u003c", "\u2028".encode(): rb"\u2028", "\u2029".encode(): rb"\u2029"}
_UNSAFE = re.compile(b"|".join(_ESCAPED))


def script_json(value: Any) -> bytes:
    """JSON that can stand inside a script element: nothing in it ends that element or begins a comment."""
    return _UNSAFE.sub(lambda match: _ESCAPED[match[0]], encoded(value).rstrip())


class Shards:
    """Scripts `0.js`, `1.js` ... in a folder, each of which gives the page a list of episodes."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._parts, self._size = folder, list[bytes](), 0
        self.count = self.bytes = 0

    def add(self, detail: Any) -> tuple[int, int]:
        """Which shard it is in, and its place there."""
        if self._size > SHARD:
            self.close()
        part = script_json(detail)
        self._parts.append(part)
        self._size += len(part) + 1
        return self.count, len(self._parts) - 1

    def close(self) -> None:
        """Write what is not written yet."""
        if not self._parts:
            return
        script = b"slimeSweShard(%d,[%s]);\n" % (self.count, b",".join(self._parts))
        (self._folder / f"{self.count}.js").write_bytes(script)
        self.count += 1
        self.bytes += len(script)
        self._parts, self._size = [], 0

    def lists(self) -> list[str]:
        """The JSON of each."""
        texts = ((self._folder / f"{number}.js").read_text("utf-8") for number in range(self.count))
        return [text[text.index("[") : text.rindex("]") + 1] for text in texts]
