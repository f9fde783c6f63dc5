"""The Docker SDK, imported when first needed, and its errors as ours."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from slime_swe.errors import UserError
from slime_swe.sandbox.base import SandboxError
from slime_swe.sandbox.cache import process_identity

TIMEOUT_SECONDS = 120
NOT_FOUND = 404
OWNER_LABEL = "slime-swe.owner"
_CONNECTIONS = 64
_FACTS = ("KernelVersion", "SecurityOptions", "DefaultRuntime", "Driver", "CgroupDriver", "CgroupVersion")
_P = ParamSpec("_P")
_T = TypeVar("_T")


class DockerError(SandboxError):
    """The daemon refused, failed or can't be reached. `status` is that of its HTTP answer, if there was one."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


def not_found() -> type[Exception]:
    """Return the class of the error that the SDK raises where there is no such container, image or path."""
    kind: type[Exception] = importlib.import_module("docker.errors").NotFound
    return kind


def docker_error() -> type[Exception]:
    """Return the class of the error that the SDK raises where the daemon refuses."""
    kind: type[Exception] = importlib.import_module("docker.errors").APIError
    return kind


def labels() -> dict[str, str]:
    """Return the labels of every container of ours, so that a later run knows whose it is."""
    return {OWNER_LABEL: process_identity()}


@cache
def connect() -> Any:
    """Return the `docker.APIClient` of `DOCKER_HOST` and its like. Raises `UserError` without the SDK, `DockerError`
    without a daemon.
    """
    try:
        docker: Any = importlib.import_module("docker")  # by a statement, type checkers would find our folder docker/
    except ImportError as error:
        raise UserError(
            "docker sandboxes need the Docker SDK: pip install 'slime-swe[docker]'; and a Docker daemon. Without: "
            "rollout.sandbox=overlay or local"
        ) from error
    with errors("no Docker daemon answers (sudo systemctl start docker, and be in the group docker)"):
        client = docker.APIClient(
            **docker.utils.kwargs_from_env(), version="auto", timeout=TIMEOUT_SECONDS, num_pools=_CONNECTIONS
        )
        client.ping()
    return client


@contextmanager
def errors(what: str) -> Iterator[None]:
    """Turn what the SDK raises into `DockerError`."""
    docker: Any = importlib.import_module("docker.errors")
    requests: Any = importlib.import_module("requests")
    try:
        yield
    except docker.APIError as error:
        raise DockerError(f"{what}: {error.explanation or error}", error.status_code) from error
    except (docker.DockerException, requests.RequestException, ConnectionError, TimeoutError) as error:
        raise DockerError(f"{what}: {error}") from error


async def call(what: str, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Make a call of the SDK, which blocks, in a thread. Raises `DockerError`."""
    with errors(what):
        return await asyncio.get_running_loop().run_in_executor(_threads(), partial(function, *args, **kwargs))


@cache
def _threads() -> ThreadPoolExecutor:
    """Return threads for calls: in the loop's own few, a signal to a container would wait for others to start."""
    return ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="docker")


def import_tar(path: Path, name: str) -> None:
    """Import a tar file as an image, as `docker import` does. Raises `DockerError`."""
    repository, _, tag = name.rpartition(":") if ":" in name.rpartition("/")[2] else (name, "", "latest")
    with errors(f"docker could not import {name}"):
        connect().import_image_from_file(str(path), repository=repository, tag=tag)


def find(name: str) -> str | None:
    """Return the id of an image; None where it is not here. Raises `DockerError`, `UserError`."""
    client = connect()
    try:
        with errors(f"docker does not find the image {name}"):
            return str(client.inspect_image(name)["Id"])
    except DockerError as error:
        if error.status != NOT_FOUND:
            raise
        return None


def answers() -> bool:
    """Say whether there is a daemon, and the SDK to ask it."""
    try:
        connect()
    except (UserError, DockerError):
        return False
    return True


def identify(name: str) -> str:
    """Return the id of an image, which is pulled where it isn't here. Raises `DockerError`, `UserError`."""
    if found := find(name):
        return found
    client = connect()
    with errors(f"the image {name} is not here, and can't be pulled"):
        client.pull(name, tag=None if "@" in name or ":" in name.rpartition("/")[2] else "latest")
        return str(client.inspect_image(name)["Id"])


def environment(identity: str) -> dict[str, str]:
    """Return the environment variables that an image asks for. Raises `DockerError`."""
    with errors(f"docker does not find the image {identity}"):
        variables = connect().inspect_image(identity)["Config"].get("Env") or []
    return dict(variable.split("=", 1) for variable in variables)


def confinement(image: str) -> Iterator[str]:
    """Yield the daemon's facts, as far as it confines, and the id of an image that is named. Never raises."""
    try:
        client = connect()
        with errors("asking for Docker's version"):
            version, info = client.version(), client.info()
        for part in version.get("Components") or [version]:
            yield f"{part.get('Name')} {part.get('Version')} {part.get('Details', {}).get('GitCommit')}"
        yield from (f"{fact} {info.get(fact)}" for fact in _FACTS)
        yield find(image) or "an image that is not here" if image else ""
    except (UserError, DockerError) as error:
        yield f"no docker: {type(error).__name__}"


def bind(folder: str, place: str) -> Any:
    """Return a mount of a folder of the daemon's machine, to be seen at `place` and not to be written."""
    return importlib.import_module("docker.types").Mount(place, folder, type="bind", read_only=True)


@contextmanager
def created(identity: str) -> Iterator[str]:
    """Create a container that is never started, to look into, and yield its id. Raises what the SDK raises."""
    client = connect()
    made = client.create_container(
        identity, command=["true"], network_disabled=True, use_config_proxy=False, labels=labels()
    )["Id"]
    try:
        yield made
    finally:
        client.remove_container(made, force=True, v=True)


def export(identity: str) -> Iterator[bytes]:
    """Yield the files of an image, as a tar file. Raises `DockerError`."""
    with errors(f"docker could not export {identity}"), created(identity) as container:
        yield from connect().export(container)
