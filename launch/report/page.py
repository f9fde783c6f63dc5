"""The page: vendored scripts, style, and the document, in one file, or with its episodes in a folder beside it.

Episodes are hostile text. They are JSON data, of which the page makes text nodes alone, and a content security policy
allows no script but those whose hashes it names, and no `eval`. A page with a folder reads its episodes as scripts from
there. Its policy allows files from where the page is, which opened from a disk are all files of that disk.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson
from jinja2 import Environment, StrictUndefined

from slime_swe.journal import encoded

ONE_FILE = 20_000_000  # bytes of a page with all of its data
# Our own scripts; each uses those before it.
_SCRIPTS = ("store.js", "parts.js", "run.js", "list.js", "episode.js", "app.js")
DATA = "data"  # the folder of the shards beside `index.html`


def vendored() -> list[dict[str, Any]]:
    """Read the manifest: each script that is not ours, where it is from, its licence and SHA-256."""
    return list(orjson.loads(_text("vendor", "manifest.json")))


def write_page(partial: Path, title: str, document: Mapping[str, Any], shards: Shards) -> Path:
    """Write the page in the folder that has the shards in `DATA`. Returns what to keep: a file, or the whole folder."""
    data = script_json(document).decode()
    scripts = [_text("vendor", entry["file"]) for entry in vendored()] + [_text("page", name) for name in _SCRIPTS]
    parts = {
        "title": title,
        "style": _text("page", "style.css"),
        "scripts": scripts,
        "hashes": " ".join(f"'sha256-{_hash(script)}'" for script in scripts),
        "document": data,
    }
    page = partial / "index.html"
    size = shards.bytes + len(data) + sum(map(len, scripts))
    lists = shards.lists() if size <= ONE_FILE else []
    environment = Environment(autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True)
    page.write_text(environment.from_string(_text("page", "template.html")).render(parts, shards=lists), "utf-8")
    if size > ONE_FILE:
        return partial
    shutil.rmtree(partial / DATA)
    return page


# The page reads episodes only when one is opened; they are cut into pieces of about a megabyte.
SHARD = 1_000_000  # bytes
_ESCAPED = {b"<": rb"\u003c", "\u2028".encode(): rb"\u2028", "\u2029".encode(): rb"\u2029"}
_UNSAFE = re.compile(b"|".join(_ESCAPED))


def script_json(value: Any) -> bytes:
    """Encode JSON for a script element: nothing in it ends that element or begins a comment."""
    return _UNSAFE.sub(lambda match: _ESCAPED[match[0]], encoded(value).rstrip())


class Shards:
    """Scripts `0.js`, `1.js` ... in a folder, each of which gives the page a list of episodes."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._parts, self._size = folder, list[bytes](), 0
        self.count = self.bytes = 0

    def add(self, detail: Any) -> tuple[int, int]:
        """Add an episode's details, and return which shard they are in and their place there."""
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
        """Return the JSON of each shard."""
        texts = ((self._folder / f"{number}.js").read_text("utf-8") for number in range(self.count))
        return [text[text.index("[") : text.rindex("]") + 1] for text in texts]


def _text(folder: str, name: str) -> str:
    return (files("slime_swe.launch") / "report" / folder / name).read_text("utf-8")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
