"""The `remote` backend: each sandbox a deployment of SWE-ReX, or a folder on a SWE-ReX server that is there already.

SWE-ReX brings up the machine, uploads and runs programs; a request of ours is one run of `guest.remote` by its
`execute`. Its deployments block while they start, so each starts and stops in a thread, with an event loop of its own.
Its log is off unless SWE_REX_LOG_STREAM_LEVEL says otherwise: it would show the servers' tokens.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import errno
import importlib
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from slime_swe.data_sources.task import Image
from slime_swe.errors import UserError
from slime_swe.patches import OVERSIZED
from slime_swe.rollout.sandbox import common
from slime_swe.rollout.sandbox.base import Backend, ExecResult, SandboxError, SandboxSpec
from slime_swe.rollout.sandbox.guest import wire
from slime_swe.rollout.sandbox.image.container import HISTORY

VERSION = "1.4.0"
TOKEN = "SWEREX_AUTH_TOKEN"
KINDS = ("modal", "daytona", "fargate", "docker")
START_SECONDS = 900.0  # for a deployment, its image pulled or built
ALIVE_SECONDS = 30.0  # for a server that is there already to say so
PREPARE_SECONDS = 300.0  # for the image's history, and for its setup
FILE_SECONDS = 60.0
ANSWER_SECONDS = 60.0  # for one request of SWE-ReX, which waits for no command
GRACE_SECONDS = 30.0  # beyond its limit, for a command to be killed by what runs it
KILLED = 137
_MOST_STARTING = 64
_WAIT_SECONDS = 0.1  # in the sandbox, for an answer: the server answers nobody else meanwhile
_FIRST_WAIT_SECONDS = 0.3  # where the request has just begun: most have ended by then
_PAUSES = (0.02, 1.0)  # between two looks at a command, the more the longer it has run
_ATTEMPTS = 3
_ARGUMENT_BYTES = 90_000  # the kernel takes 128 KiB
_GUEST = Path(__file__).with_name("guest")
_RUN = "import sys; sys.path.insert(0, sys.argv[1]); from slime_swe_guest.remote import main; main()"
_FORGED = (KeyError, TypeError, ValueError, AttributeError, RecursionError)  # what a command may have written
_EXTRAS = ("modal", "daytona", "fargate")  # of swe-rex
_DEFAULTS: dict[str, dict[str, Any]] = {kind: {"container_timeout": 3600.0} for kind in ("daytona", "fargate")}


class RemoteBackend(Backend):
    """`where`: one of `KINDS`, which `:IMAGE` may follow, or the URL of a server.

    `options` are fields of SWE-ReX's configuration of that kind, such as `deployment_timeout=1800` of Modal's. `deploy`
    in place of `where` makes a `swerex.deployment.abstract.AbstractDeployment` of your own for an image's name.
    SWE-ReX has no layers and no ports, and limits each process, not the sandbox as a whole.
    """

    takes_images = True
    runs_here = False

    def __init__(self, where: str = "", *, deploy: Callable[[str], Any] | None = None, **options: Any) -> None:
        self._kind, _, self._image = where.partition(":")
        self._url = where if where.startswith(("http://", "https://")) else ""
        if not self._url and self._kind not in KINDS and deploy is None:
            raise UserError(
                f"sandbox remote:{where}: no such deployment; remote:KIND or remote:KIND:IMAGE with KIND one of "
                f"{', '.join(KINDS)}; or remote:http(s)://HOST:PORT, a SWE-ReX server's"
            )
        self._deploy = deploy
        self._options = options
        self._token = ""
        self._threads: ThreadPoolExecutor | None = None
        self._running: set[Deployed] = set()

    async def start(self) -> None:
        """See that packages and keys are there. Raises `UserError`."""
        if self._threads is not None:
            return
        if self._url:
            self._token = server_token(self._url)
        elif self._deploy is None:
            await asyncio.to_thread(check, self._kind)
            configuration(self._kind, self._image, self._options)
        self._threads = ThreadPoolExecutor(_MOST_STARTING, thread_name_prefix="remote-sandbox")

    def open(self, spec: SandboxSpec) -> RemoteSandbox:
        """A sandbox to be entered. Raises `UserError` where a server is asked for an image."""
        if self._threads is None:
            raise SandboxError("the sandbox backend has not been started")
        if self._url:
            if spec.image is not None:
                raise UserError(
                    f"the server at {self._url} runs its own system, and the task needs the image {spec.image.name}: "
                    f"rollout.sandbox=remote:KIND, with KIND one of {', '.join(KINDS)}"
                )
            return RemoteSandbox(Shared(self._url, self._token), spec)
        image = spec.image or Image(self._image)
        deployed = Deployed(lambda: self._make(image.name), self._threads, self._running)
        return RemoteSandbox(deployed, dataclasses.replace(spec, image=image))

    async def close(self) -> None:
        """Stop every deployment. Raises `SandboxError` where one could not be stopped."""
        threads, self._threads = self._threads, None
        stopped = await asyncio.gather(*(deployed.stop() for deployed in list(self._running)), return_exceptions=True)
        if threads is not None:
            threads.shutdown(wait=False)
        for error in stopped:
            if isinstance(error, BaseException):
                raise error

    def _make(self, image: str) -> Any:
        """A deployment. Its configuration, which may hold keys, is made anew for each and kept by none of ours."""
        if self._deploy is not None:
            return self._deploy(image)
        return configuration(self._kind, image, self._options).get_deployment()


class Shared:
    """A server that someone else has started."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._token = token

    async def start(self) -> Any:
        """The runtime of SWE-ReX. Raises `SandboxError`."""
        remote: Any = importlib.import_module("swerex.runtime.remote")
        runtime = remote.RemoteRuntime(host=self._url.rstrip("/"), auth_token=self._token, timeout=ALIVE_SECONDS)
        alive = await runtime.is_alive()
        if not alive:
            raise SandboxError(f"no SWE-ReX server answers at {self._url}: {alive.message.strip()[-500:]}")
        return runtime

    async def stop(self) -> None:
        """It is not ours to stop."""


class Deployed:
    """A deployment of SWE-ReX, made by `make`; it starts and stops in one of `threads`, in `running` meanwhile."""

    def __init__(self, make: Callable[[], Any], threads: ThreadPoolExecutor, running: set[Deployed]) -> None:
        self._make = make
        self._threads = threads
        self._running = running
        self._deployment: Any = None
        self._starting: asyncio.Future[None] | None = None
        self._stopping: asyncio.Future[None] | None = None

    async def start(self) -> Any:
        """The runtime of SWE-ReX. Raises `SandboxError`."""
        self._running.add(self)
        self._starting = self._in_thread(self._start)
        if not (await asyncio.wait({self._starting}, timeout=START_SECONDS))[0]:
            raise SandboxError(f"the remote sandbox's deployment did not start within {START_SECONDS:.0f} s")
        await self._starting
        return self._deployment.runtime

    async def stop(self) -> None:
        """May be called at any time. What is starting can't be interrupted, and is stopped when that is over."""
        if self._starting is not None and self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop_after(self._starting))
        if self._stopping is not None:
            await asyncio.shield(self._stopping)

    async def _stop_after(self, starting: asyncio.Future[None]) -> None:
        await asyncio.wait({starting}, timeout=START_SECONDS)
        _retrieve(starting)
        try:
            if self._deployment is not None:
                await self._in_thread(self._stop)
        finally:
            self._running.discard(self)

    async def _start(self) -> None:
        self._deployment = self._make()
        await self._deployment.start()

    async def _stop(self) -> None:
        """What SWE-ReX does, and what it leaves undone: its `stop` gives up where the server does not answer, and ends
        a sandbox of Modal's only where that has ended already."""
        runtime = getattr(self._deployment, "_runtime", None)
        if runtime is not None:
            runtime.close = _close_no_sessions
        sandbox: Any = getattr(self._deployment, "_sandbox", None)
        if type(sandbox).__module__.startswith("modal."):
            await sandbox.terminate.aio()
        await self._deployment.stop()

    def _in_thread(self, step: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Future[None]:
        def run() -> None:
            try:
                asyncio.run(step())
            except UserError:
                raise
            except Exception as error:  # each cloud's library has errors of its own
                problem = f"{type(error).__name__}: {error}"
                raise SandboxError(f"the remote sandbox's deployment failed: {problem}") from error

        return asyncio.get_running_loop().run_in_executor(self._threads, run)


async def _close_no_sessions() -> None:
    """In place of `RemoteRuntime.close`, which asks the server to end shells that we have none of."""


def _retrieve(ended: asyncio.Future[None]) -> None:
    """What it raised is raised where it is awaited; that nobody does is no error."""
    if ended.done() and not ended.cancelled():
        ended.exception()


class Killed(Exception):
    """What ran the request was killed, or can't be run any more: the message says so to the agent."""


class RemoteSandbox(common.BaseSandbox):
    """One sandbox; entering it starts its deployment. A cancelled call kills its command and leaves it usable.

    A file operation that the agent's own doing makes fail raises the `OSError` that it met inside.
    """

    def __init__(self, machine: Shared | Deployed, spec: SandboxSpec) -> None:
        self._machine = machine
        self._spec = spec
        self._limits = dataclasses.asdict(spec.limits)
        self._state = f"/tmp/slime-swe-{secrets.token_hex(8)}"
        self._folder = spec.image.folder if spec.image else f"{self._state}/testbed"
        self._runtime: Any = None
        self._python = ""
        self._number = 0
        self._stopping: asyncio.Task[None] | None = None  # a request whose call was cancelled
        self._lock = asyncio.Lock()
        self.contained = False  # whether commands have namespaces of their own; known once it is open

    async def _leave(self) -> None:
        runtime, self._runtime = self._runtime, None
        try:
            if runtime is not None and isinstance(self._machine, Shared):
                with contextlib.suppress(SandboxError, Killed):
                    if self._lock.locked():
                        await self._cancel(runtime)
                    async with self._lock:
                        await self._settled(runtime)
                    await self._execute(runtime, ["rm", "-rf", self._state])
        finally:
            await self._machine.stop()

    async def exec(self, command: str, *, timeout: float | None = None) -> ExecResult:
        """`timeout` in seconds, the limits' `wall_seconds` where it is None."""
        seconds = self._spec.limits.wall_seconds if timeout is None else timeout
        try:
            answer, blob = await self._call({"op": "exec", "command": command, "seconds": seconds}, seconds=seconds)
        except Killed as error:
            return ExecResult(KILLED, f"[{error}]\n", 0.0)
        try:
            head, tail = blob[: answer["head"]], blob[answer["head"] :]
            return common.result(answer["exit_code"], answer["seconds"], head, tail, answer["missing"])
        except _FORGED as error:
            return ExecResult(KILLED, f"[the answer was forged: {error}]\n", 0.0)

    async def read_file(self, path: str) -> bytes:
        return (await self._file_call({"op": "read", "path": path}))[1]

    async def write_file(self, path: str, content: bytes) -> None:
        index, blob = wire.pack_files([(path, content)])
        await self._file_call({"op": "write", "files": index}, blob)

    async def diff(self) -> str:
        try:
            answer, blob = await self._file_call({"op": "changes"})
            size = sum(size for _, size in answer["files"])
            after, before = (
                wire.unpack_files(answer["files"], blob[:size]),
                wire.unpack_files(answer["before"], blob[size:]),
            )
            return common.patch(after, answer["oversized"], before, before.get)
        except (OSError, *_FORGED):  # too many names, or nothing can list them: a patch that changes nothing
            return OVERSIZED

    async def _enter(self) -> None:
        try:
            await self._prepare()
        except Killed as error:
            raise SandboxError(f"the remote sandbox did not start: {error}") from error

    async def _prepare(self) -> None:
        runtime = self._runtime = await self._machine.start()
        self._python = (await self._execute(runtime, ["sh", "-c", "readlink /proc/$PPID/exe"])).strip()
        await self._request(runtime, "upload", "UploadRequest", source_path=str(_GUEST),
                            target_path=f"{self._state}/slime_swe_guest")  # fmt: skip
        index, blob = wire.pack_files(self._spec.files.items())
        image = self._spec.image
        request = {
            "op": "prepare",
            "history": HISTORY.read_text(encoding="utf-8") if image else "",
            "setup": image.setup if image else "",
            "files": index,
            "whole": image is not None,
            "seconds": PREPARE_SECONDS,
        }
        answer, _ = await self._call(request, blob, seconds=2 * PREPARE_SECONDS)
        failed = answer.get("failed") or ("errno" in answer and f"did not start: {answer['error']}: {answer['path']}")
        if failed:
            of = f" of {image.name}" if image else ""
            raise SandboxError(f"the remote sandbox{of} {failed}")
        self.contained = answer["contained"]

    async def _file_call(self, request: dict[str, Any], blob: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """Raises `OSError`, `SandboxError`."""
        try:
            answer, data = await self._call(request, blob, seconds=FILE_SECONDS)
        except Killed as error:
            raise OSError(errno.EIO, "what ran in the sandbox was killed", request.get("path", "")) from error
        if "errno" in answer:
            raise OSError(answer["errno"] or errno.EIO, answer["error"], answer["path"])
        return answer, data

    async def _call(
        self, request: dict[str, Any], blob: bytes = b"", *, seconds: float
    ) -> tuple[dict[str, Any], bytes]:
        """The answer to one request at a time. Raises `Killed`, `SandboxError`."""
        async with self._lock:
            runtime = self._runtime
            if runtime is None:
                raise SandboxError("the sandbox is not open")
            await self._settled(runtime)
            self._number += 1
            try:
                given = {**request, "folder": self._folder, "limits": self._limits}
                answer, data = await self._send(runtime, "run", given, blob)
                answer, data = await self._finished(runtime, answer, data, seconds + GRACE_SECONDS)
            except asyncio.CancelledError:
                self._stopping = asyncio.create_task(self._cancel(runtime))
                self._stopping.add_done_callback(_retrieve)
                raise
        if answer.get("died"):
            raise Killed("what ran the command was killed")
        return answer, data

    async def _settled(self, runtime: Any) -> None:
        """Wait until a request whose call was cancelled has ended."""
        if self._stopping is not None:
            await asyncio.shield(self._stopping)
            self._stopping = None

    async def _cancel(self, runtime: Any) -> None:
        answer, data = await self._send(runtime, "cancel")
        await self._finished(runtime, answer, data, GRACE_SECONDS)

    async def _finished(
        self, runtime: Any, answer: dict[str, Any], data: bytes, seconds: float
    ) -> tuple[dict[str, Any], bytes]:
        started = time.monotonic()
        while answer.get("running"):
            elapsed = time.monotonic() - started
            await asyncio.sleep(min(max(elapsed / 10, _PAUSES[0]), _PAUSES[1]))
            if elapsed > seconds + GRACE_SECONDS:
                raise SandboxError("a command of the remote sandbox can't be killed")
            answer, data = await self._send(runtime, "kill" if elapsed > seconds else "wait")
        return answer, data

    async def _send(
        self, runtime: Any, kind: str, request: Mapping[str, Any] | None = None, blob: bytes = b""
    ) -> tuple[dict[str, Any], bytes]:
        """One message about the latest request, and the answer. A lost answer repeats it, which does nothing twice."""
        wait = _FIRST_WAIT_SECONDS if kind == "run" else _WAIT_SECONDS
        message = wire.encode({"kind": kind, "number": self._number, "wait": wait, "request": request}, blob)
        text = base64.b64encode(message).decode()
        if len(text) > _ARGUMENT_BYTES:
            text = f"{self._state}/{self._number}.request"
            with tempfile.NamedTemporaryFile() as file:
                file.write(message)
                file.flush()
                await self._request(runtime, "upload", "UploadRequest", source_path=file.name, target_path=text)
        argv = [self._python, "-I", "-S", "-X", "utf8", "-c", _RUN, self._state, text]
        try:
            answer, data = wire.decode(base64.b64decode(await self._execute(runtime, argv)))
            return dict(answer), data
        except _FORGED as error:
            raise Killed(f"the answer was forged: {error}") from error

    async def _execute(self, runtime: Any, argv: list[str]) -> str:
        """What a program printed. Raises `Killed` where it can't be run, or fails."""
        problem = ""
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(1.0)  # a fork bomb goes by
            try:
                response = await self._request(runtime, "execute", "Command", command=argv, timeout=ANSWER_SECONDS)
            except Killed as error:
                problem = str(error)
                continue
            if response.exit_code == 0:
                return str(response.stdout)
            problem = f"exit code {response.exit_code}: {response.stderr[-2000:]}"
        raise Killed(f"nothing can be run in the sandbox any more: {problem}")

    async def _request(self, runtime: Any, method: str, kind: str, **fields: Any) -> Any:
        """A request of SWE-ReX. Raises `SandboxError` where there is no answer, `Killed` where it is a refusal."""
        requests: Any = importlib.import_module("swerex.runtime.abstract")
        exceptions: Any = importlib.import_module("swerex.exceptions")
        for attempt in range(_ATTEMPTS):
            try:
                async with asyncio.timeout(2 * ANSWER_SECONDS):
                    return await getattr(runtime, method)(getattr(requests, kind)(**fields))
            except exceptions.SwerexException as error:
                raise Killed(str(error)) from error
            except (aiohttp.ClientError, OSError, ValueError) as error:
                if hasattr(error, "extra_info"):  # raised over there, and sent
                    raise Killed(f"{type(error).__name__}: {error}") from error
                problem = error
                if isinstance(error, TimeoutError):
                    break
            await asyncio.sleep(0.5 * (attempt + 1))
        self._runtime = None  # or the end would wait for it once more
        raise SandboxError(f"the remote sandbox does not answer: {problem!r}") from problem


def server_token(url: str) -> str:
    """The token of a server. Raises `UserError` for what is no URL, or without a token."""
    parts = urlsplit(url)
    if not parts.hostname or parts.username is not None:
        raise UserError("remote:URL is http(s)://HOST[:PORT] of a SWE-ReX server, without a user; its token is in "
                        f"{TOKEN}, or in the file that {TOKEN}_FILE names")  # fmt: skip
    require("swerex.runtime.remote")
    token = os.environ.get(TOKEN, "")
    path = os.environ.get(f"{TOKEN}_FILE", "")
    if not token and path:
        try:
            token = Path(path).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise UserError(f"{TOKEN}_FILE can't be read: {error}") from error
    if not token:
        raise UserError(f"remote:URL needs the server's token in {TOKEN}, or in the file that {TOKEN}_FILE names")
    return token


def check(kind: str) -> None:
    """Raises `UserError` where a deployment of this kind lacks a package, or an account."""
    require("swerex")
    require(f"swerex.deployment.{kind}", kind if kind in _EXTRAS else "")
    if kind == "modal" and not importlib.import_module("modal.config").config.get("token_id"):
        raise UserError("remote:modal needs an account: `modal setup`, or MODAL_TOKEN_ID and MODAL_TOKEN_SECRET")


def configuration(kind: str, image: str, options: Mapping[str, Any]) -> Any:
    """SWE-ReX's own, for a deployment of one of `KINDS`. Raises `UserError` for an option that it does not have."""
    require("swerex.deployment.config")
    module: Any = importlib.import_module("swerex.deployment.config")
    pydantic: Any = importlib.import_module("pydantic")
    keys: dict[str, str] = {}  # the others' libraries find their own
    if kind == "daytona":
        keys = {"api_key": os.environ.get("DAYTONA_API_KEY", "")}
        if not keys["api_key"]:
            raise UserError("remote:daytona needs the key of an account in DAYTONA_API_KEY")
    fields = {**_DEFAULTS.get(kind, {}), **keys, **({"image": image} if image else {}), **options}
    try:
        return getattr(module, f"{kind.capitalize()}DeploymentConfig")(**fields)
    except pydantic.ValidationError as error:
        wrong = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_input=False)]
        raise UserError(f"remote:{kind} does not take these options: {'; '.join(wrong)}") from None


def require(module: str, extra: str = "") -> None:
    """Raises `UserError` where a package is missing, with how to install it."""
    os.environ.setdefault("SWE_REX_LOG_STREAM_LEVEL", "CRITICAL")
    try:
        importlib.import_module(module)
    except ImportError as error:
        also = f" 'swe-rex[{extra}]=={VERSION}'" if extra else ""
        package = (error.name or module).partition(".")[0]
        raise UserError(f"remote sandboxes need {package}: pip install 'slime-swe[remote]'{also}") from error
