"""Secrets of the environment are kept out of what is written: records, exports, reports.

What counts as a secret is the value of an environment variable of this process whose name says so: one of the words
between its underscores ends in KEY, TOKEN, SECRET, PASSWORD or the like.

Not covered: a secret that this process has not in its environment; one of fewer than 8 characters, since replacing
those would hit ordinary text; a part of one, one that is encoded (base64, in a URL), and one that was cut by a limit on
output; one of several lines where each begins with other text than a diff's sign, such as its number; token ids, which
training needs as they are: whoever has the tokenizer can decode them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

_SECRET = re.compile(
    r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|CREDENTIAL)S?(?:_|$)|(?:^|_)(?:PAT|PWD|PASS|AUTH)$",
    re.IGNORECASE,
)
_NO_SECRETS = frozenset({"PWD", "OLDPWD"})
LEAST = 8  # characters
_DIFF = ("", "+", "-", " ")  # what a line begins with

Secrets = Sequence[tuple[str, str]]  # what to replace by what, longest first
T = TypeVar("T")


def secrets_of(environment: Mapping[str, str]) -> Secrets:
    """Find the secrets among these variables, each with a replacement that names its variable.

    A secret of several lines also has the forms that it takes in a diff, where it is added, removed or context. One
    with quotes or line ends also has those that it takes inside JSON text, as tools' arguments are.
    """
    found: dict[str, str] = {}
    for name, value in environment.items():
        secret = value.strip()
        if len(secret) >= LEAST and name not in _NO_SECRETS and _SECRET.search(name):
            for text in (secret.replace("\n", f"\n{sign}") for sign in _DIFF):
                forms = (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
                found |= dict.fromkeys(forms, f"[{name} redacted]")
    return sorted(found.items(), key=lambda pair: (-len(pair[0]), pair[0]))


def redacted(value: T, secrets: Secrets) -> T:
    """Return the value, of JSON's types, with every secret replaced in its texts, those of keys included."""
    return _redacted(value, secrets) if secrets else value


def _redacted(value: Any, secrets: Secrets) -> Any:
    if isinstance(value, str):
        for secret, replacement in secrets:
            if secret in value:
                value = value.replace(secret, replacement)
        return value
    if isinstance(value, Mapping):
        return {_redacted(key, secrets): _redacted(inner, secrets) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_redacted(inner, secrets) for inner in value]
    return value
