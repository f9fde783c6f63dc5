"""What a model at an OpenAI-compatible endpoint says of a function's source: the description of a specification task
whose docstring says too little."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec

from slime_swe import files
from slime_swe.errors import UserError
from slime_swe.rollout.endpoint.client import EndpointClient, require_endpoint
from slime_swe.rollout.endpoint.replies import Spending
from slime_swe.rollout.replies import EngineError

MOST_TOKENS = 1024
MOST_CHARACTERS = 4000
_ASKED = """\
Describe what this function or class does, so that someone who does not see it can write it: what it takes, what it \
returns, what it raises, and every case that differs from the others. Three to eight sentences, no code.

```python
{source}
```
"""


def describer(url: str, model: str, spending: Path, key: str = "") -> Callable[[str], str]:
    """Return a function from a source text to its description, of `MOST_CHARACTERS` at most.

    url: the API's base. spending: the file to which each call's tokens are added. It is called outside of event loops,
    and raises `EngineError` where the endpoint does not answer or says nothing. Raises `UserError` for another address.
    """
    base = require_endpoint(url)

    def describe(source: str) -> str:
        return asyncio.run(_described(EndpointClient(base, model, key=key, spending=Spending(spending)), source))

    return describe


class _Said(msgspec.Struct):
    model: str
    source: str
    text: str


class KeptDescriptions:
    """A model's descriptions in a file, a line each, so that none is paid for twice. asked: how many the model was
    asked for. known: how many the file had."""

    def __init__(self, path: Path, model: str, describe: Callable[[str], str]) -> None:
        """Read the file. Raises `UserError` where the file holds something else or can't be read."""
        self._path, self._model, self._ask = path, model, describe
        self.asked = self.known = 0
        kept = files.read_given(path, "the descriptions") if path.exists() else b""
        whole = kept[: kept.rfind(b"\n") + 1]
        try:
            lines = msgspec.json.Decoder(_Said).decode_lines(whole)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UserError(f"{path} holds no descriptions ({error}): remove it, or write to another file") from error
        if whole != kept:  # a killed run left a part of a line
            with files.writing(path):
                files.replace_file(path, whole)
        self._said = {line.source: line.text for line in lines if line.model == model}

    def describe(self, source: str) -> str:
        """Return the description of a source text. Raises what the model's `describe` does, and `FileError`."""
        if source in self._said:
            self.known += 1
            return self._said[source]
        text = self._ask(source)
        with files.writing(self._path):
            files.append(self._path, msgspec.json.encode(_Said(self._model, source, text)) + b"\n")
        self._said[source] = text
        self.asked += 1
        return text


async def _described(client: EndpointClient, source: str) -> str:
    asked = [{"role": "user", "content": _ASKED.format(source=source)}]
    async with client:
        reply = await client.complete(asked, [], {"max_new_tokens": MOST_TOKENS, "temperature": 0.0})
    if not reply.text.strip():
        raise EngineError(f"{client.url}: the model {client.model} describes a function by nothing")
    return reply.text.strip()[:MOST_CHARACTERS]
