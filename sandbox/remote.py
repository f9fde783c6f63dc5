"""The `remote` backend: each sandbox is a deployment of SWE-ReX, and its container is the only isolation.

SWE-ReX's server runs one program at a time and answers nobody meanwhile. So each command runs in the background of
`remote.sh`, which is polled. SWE-ReX's log would show the servers' tokens; it is off unless SWE_REX_LOG_STREAM_LEVEL
says otherwise.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import os
import re
import secrets
import shlex
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp

from slime_swe.data_sources.task import Image
from slime_swe.errors import UserError
from slime_swe.patches import MAX_PATCH_BYTES, OVERSIZED
from slime_swe.sandbox import pool
from slime_swe.sandbox.base import Backend, SandboxError, SandboxSpec
from slime_swe.sandbox.guest.files import CACHE_FOLDERS
from slime_swe.sandbox.guest.wire import CappedOutput
from slime_swe.sandbox.image.driver import Kind, limit_flags, retrieve
from slime_swe.sandbox.image.sandbox import FILE_SECONDS, HISTORY, NO_HISTORY, SETUP_SECONDS, ShellSandbox

KINDS = ("modal", "daytona", "fargate", "docker")
ANSWER_SECONDS = 60.0  # for one request of SWE-ReX, which waits for no command
_LIVES_SECONDS = 3600.0  # of a deployment whose host has died
_ATTEMPTS = 3
_ARGUMENT_BYTES = 120_000  # the kernel takes 128 KiB
# image/driver.sh forgets them too.
_FORGET_PROXIES = (
    'for __name in $(compgen -e); do [[ ${__name,,} != *_proxy ]] || unset "$__name"; done; unset __name\n'
)
_RUN = Path(__file__).with_suffix(".sh")
_LEFT_OUT = " -o ".join(["-iname .git", *(f"-name {name}" for name in sorted(CACHE_FOLDERS))])
# The tracked files as a tree of a repository of our own. Modes are in no patch: where one is in the way, it is widened.
_TREE = f"""mkdir -p FOLDER; chmod u+rwx FOLDER; cd FOLDER || exit
set -o pipefail
export GIT_DIR=STATE/git GIT_WORK_TREE=$PWD GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null
git() {{
  command git -c core.fileMode=false -c core.protectNTFS=false -c core.compression=0 -c core.bigFileThreshold=4m "$@"
}}
[ -d "$GIT_DIR" ] || git init -q --template= || exit
mkdir -p "$GIT_DIR/info" && echo '* !text !eol !diff !filter !ident !working-tree-encoding' >"$GIT_DIR/info/attributes"
rm -f "$GIT_DIR/index"
find . -type d \\( {_LEFT_OUT} \\) -prune -o -type d ! -perm -700 -exec chmod u+rwx {{}} \\; -o -type f \\
  ! -name '*.pyc' ! -iname .git \\( -perm -400 -o -exec chmod u+rw {{}} \\; \\) -print0 |
  git update-index --add -z --stdin || exit
tree=$(git write-tree) || exit
"""
_DIFF = "git diff-tree -p --no-color --no-ext-diff --no-textconv --no-renames START $tree"


class RemoteBackend(Backend):
    """A backend that deploys each sandbox by SWE-ReX. `where`: one of `KINDS`, which `:IMAGE` may follow.

    `options` are fields of SWE-ReX's configuration of that kind, such as `deployment_timeout=1800` of Modal's. `deploy`
    in place of `where` makes a `swerex.deployment.abstract.AbstractDeployment` of your own for an image's name.
    """

    takes_images = True
    runs_here = False
    pressure = None
    isolates = "never"
    unprotected = (
        "the deployment's container is all that holds commands: they have its network, can end SWE-ReX's server or use "
        "its token, and start any number of processes"
    )

    def __init__(self, where: str = "", *, deploy: Callable[[str], Any] | None = None, **options: Any) -> None:
        kind, _, self._image = where.partition(":")
        if kind not in KINDS and deploy is None:
            raise UserError(
                f"sandbox remote:{where}: no such deployment; remote:KIND or remote:KIND:IMAGE with KIND one of "
                f"{', '.join(KINDS)}"
            )
        self._kind = kind if deploy is None else ""
        self._configure: Callable[[str], Any] = lambda image: configuration(kind, image, options)
        self.deploy: Callable[[str], Any] = deploy or (lambda image: self._configure(image).get_deployment())
        self.threads = ThreadPoolExecutor(64, thread_name_prefix="remote-sandbox")  # deployments block while they start
        self.running: set[RemoteSandbox] = set()

    async def start(self) -> None:
        """See that packages and keys are there. Raises `UserError`."""
        if self._kind:
            await asyncio.to_thread(check, self._kind)
            self._configure(self._image)
            self._kind = ""

    def open(self, spec: SandboxSpec) -> RemoteSandbox:
        return RemoteSandbox(self, spec.image or Image(self._image), spec)

    async def close(self) -> None:
        """Stop every deployment that is left, one that is starting as soon as it has. Raises `SandboxError`."""
        await asyncio.gather(*(sandbox.stop() for sandbox in list(self.running)))


class RemoteSandbox(ShellSandbox):
    """One deployment; it is in the backend's `running` until it has been stopped."""

    def __init__(self, backend: RemoteBackend, image: Image, spec: SandboxSpec) -> None:
        super().__init__(image, spec)
        self._backend = backend
        self._deployment: Any = None
        self._starting: asyncio.Future[None] | None = None
        self._stopping: asyncio.Future[None] | None = None
        self._runtime: Any = None
        self._state = f"/tmp/slime-swe-{secrets.token_hex(8)}"
        self._keep = self._start = ""
        self._prelude = _FORGET_PROXIES
        self._deadline = 0.0
        self._abandoned: asyncio.Task[int | None] | None = None  # a command whose call was cancelled

    async def _enter(self) -> None:
        self._backend.running.add(self)
        self._starting = self._in_thread(self._deploy)
        await asyncio.shield(self._starting)
        self._runtime = self._deployment.runtime
        folder, state = shlex.quote(self._image.folder), f"{self._state}/environment"
        stats = await self._execute("bash", "-c", f"mkdir -p {self._state} {folder}; cat /proc/[0-9]*/stat")
        self._keep = " ".join({line.rpartition(") ")[2].split()[3] for line in stats.splitlines()})
        await self._prepare("history, when it was to be cut,", HISTORY.read_text(encoding="utf-8"), (0, NO_HISTORY))
        if setup := self._image.setup:
            save = f"\n__code=$?; set +eux; {{ export -p; declare -f; }} >{state}; exit $__code"
            await self._prepare(f"setup {setup!r}", setup + save)
            self._prelude = f". {state}; cd {folder} 2>/dev/null || cd /; unset OLDPWD; {_FORGET_PROXIES}"
        if self._files:
            await self._write_files()
        self._start = (await self._prepare("list of files", self._tree("echo $tree"))).strip()

    async def _leave(self) -> None:
        if self._abandoned is not None:
            self._abandoned.cancel()
        self._runtime = None
        await self.stop()

    async def stop(self) -> None:
        """Stop the deployment, at any time. One that is starting can't be interrupted, and is stopped after that."""
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        under_way = [task for task in (self._starting, self._abandoned) if task is not None]
        await asyncio.gather(*under_way, return_exceptions=True)
        try:
            if self._deployment is not None:
                await self._in_thread(self._undeploy)
        finally:
            self._backend.running.discard(self)

    async def _deploy(self) -> None:
        self._deployment = self._backend.deploy(self._image.name)
        await self._deployment.start()

    async def _undeploy(self) -> None:
        """Stop the deployment as SWE-ReX does, and do what it leaves undone: its `stop` gives up where the server does
        not answer (to end shells, of which there are none), and ends a sandbox of Modal's only where that has ended
        already.
        """
        if getattr(self._deployment, "_runtime", None) is not None:
            self._deployment._runtime.close = lambda: asyncio.sleep(0)
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

        return asyncio.get_running_loop().run_in_executor(self._backend.threads, run)

    async def diff(self) -> str:
        output = CappedOutput(2 * MAX_PATCH_BYTES)
        async with self._lock:
            code = await self._run(self._tree(_DIFF).replace("START", self._start).encode(), output, FILE_SECONDS)
        text = output.parts()[0]
        if code != 0 or len(text) >= MAX_PATCH_BYTES:  # too much, or a command has put something else in git's place
            return OVERSIZED
        return "".join(map(_as_text, re.split(rb"(?m)^(?=diff --git )", text)))

    def _tree(self, then: str) -> str:
        return _TREE.replace("STATE", self._state).replace("FOLDER", shlex.quote(self._image.folder)) + then

    async def _prepare(self, what: str, script: str, good: tuple[int, ...] = (0,)) -> str:
        output = CappedOutput(1 << 16)
        async with self._lock:
            code = await self._run(script.encode(), output, SETUP_SECONDS, kind="setup")
        printed = b"".join(output.parts()).decode("utf-8", "replace")
        if code not in good:
            ended = "did not end in time" if code is None else f"ended with {code}"
            raise SandboxError(f"the remote sandbox of {self._image.name} did not start: its {what} {ended}: {printed}")
        return printed

    async def _run(
        self, command: bytes, output: CappedOutput, seconds: float, *, kind: Kind = "run", stdin: bytes = b""
    ) -> int | None:
        if self._abandoned is not None:
            await asyncio.wait({self._abandoned})
        self._deadline = time.monotonic() + seconds
        task = asyncio.create_task(self._carry_out(self._prelude.encode() + command, output, kind, stdin))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(retrieve)
            self._deadline, self._abandoned = 0.0, task
            raise

    async def _carry_out(self, command: bytes, output: CappedOutput, kind: Kind, stdin: bytes) -> int | None:
        """Start a command, and see it end; one whose deadline has come is killed."""
        name = f"run-{secrets.token_hex(8)}"  # which an earlier command can't have known
        text = base64.b64encode(command).decode()
        if len(text) > _ARGUMENT_BYTES:
            await self._upload(f"{name}.command", command)
            text = base64.b64encode(f". {self._state}/{name}.command".encode()).decode()
        if stdin:
            await self._upload(f"{name}.stdin", stdin)
        caps = str(output.head_limit), str(output.tail_limit)
        flags = "-c 0" if kind == "setup" else limit_flags(self._limits, memory=True)
        answer, looks, pause, late = "running", 30, 0.0, False
        while answer == "running":
            await asyncio.sleep(pause)
            late = time.monotonic() > self._deadline
            what = (self._state, name, "0" if late else str(looks), self._keep, self._image.folder, flags)
            script = _RUN.read_text(encoding="utf-8")
            answer = (await self._execute("bash", "-c", script, "bash", *what, *caps, text)).strip()
            looks, pause = 10, min(1.0, 1.1 * pause + 0.02)
        try:
            code, missing, printed = await asyncio.to_thread(_outcome, answer)
        except ValueError as error:  # nothing runs there any more, or a command has written the answer
            output.add(f"[it is not known how the command has ended: {error}]\n".encode())
            return pool.KILLED
        output.add(printed)
        output.total += missing
        return None if late else code

    async def _upload(self, name: str, content: bytes) -> None:
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            await self._request("upload", "UploadRequest", source_path=file.name, target_path=f"{self._state}/{name}")

    async def _execute(self, *argv: str) -> str:
        done = await self._request("execute", "Command", command=list(argv), timeout=ANSWER_SECONDS)
        return str(done.stdout) if done else ""

    async def _request(self, method: str, kind: str, **fields: Any) -> Any:
        """Make a request that may be repeated; None where it is refused, as without a shell or with too many processes.

        Raises `SandboxError` where there is no answer.
        """
        requests: Any = importlib.import_module("swerex.runtime.abstract")
        swerex: Any = importlib.import_module("swerex.exceptions")
        for attempt in range(_ATTEMPTS):
            if self._runtime is None:  # closed, perhaps since the command began
                raise SandboxError("the sandbox is not open")
            try:
                async with asyncio.timeout(2 * ANSWER_SECONDS):
                    return await getattr(self._runtime, method)(getattr(requests, kind)(**fields))
            except (swerex.SwerexException, aiohttp.ClientError, OSError, ValueError) as error:
                problem: Exception = error
            if isinstance(problem, TimeoutError):
                break
            await asyncio.sleep(0.5 * (attempt + 1))
        if hasattr(problem, "extra_info"):
            return None
        raise SandboxError(f"the remote sandbox does not answer: {problem!r}") from problem


def _outcome(answer: str) -> tuple[int, int, bytes]:
    """Parse the exit status of a command, the bytes that are missing, and the others. Raises `ValueError`."""
    status, head, tail, *_ = f"{answer}\n\n".split("\n")
    code, missing = map(int, status.split())
    return code, missing, base64.b64decode(head) + base64.b64decode(tail)


def _as_text(change: bytes) -> str:
    """Decode a file's part of a patch, which only names it where it is not UTF-8."""
    try:
        return change.decode()
    except UnicodeDecodeError:
        return re.sub(rb"(?s)\n--- (.*?)\n\+\+\+ (.*?)\n.*", rb"\nBinary files \1 and \2 differ\n", change).decode()


def check(kind: str) -> None:
    """Check that a deployment of this kind has its package, and an account. Raises `UserError` where it has not."""
    os.environ.setdefault("SWE_REX_LOG_STREAM_LEVEL", "CRITICAL")
    try:
        importlib.import_module(f"swerex.deployment.{kind}")
    except ImportError as error:
        package = (error.name or "swerex").partition(".")[0]
        also = "" if package == "swerex" else f" 'swe-rex[{kind}]==1.4.0'"
        raise UserError(f"remote sandboxes need {package}: pip install 'slime-swe[remote]'{also}") from error
    if kind == "modal" and not importlib.import_module("modal.config").config.get("token_id"):
        raise UserError("remote:modal needs an account: `modal setup`, or MODAL_TOKEN_ID and MODAL_TOKEN_SECRET")


def configuration(kind: str, image: str, options: Mapping[str, Any]) -> Any:
    """Make SWE-ReX's configuration for one of `KINDS`. Raises `UserError` without its key, or for unknown options."""
    module: Any = importlib.import_module("swerex.deployment.config")
    fields: dict[str, Any] = {"container_timeout": _LIVES_SECONDS} if kind in ("daytona", "fargate") else {}
    if kind == "daytona":
        fields["api_key"] = os.environ.get("DAYTONA_API_KEY", "")
        if not fields["api_key"]:
            raise UserError("remote:daytona needs the key of an account in DAYTONA_API_KEY")
    fields |= {"image": image} if image else {}
    try:
        return getattr(module, f"{kind.capitalize()}DeploymentConfig")(**fields, **options)
    except importlib.import_module("pydantic").ValidationError as error:
        wrong = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_input=False)]
        raise UserError(f"remote:{kind} does not take these options: {'; '.join(wrong)}") from None
