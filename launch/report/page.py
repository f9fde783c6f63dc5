"""The page: vendored scripts, style, and the document, in one file, or with its episodes in a folder beside it.

Episodes are hostile text. They are JSON data, of which the page makes text nodes alone, and a content security policy
allows no script but those whose hashes it names, and no `eval`. A page with a folder reads its episodes as scripts from
there. Its policy allows files from where the page is, which opened from a disk are all files of that disk.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson
from jinja2 import Environment, StrictUndefined

from slime_swe.launch.report.shards import Shards, script_json

ONE_FILE = 20_000_000  # bytes of a page with all of its data
# Of our own; each uses those before it.
_SCRIPTS = ("store.js", "parts.js", "run.js", "list.js", "episode.js", "app.js")
DATA = "data"  # the folder of the shards beside `index.html`


def vendored() -> list[dict[str, Any]]:
    """The manifest: each script that is not ours, where it is from, its licence and SHA-256."""
    return list(orjson.loads(_text("vendor", "manifest.json")))


def write_page(partial: Path, title: str, document: Mapping[str, Any], shards: Shards) -> Path:
    """Write it in the folder that has the shards in `DATA`. What is to be kept: a file, or the whole folder."""
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


def _text(folder: str, name: str) -> str:
    return (files("slime_swe.launch") / "report" / folder / name).read_text("utf-8")


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
