"""Talking to a Ray cluster: whether its dashboard answers, which nodes it has, and the token that it asks for.

Ray before 2.52 knows of no token and leaves all of this unread. A cluster started here has a token of its own, since
whoever reaches a Ray may run any command on its machines. With a cluster that was there already, the token is the
user's: where Ray's own clients look for it, it is looked for here.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from slime_swe.errors import InfrastructureError, UserError

LIST_SECONDS = 120.0
POLL_SECONDS = 0.5
MODE, TOKEN, PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
OVERRIDING = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")  # Ray's clients prefer these to the address that they are given
_NODES = "api/v0/nodes?limit=10000&timeout=30&detail=False"
_NO_ANSWER = (OSError, HTTPException, ValueError, KeyError, TypeError)


@contextmanager
def reaching(dashboard: str, token: str = "") -> Iterator[None]:
    """Have Ray's clients talk to this address, whatever cluster or proxy the environment names.

    `token` is that of a cluster of our own; the user's is used without one.
    """
    host = urlsplit(dashboard).hostname
    direct = {name: ",".join(filter(None, (os.environ.get(name), host))) for name in ("no_proxy", "NO_PROXY")}
    with mock.patch.dict(os.environ, direct | ({TOKEN: token} if token else {})):
        for name in OVERRIDING:
            os.environ.pop(name, None)
        yield


def ray_version(dashboard: str) -> str | None:
    """Ask for the version that the cluster runs; None where nothing answers as Ray does.

    Raises `UserError` where the cluster asks for a token.
    """
    try:
        return str(_get(f"{dashboard}/api/version", 5.0)["ray_version"])
    except _NO_ANSWER as error:
        if isinstance(error, HTTPError) and error.code in (401, 403):
            raise UserError(
                f"the Ray cluster at {dashboard} refuses this machine's token, or asks for one that isn't here: set "
                f"{TOKEN} to the token, or {PATH} to the file that holds it"
            ) from error
        return None


def gpus_by_node(dashboard: str) -> list[int]:
    """Count the GPUs of each living node.

    Raises `InfrastructureError` where the cluster doesn't say.
    """
    return [int((node["resources_total"] or {}).get("GPU", 0)) for node in _nodes(dashboard)]


def hosts(dashboard: str) -> list[str]:
    """List the living nodes' addresses and names. Raises `InfrastructureError` where the cluster doesn't say."""
    found = (node.get(key) or "" for node in _nodes(dashboard) for key in ("node_ip", "node_name"))
    return [*dict.fromkeys(host for host in found if host)]


def _nodes(dashboard: str) -> list[dict[str, Any]]:
    """List the living nodes. Raises `InfrastructureError` where the cluster doesn't say.

    A cluster that has just started answers with its version before it can list its nodes, so this waits for the list.
    """
    deadline = time.monotonic() + LIST_SECONDS
    while True:
        try:
            nodes = _get(f"{dashboard}/{_NODES}", 30.0)["data"]["result"]["result"]
            return [node for node in nodes if node["state"] == "ALIVE"]
        except _NO_ANSWER as error:
            if time.monotonic() > deadline:
                raise InfrastructureError(f"the Ray cluster at {dashboard} does not list its nodes: {error}") from error
        time.sleep(POLL_SECONDS)


def _get(url: str, seconds: float) -> Any:
    with build_opener(ProxyHandler({})).open(Request(url, headers=headers()), timeout=seconds) as answer:
        return json.load(answer)


def wait_until(ready: Callable[[], bool], seconds: float) -> bool:
    """Wait until `ready` returns true, for so many seconds at most; return whether it did."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def headers() -> dict[str, str]:
    """Return the headers of every request to a cluster; none where the user has no token."""
    saved = Path(os.environ.get(PATH) or Path.home() / ".ray" / "auth_token")
    token = os.environ.get(TOKEN) or (saved.read_text(encoding="utf-8").strip() if os.access(saved, os.R_OK) else "")
    return {"Authorization": f"Bearer {token}"} if token else {}
