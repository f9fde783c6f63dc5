"""Talking to a Ray cluster: whether its dashboard answers, which nodes it has, and the token that it asks for.

Ray before 2.52 knows of no token and leaves all of this unread. A cluster started here has a token of its own, since
whoever reaches a Ray may run any command on its machines. With a cluster that was there already, the token is the
user's: where Ray's own clients look for it, it is looked for here.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from slime_swe.errors import InfrastructureError, UserError

ANSWER_SECONDS = 5.0
LIST_SECONDS = 120.0
PATIENCE_SECONDS = 30.0  # with one request for that list
POLL_SECONDS = 0.5
MODE, TOKEN, PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
_OVERRIDING = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")  # Ray's clients prefer these to the address that they are given
_NO_PROXY = ("no_proxy", "NO_PROXY")
_REFUSALS = (401, 403)
_MOST_NODES = 10_000  # that Ray lists at once


@contextmanager
def reaching(dashboard: str, token: str = "") -> Iterator[None]:
    """Have Ray's clients talk to this address, whatever cluster or proxy the environment names.

    `token` is that of a cluster of our own; the user's is used without one.
    """
    before = dict(os.environ)
    host = urlsplit(dashboard).hostname or ""
    for name in _OVERRIDING:
        os.environ.pop(name, None)
    for name in _NO_PROXY:
        os.environ[name] = ",".join(filter(None, (before.get(name), host)))
    if token:
        os.environ[TOKEN] = token
    try:
        yield
    finally:
        for name in (*_OVERRIDING, *_NO_PROXY, TOKEN):
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]


def ray_version(dashboard: str) -> str | None:
    """The version that the cluster runs, or None where nothing answers as Ray does.

    Raises `UserError` where the cluster asks for a token.
    """
    try:
        return str(_get(f"{dashboard}/api/version", ANSWER_SECONDS)["ray_version"])
    except HTTPError as error:
        if error.code not in _REFUSALS:
            return None
    except (URLError, HTTPException, OSError, ValueError, KeyError, TypeError):
        return None
    raise UserError(
        f"the Ray cluster at {dashboard} refuses this machine's token, or asks for one that isn't here: set {TOKEN} "
        f"to the token, or {PATH} to the file that holds it"
    )


def gpus_by_node(dashboard: str) -> list[int]:
    """One entry for each living node: how many GPUs it has. Raises `InfrastructureError` where the cluster doesn't say.

    A cluster that has just started answers with its version before it can list its nodes, so this waits for the list.
    """
    deadline = time.monotonic() + LIST_SECONDS
    while True:
        try:
            return _listed(dashboard)
        except (URLError, HTTPException, OSError, ValueError, KeyError, TypeError) as error:
            if time.monotonic() > deadline:
                raise InfrastructureError(f"the Ray cluster at {dashboard} does not list its nodes: {error}") from error
        time.sleep(POLL_SECONDS)


def _listed(dashboard: str) -> list[int]:
    asked = {"limit": _MOST_NODES, "timeout": int(PATIENCE_SECONDS), "detail": False}
    answer = _get(f"{dashboard}/api/v0/nodes?{urlencode(asked)}", PATIENCE_SECONDS)
    nodes = [node for node in answer["data"]["result"]["result"] if node["state"] == "ALIVE"]
    return [int((node["resources_total"] or {}).get("GPU", 0)) for node in nodes]


def _get(url: str, seconds: float) -> Any:
    with build_opener(ProxyHandler({})).open(Request(url, headers=headers()), timeout=seconds) as answer:
        return json.load(answer)


def wait_until(ready: Callable[[], bool], seconds: float) -> bool:
    """Whether it became true within so many seconds."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def new_token() -> str:
    return secrets.token_hex(32)


def asking_for(token: str) -> dict[str, str]:
    """The environment in which a Ray node asks for this token, and its jobs have it."""
    return {MODE: "token", TOKEN: token}


def headers() -> dict[str, str]:
    """Of every request to a cluster; none where the user has no token."""
    token = os.environ.get(TOKEN) or _saved()
    return {"Authorization": f"Bearer {token}"} if token else {}


def _saved() -> str:
    path = Path(os.environ.get(PATH) or Path.home() / ".ray" / "auth_token")
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""
