"""The token that a Ray cluster asks for. Ray before 2.52 knows of none, and leaves all of this unread.

A cluster started here has one of its own, since whoever reaches a Ray may run any command on its machines. With a
cluster that was there already, the token is the person's: where Ray's own clients look for it, it is looked for here.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

MODE, TOKEN, PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"


def new_token() -> str:
    return secrets.token_hex(32)


def asking_for(token: str) -> dict[str, str]:
    """The environment in which a Ray node asks for this token, and its jobs have it."""
    return {MODE: "token", TOKEN: token}


def headers() -> dict[str, str]:
    """Of every request to a cluster; none where the person has no token."""
    token = os.environ.get(TOKEN) or _saved()
    return {"Authorization": f"Bearer {token}"} if token else {}


def _saved() -> str:
    path = Path(os.environ.get(PATH) or Path.home() / ".ray" / "auth_token")
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
