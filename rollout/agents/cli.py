"""`CliAgent`: a real coding agent, a program that runs unmodified in the sandbox against the recording proxy.

One file per agent beside this one says how it is installed, started and understood.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from time import perf_counter
from typing import ClassVar, Self

from slime_swe.data_sources.task import Task
from slime_swe.errors import UserError
from slime_swe.rollout.agents.base import Agent, AgentError
from slime_swe.rollout.chat.tokenizer import eos_token_ids, load_tokenizer
from slime_swe.rollout.client import Sampling
from slime_swe.rollout.endpoint.client import endpoint_client
from slime_swe.rollout.endpoint.session import EndpointSession, endpoint_policy
from slime_swe.rollout.engine import engine_client
from slime_swe.rollout.episode import EpisodeStatistics, Session, StopReason
from slime_swe.rollout.proxy.conversation import Request
from slime_swe.rollout.proxy.server import Proxy, open_proxy
from slime_swe.rollout.proxy.sessions import Policy, ProxySession
from slime_swe.rollout.proxy.templates import Templates
from slime_swe.rollout.replies import EngineAborted
from slime_swe.rollout.settings import RolloutSettings
from slime_swe.sandbox.base import ExecResult, Limits, Sandbox
from slime_swe.sandbox.cache import cache_folder, locked, made_once, remove_tree

HOME = "/tmp/agent"  # where an agent keeps its own files: outside the repository, gone with the sandbox
MISSING = 125  # exit code of ours: the sandbox lacks what the agent needs
# These hold for the agent and all that it starts: the time budget and the agent's own limits end commands. Node.js and
# the programs that bring their own runtime reserve far more address space than they use.
LIMITS = Limits(cpu_seconds=3600, memory_bytes=4 << 30, file_bytes=256 << 20, disk_bytes=1 << 30, processes=512)
PORT = 4141  # of the proxy, on each sandbox's own loopback
START_SECONDS = 120.0  # until an agent first calls its model, or it never will
END_SECONDS = 10.0  # that an agent gets to end by itself when no further call is answered
FAILED_SECONDS = 60.0  # that an engine may fail for, while the agent goes on asking
_POLL_SECONDS = 1.0
_FOREVER = 7 * 86400.0  # the runner's budget ends the command
_NOT_STARTED = (MISSING, 126, 127)  # the shell's own: not executable, not found


@dataclass(frozen=True)
class Launch:
    """The inputs of `CliAgent.start`. url: the session's address, without a protocol's path."""

    task: Task
    url: str
    key: str
    policy: Policy
    max_reply: int  # tokens
    system_prompt: str = ""  # in place of the agent's own, where the run has one and the agent can take it


@dataclass(frozen=True)
class Command:
    """A shell command, which runs in the repository; `files` lie in `HOME`, by relative path."""

    shell: str
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(eq=False)
class CliAgent(Agent):
    """One program for all episodes of a run. A subclass states what it is; a variant is a subclass with other `flags`.

    version: what `install` installs. flags: further flags of its command line.
    """

    is_program = True
    calls_tools = True
    name: ClassVar[str]
    version: ClassVar[str]
    flags: ClassVar[str] = ""
    limits = LIMITS

    policy: Policy
    proxy: Proxy
    layers: tuple[Path, ...]
    system_prompt: str = ""
    session_class: type[ProxySession] = ProxySession
    on_session: Callable[[ProxySession], None] = lambda session: None  # is shown each episode's record

    @classmethod
    def install(cls, folder: Path) -> None:
        """Put the program into a folder that sandboxes see as `/opt/agents/<name>`."""
        raise NotImplementedError

    @classmethod
    def start(cls, launch: Launch) -> Command:
        raise NotImplementedError

    @classmethod
    def outcome(cls, exit_code: int | None, output: str) -> StopReason:
        """Return why the agent ended, given that it has called the policy. If an agent fails after that, the policy may
        have caused it by what it said or by what it ran.
        """
        return StopReason.SUBMITTED if exit_code == 0 else StopReason.GAVE_UP

    @classmethod
    def side_call(cls, request: Request) -> bool:
        """Say whether a call does no work on the task (a title, a commit message), and so is not trained."""
        return False

    @classmethod
    def stop_reason(cls, exit_code: int | None, output: str, calls: int) -> StopReason:
        """Return `outcome`, after this many answered calls. Raises `AgentError` if the program failed before the policy
        could influence it.
        """
        reason = cls.outcome(exit_code, output)
        if exit_code in _NOT_STARTED or not (calls or reason is StopReason.CONTEXT_FULL):
            what = "could not be started" if exit_code in _NOT_STARTED else "ended without a model call"
            raise AgentError(f"{cls.name} {what} (exit code {exit_code}): {output[-2000:].strip()}")
        return reason

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: RolloutSettings) -> AsyncIterator[Self]:
        """See `Agent.open`. Raises `TemplateError` as the native agent does."""
        layer = await asyncio.to_thread(layer_of, cls.name, cls.version, cls.install)
        tokenizer = await asyncio.to_thread(load_tokenizer, settings.checkpoint, settings.chat_template)
        eos_ids = await asyncio.to_thread(eos_token_ids, settings.checkpoint)
        templates = await asyncio.to_thread(Templates, tokenizer, settings.tool_format, eos_ids)
        async with await engine_client(settings) as client, open_proxy() as proxy:
            policy = Policy(
                client=client,
                templates=templates,
                tool_format=settings.tool_format,
                max_context=settings.max_context,
                max_turns=settings.max_turns,
                routing_replay=settings.routing_replay,
            )
            yield cls(policy, proxy, (layer,), settings.system_prompt)

    @classmethod
    @asynccontextmanager
    async def open_at_endpoint(cls, settings: RolloutSettings) -> AsyncIterator[Self]:
        """See `Agent.open_at_endpoint`. The proxy asks the endpoint, so that the sandbox needs neither its address nor
        its key, and the agent may speak any of the proxy's protocols."""
        layer = await asyncio.to_thread(layer_of, cls.name, cls.version, cls.install)
        async with await endpoint_client(settings) as client, open_proxy() as proxy:
            policy = endpoint_policy(settings, client)
            yield cls(policy, proxy, (layer,), settings.system_prompt, EndpointSession)

    @property
    def placeholder_token(self) -> int | None:
        return next(iter(self.policy.templates.stop_token_ids), None)

    def decode(self, tokens: Sequence[int]) -> str:
        return self.policy.templates.decode(tokens)

    async def run(
        self, task: Task, sandbox: Sandbox, session: Session, sampling: Sampling, statistics: EpisodeStatistics
    ) -> StopReason:
        """See `Agent.run`."""
        calls = self.session_class(self.policy, session, sampling, statistics, side_call=self.side_call)
        self.on_session(calls)
        listening = await sandbox.listen(PORT)
        async with self.proxy.serve(calls, listening) as path:
            url, most = f"http://127.0.0.1:{PORT}{path}", sampling.params["max_new_tokens"]
            launch = Launch(task, url, calls.key, self.policy, most, self.system_prompt)
            try:
                result = await self._execute(sandbox, shell_command(self.start(launch)), calls)
            except asyncio.CancelledError:
                if statistics.budget is None or not statistics.budget.expired():
                    raise
                # What kept the agent from its model at last, whatever it made of that, is no policy's doing.
                if calls.failure is not None:
                    raise calls.failure from None
                if not calls.asked:
                    raise AgentError(f"{self.name} did not call its model") from None
                raise
        if calls.ended is not None:
            return calls.ended
        if calls.failure is not None:
            raise calls.failure
        if calls.full:  # which some agents end by as if all were well, and others as if they had failed
            return StopReason.CONTEXT_FULL
        return self.stop_reason(result.exit_code, result.output, statistics.turns)

    async def _execute(self, sandbox: Sandbox, command: str, calls: ProxySession) -> ExecResult:
        """Run the agent until it ends, or until none of its calls has been answered for a while."""
        statistics = calls.statistics
        started, in_engine = perf_counter(), statistics.engine_seconds
        running = asyncio.ensure_future(sandbox.exec(command, timeout=_FOREVER))
        unanswered = 0.0
        try:
            while not (await asyncio.wait({running}, timeout=_POLL_SECONDS))[0]:
                if not calls.asked and perf_counter() - started > START_SECONDS:
                    raise AgentError(f"{self.name} did not call its model within {START_SECONDS:.0f} s")
                if self.policy.client.gate.is_closed and not calls.ended:
                    continue
                unanswered = unanswered + _POLL_SECONDS if calls.ended or calls.failure else 0.0
                # Whether no later call will be answered.
                is_over = calls.ended or isinstance(calls.failure, EngineAborted | UserError)
                if unanswered >= (END_SECONDS if is_over else FAILED_SECONDS):
                    return ExecResult(None, "", perf_counter() - started)
            return running.result()
        finally:
            await _cancelled(running)
            spent = perf_counter() - started - (statistics.engine_seconds - in_engine)
            statistics.sandbox_seconds += max(0.0, spent)


async def _cancelled(task: asyncio.Future[ExecResult]) -> None:
    """Cancel what has not ended, and wait for its end: the sandbox is used again right after."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # was seen


def shell_command(command: Command) -> str:
    """Join a command's files, its environment and its own text into one shell command."""
    lines = [f"mkdir -p {HOME}", "umask 077"]
    for path, text in command.files.items():
        place = shlex.quote(f"{HOME}/{path}")
        lines += [f"mkdir -p $(dirname {place})", f"printf %s {shlex.quote(text)} >{place}"]
    lines += ["umask 022"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in {"HOME": HOME, **command.environment}.items()]
    return "\n".join([*lines, command.shell])


def python_command(name: str, arguments: str) -> str:
    """Return the command for the agent's `run.py`, by an interpreter of the sandbox that its packages are made for.

    Its packages are on no path that commands of the policy's inherit.
    """
    wanted = python_version()
    places = f"python{wanted} python3 /usr/bin/python3 /usr/local/bin/python3 /opt/miniconda3/bin/python3"
    major, minor = wanted.split(".")
    check = f"import sys; sys.exit(sys.version_info[:2] != ({major}, {minor}))"
    complaint = f"{name} is installed for Python {wanted}, and the image has another: install with the image's version"
    return (
        f"python=; for place in {places}; do\n"
        f'  if "$place" -c {shlex.quote(check)} 2>/dev/null; then python=$place; break; fi\n'
        "done\n"
        f'if [ -z "$python" ]; then echo {shlex.quote(complaint)} >&2; exit {MISSING}; fi\n'
        f'"$python" -P -s {folder_of(name)}/run.py {arguments}'
    )


# Install an agent once on this machine, into a read-only layer that all its sandboxes share.
#
# A layer is a folder seen from `/`; everything in it is below `opt/agents/<name>`. npm and pip ask the registries that
# they are configured for (`.npmrc`, `pip.conf`).
NODE = "22.23.3"  # what qwen-code and its like need; images have an older one or none
INSTALL_SECONDS = 900.0
UNUSED_DAYS = 30.0
_LAST_LINES = 15
_MACHINES = {"x86_64": "x64", "aarch64": "arm64"}  # as npm calls them


def folder_of(name: str) -> str:
    """Return the folder that an agent has in its sandboxes."""
    return f"/opt/agents/{name}"


def layer_of(name: str, version: str, install: Callable[[Path], None], cache: Path | None = None) -> Path:
    """Return an agent's layer, and install it if it isn't there yet. Blocks. Raises `UserError` where that fails.

    `install` puts the agent into a folder that sandboxes will see as `folder_of(name)`. Installing one removes the
    layers of any agent that no run has opened for `UNUSED_DAYS`.
    """
    layers = (cache or cache_folder()) / "agents"
    place = layers / f"{name}-{version}-{_made_by(name, install)}"

    def make(place: Path) -> None:
        folder = place / folder_of(name).strip("/")
        folder.mkdir(parents=True)
        print(f"installing {name} {version}, once for all sandboxes of this machine", file=sys.stderr, flush=True)
        install(folder)
        _sweep(layers)

    made_once(place, make)
    os.utime(place)  # its last use
    return place


def python_version() -> str:
    """Return the version of the interpreter that installs. Agents in Python need the same version in the sandbox."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def pip_install(name: str, folder: Path, python: Path | None = None) -> None:
    """Install the agent's locked packages into `folder/lib`, compiled; only wheels, so that none of them runs code
    here.

    python: the interpreter that they are for, in place of the one that trains. It need not have pip.
    """
    pip = [sys.executable, "-m", "pip", *(["--python", str(python)] if python else [])]
    flags = ["--no-deps", "--only-binary=:all:", "--quiet", "--disable-pip-version-check"]
    with resources.as_file(_lock_of(name)) as lock:
        command = [*pip, "install", *flags, "--target", str(folder / "lib"), "-r", str(lock)]
        _run(command, "pip", "pip must be installed and reach a package index: python -m pip config list")


def npm_install(package: str, folder: Path) -> None:
    """Install an npm package, named with its version, into `folder`; no script of a package runs."""
    if shutil.which("npm") is None:
        raise UserError(f"installing {package} needs npm: apt-get install npm")
    flags = ["--ignore-scripts", "--omit=dev", "--no-save", "--no-package-lock", "--no-audit", "--no-fund"]
    command = ["npm", "install", "--prefix", str(folder), "--loglevel=error", *flags, package]
    _run(command, "npm", "npm must be able to reach a registry (npm config get registry)")


def node_install(folder: Path) -> None:
    """Install Node.js as `folder/bin/node`."""
    name = f"node-linux-{machine()}"
    npm_install(f"{name}@{NODE}", folder)
    (folder / "bin").mkdir()
    (folder / "node_modules" / name / "bin" / "node").rename(folder / "bin" / "node")
    shutil.rmtree(folder / "node_modules" / name)


def machine() -> str:
    """Return npm's name of this processor. Raises `UserError` for one that the agents' packages are not made for."""
    here = platform.machine()
    if here not in _MACHINES:
        raise UserError(f"agents are installed on {' or '.join(_MACHINES)}, and this machine is {here}")
    return _MACHINES[here]


def _sweep(layers: Path) -> None:
    oldest = time.time() - UNUSED_DAYS * 86400
    for layer in layers.iterdir():
        if layer.is_dir() and layer.stat().st_mtime < oldest:
            with locked(layer):
                remove_tree(layer)


def _made_by(name: str, install: Callable[[Path], None]) -> str:
    """Return a hash that changes with whatever an installation is made by."""
    files = [Path(__file__), *(Path(file) for file in [sys.modules[install.__module__].__file__] if file)]
    lock = _lock_of(name)
    texts = [file.read_text(encoding="utf-8") for file in files]
    if lock.is_file():
        texts += [lock.read_text(encoding="utf-8"), python_version()]
    return hashlib.sha256("\0".join([*texts, platform.machine()]).encode()).hexdigest()[:12]


def _lock_of(name: str) -> Traversable:
    """Return the file that pip installs an agent from: each package with its version."""
    return resources.files("slime_swe.rollout.agents") / "locks" / f"{name}.txt"


def _run(command: Sequence[str], tool: str, advice: str) -> None:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", timeout=INSTALL_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise UserError(f"{tool} took more than {INSTALL_SECONDS:.0f} s: {shlex.join(command)}; {advice}") from error
    if done.returncode:
        last = "\n".join(done.stdout.strip().splitlines()[-_LAST_LINES:])
        raise UserError(f"{tool} failed (exit code {done.returncode}): {shlex.join(command)}\n{last}\n{advice}")
