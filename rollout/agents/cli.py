"""`CliAgent`: a real coding agent, a program that runs unmodified in the sandbox against the recording proxy.

One file per agent beside this one says how it is installed, started and understood.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import ClassVar, Self

from slime_swe.data_sources.task import Task
from slime_swe.errors import UserError
from slime_swe.rollout.agents.base import Agent, AgentError
from slime_swe.rollout.agents.layer import folder_of, layer_of, python_version
from slime_swe.rollout.chat.tokenizer import eos_token_ids, load_tokenizer
from slime_swe.rollout.client import Sampling
from slime_swe.rollout.endpoint.client import endpoint_client
from slime_swe.rollout.endpoint.session import EndpointSession, endpoint_policy
from slime_swe.rollout.engine import engine_client
from slime_swe.rollout.episode import EpisodeStatistics, StopReason
from slime_swe.rollout.proxy.conversation import Request
from slime_swe.rollout.proxy.server import Proxy, open_proxy
from slime_swe.rollout.proxy.sessions import Policy, ProxySession
from slime_swe.rollout.proxy.templates import Templates
from slime_swe.rollout.replies import EngineAborted
from slime_swe.rollout.sandbox.base import ExecResult, Limits, Sandbox
from slime_swe.rollout.session import Session
from slime_swe.rollout.settings import RolloutSettings

HOME = "/tmp/agent"  # where an agent keeps its own files: outside the repository, gone with the sandbox
MISSING = 125  # exit code of ours: the sandbox lacks what the agent needs
# Of the agent and all that it starts: the time budget and the agent's own limits end commands. Node.js and the programs
# that bring their own runtime reserve far more address space than they use.
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
    """What one agent is started with. url: of its session, without a protocol's path."""

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

    version: what `install` installs. flags: further ones of its command line.
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
        """Why the agent ended, given that it has called the policy. If an agent fails after that, the policy may have
        caused it by what it said or by what it ran.
        """
        return StopReason.SUBMITTED if exit_code == 0 else StopReason.GAVE_UP

    @classmethod
    def side_call(cls, request: Request) -> bool:
        """Whether a call is no work on the task (a title, a commit message), and not trained."""
        return False

    @classmethod
    def stop_reason(cls, exit_code: int | None, output: str, calls: int) -> StopReason:
        """`outcome`, after this many answered calls. Raises `AgentError` if the program failed before the policy could
        influence it.
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
    """The whole as one shell command: its files, its environment, and itself."""
    lines = [f"mkdir -p {HOME}", "umask 077"]
    for path, text in command.files.items():
        place = shlex.quote(f"{HOME}/{path}")
        lines += [f"mkdir -p $(dirname {place})", f"printf %s {shlex.quote(text)} >{place}"]
    lines += ["umask 022"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in {"HOME": HOME, **command.environment}.items()]
    return "\n".join([*lines, command.shell])


def python_command(name: str, arguments: str) -> str:
    """Run the agent's `run.py` by an interpreter of the sandbox that its packages are made for.

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
