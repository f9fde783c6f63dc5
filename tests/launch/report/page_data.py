"""What a report's page holds, read from its file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any


def document(page: Path) -> dict[str, Any]:
    return json.loads(re.search(r'<script type="application/json" id="document">(.*?)</script>', page.read_text())[1])


def details(page: Path) -> list[dict[str, Any]]:
    """Of all episodes, in the order of the list."""
    if (page.parent / "data").is_dir():
        files = sorted((page.parent / "data").iterdir(), key=lambda path: int(path.stem))
        texts = [text[text.index("[") : text.rindex("]") + 1] for text in (file.read_text() for file in files)]
    else:
        texts = re.findall(r'<script type="application/json" id="shard-\d+">(.*?)</script>', page.read_text())
    columns = document(page)["episodes"]
    shards = [json.loads(text) for text in texts]
    return [shards[shard][place] for shard, place in zip(columns["shard"], columns["place"], strict=True)]


def column(page: Path, name: str) -> list[Any]:
    found = document(page)["episodes"][name]
    return [found["texts"][at] for at in found["of"]] if isinstance(found, dict) else found


def chart(page: Path, title: str) -> list[dict[str, Any]]:
    """Its data."""
    return next(c for c in document(page)["charts"] if c["title"] == title)["spec"]["data"]["values"]


def plain(pairs: list[list[str]]) -> str:
    return "".join(text for _, text in pairs)


def token_text(detail: dict[str, Any]) -> str:
    """What the tokens say together, as they are joined on the page."""
    return "".join(text for sample in detail["tokens"] or () for run in sample for text in run["texts"])
