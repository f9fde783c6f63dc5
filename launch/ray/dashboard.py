"""What a cluster's dashboard tells: that it answers, and which nodes it has."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

from launch.ray.errors import RayError

ANSWER_SECONDS = 5.0
POLL_SECONDS = 0.5
_OVERRIDING = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")  # Ray's clients prefer these to the address that they are given


@contextmanager
def reaching(dashboard: str) -> Iterator[None]:
    """Have Ray's clients talk to this address, whatever cluster or proxy the environment names."""
    before = dict(os.environ)
    host = urlsplit(dashboard).hostname or ""
    for name in _OVERRIDING:
        os.environ.pop(name, None)
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join(filter(None, (before.get(name), host)))
    try:
        yield
    finally:
        for name in (*_OVERRIDING, "no_proxy", "NO_PROXY"):
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]


def ray_version(dashboard: str) -> str | None:
    """The version that the cluster runs, or None where nothing answers as Ray does."""
    try:
        with build_opener(ProxyHandler({})).open(f"{dashboard}/api/version", timeout=ANSWER_SECONDS) as answer:
            return str(json.load(answer)["ray_version"])
    except (URLError, HTTPException, OSError, ValueError, KeyError, TypeError):
        return None


def gpus_by_node(dashboard: str) -> list[int]:
    """One entry for each living node: how many GPUs it has. Raises `RayError` where the cluster doesn't say."""
    from ray.util.state import list_nodes
    from ray.util.state.exception import RayStateApiException

    try:
        nodes = list_nodes(address=dashboard, filters=[("state", "=", "ALIVE")], raise_on_missing_output=False)
    except (RayStateApiException, OSError) as error:
        raise RayError(f"the Ray cluster at {dashboard} does not list its nodes: {error}") from error
    return [int((node.resources_total or {}).get("GPU", 0)) for node in nodes]


def wait_until(ready: Callable[[], bool], seconds: float) -> bool:
    """Whether it became true within so many seconds."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
