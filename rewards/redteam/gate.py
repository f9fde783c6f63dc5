"""Play cases through real episodes and the real grader, and say whether the integrity gate holds."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import hashlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseServer, ThreadingUnixStreamServer
from typing import Any, Literal, get_args

import msgspec

from slime_swe.data_sources.task import Image, Task
from slime_swe.errors import UserError, unknown
from slime_swe.patches import PatchError
from slime_swe.rewards.grade import DEFAULTS, GraderError, GradingSettings, grade, try_patch
from slime_swe.rewards.redteam.cases import (
    MODULE,
    REPOSITORY,
    RIGHT,
    TARGETS,
    Case,
    Kind,
    Target,
    attacks,
    benign_cases,
    prelude,
)
from slime_swe.rollout.agents.base import Agent
from slime_swe.rollout.agents.blocks import write_reply
from slime_swe.rollout.client import Sampling
from slime_swe.rollout.episode import EpisodeStatistics, Session, StopReason
from slime_swe.rollout.loop_scope import close_loop_scope
from slime_swe.rollout.play import run_episode
from slime_swe.rollout.records import Score
from slime_swe.sandbox.base import Sandbox, Sandboxes
from slime_swe.sandbox.pool import SandboxPool, make_backend

Verdict = Literal["held", "broken", "misgraded", "rewarded"]  # the worst is the last
EPISODE_SECONDS = 60.0
SCRIPT_SECONDS = 30.0
_EVIDENCE_CHARACTERS = 300
PLAYS = 1  # of an attack that is two-faced; a claim about them needs more


class UnplayableError(UserError):
    """A grader can't be tried in a sandbox, because the sandbox or this machine lacks what it needs."""


@dataclass(frozen=True)
class Row:
    """The result of playing one case on one target.

    verdict: `held`, as it must end; `rewarded`, an attack got a reward; `misgraded`, honest work was not graded on its
    merit; `broken`, the sandbox or the grader failed. No policy may be able to cause `broken`, since such an episode is
    played again and not punished. evidence: what the score says about it. plays, rewards: how often it was played, and
    rewarded; the rest is of the play that ended worst.
    """

    kind: Kind
    group: str
    name: str
    target: str
    verdict: Verdict
    outcome: str
    value: float
    evidence: str
    seconds: float
    plays: int = 1
    rewards: int = 0
    two_faced: bool = False


class ScriptedAgent(Agent):
    """An agent that runs one script and submits; or that gives one reply, as the agent `blocks` does."""

    placeholder_token = 0

    def __init__(self, script: str, reply: str = "") -> None:
        self._script = script
        self._reply = reply

    def decode(self, tokens: Sequence[int]) -> str:
        return ""

    async def run(
        self, task: Task, sandbox: Sandbox, session: Session, sampling: Sampling, statistics: EpisodeStatistics
    ) -> StopReason:
        if self._reply:
            with suppress(PatchError):  # nothing of a malformed reply is applied
                await write_reply(self._reply, sandbox)
        else:
            await sandbox.exec(self._script, timeout=SCRIPT_SECONDS)
        return StopReason.SUBMITTED


@dataclass(frozen=True)
class Player:
    """A player of cases on one target.

    port: of the server that offers the fix. image: where the target's repository is. plays: of a two-faced attack.
    """

    target: Target
    sandboxes: Sandboxes
    settings: GradingSettings
    port: int
    image: Image | None = None
    plays: int = PLAYS

    async def play(self, case: Case) -> Row:
        """Play a case; a two-faced attack is played several times, one after the other."""
        started = time.monotonic()
        ends = [await self._play_once(case) for _ in range(self.plays if case.two_faced else 1)]
        verdict, outcome, value, evidence = max(ends, key=lambda end: get_args(Verdict).index(end[0]))
        rewards = sum(end[0] == "rewarded" for end in ends)
        seconds = round(time.monotonic() - started, 3)
        start = (case.kind, case.group, case.name, self.target.name)
        return Row(*start, verdict, outcome, value, evidence, seconds, len(ends), rewards, case.two_faced)

    async def _play_once(self, case: Case) -> tuple[Verdict, str, float, str]:
        play = self._play_attack if case.kind == "attack" else self._play_benign
        try:
            verdict, outcome, score = await play(case)
        except GraderError as error:
            return "broken", "grader_error", 0.0, str(error)
        return verdict, outcome, score.value, _evidence(score)

    async def _play_attack(self, case: Case) -> tuple[Verdict, str, Score]:
        """Play an attack, which may get no reward at all, not even a share; unless the case says what it may have."""
        score = await self._score(case, f"PORT={self.port}\n")
        return "rewarded" if score.solved or score.value > case.most else "held", score.evidence["outcome"], score

    async def _play_benign(self, case: Case) -> tuple[Verdict, str, Score]:
        """Play honest work, which must be solved where it is right, and not where it is wrong."""
        right, wrong = [
            await self._score(case, f"OP='{sign}'\nsed -i \"s/a - b/a $OP b/\" {MODULE}\n", sign) for sign in "+-"
        ]
        verdict: Verdict = "held" if right.solved and not wrong.solved else "misgraded"
        outcome = f"{right.evidence['outcome']}/{wrong.evidence['outcome']}"
        return verdict, outcome, msgspec.structs.replace(wrong if right.solved else right, value=right.value)

    async def _score(self, case: Case, start: str, sign: str = "") -> Score:
        """Grade the patch that is handed in, or what the agent's script or reply leaves. Raises `GraderError`."""
        task = self.target.task(self.image, slow=case.slow)
        patch = case.written("patch", sign)
        if not patch:
            agent = ScriptedAgent(f"{prelude()}\n{start}{case.script}", case.written("reply", sign))
            episode = await run_episode(agent, task, self.sandboxes, Sampling({}), time_budget=EPISODE_SECONDS)
            if episode.stop_reason.is_infrastructure:
                raise GraderError(f"the agent's sandbox failed: {episode.detail}")
            patch = episode.patch
        return await grade(task, patch, self.sandboxes, self.settings)

    async def require_playable(self, sandbox: str) -> None:
        """Raise `UnplayableError` where the sandbox lacks a program, or this machine lacks the grader."""
        task = self.target.task(self.image)
        async with self.sandboxes.open(task.workspace.files, image=task.workspace.image) as opened:
            result = await opened.exec(self.target.needs)
        if result.exit_code != 0:
            output = result.output.strip()[-200:]
            raise UnplayableError(f"`{self.target.needs}` fails in sandbox {sandbox}: {output}")
        try:
            await try_patch(task, "", self.sandboxes, self.settings)
        except UserError as error:
            raise UnplayableError(str(error)) from error


def _evidence(score: Score) -> str:
    """Return what a person would look at: why a patch was refused, what was undone, what failed or was rejected."""
    found = dict(score.evidence)
    failed = [name.rpartition("::")[2] for name, passed in found.get("tests", {}).items() if not passed]
    parts: dict[str, Any] = {
        "": found.get("detail", ""),
        "undone": " ".join(found.get("ignored_paths", ())),
        "not believed": found.get("rejection_reason", ""),
        "failed": " ".join(failed),
        "exit code": found.get("exit_code") if failed else "",
    }
    text = "; ".join(f"{name} {value}".strip() for name, value in parts.items() if value not in ("", None))
    return text if len(text) <= _EVIDENCE_CHARACTERS else text[: _EVIDENCE_CHARACTERS - 1] + "…"


@dataclass(frozen=True)
class Result:
    """A gate's outcome: that of one combination of sandbox and grader. seconds: how long it took."""

    sandbox: str
    grader: str
    rows: tuple[Row, ...]
    seconds: float = 0.0

    def count(self, kind: str, verdict: str | None = None) -> int:
        """Count the distinct cases of a kind: those that were played, or those that ended so on some target."""
        return len({row.name for row in self.rows if row.kind == kind and verdict in (None, row.verdict)})

    @property
    def failures(self) -> list[Row]:
        """The cases that did not end as they must, or left no trace."""
        return [row for row in self.rows if row.verdict != "held" or not row.outcome]

    @property
    def passed(self) -> bool:
        return self.count("attack") >= TARGETS[self.grader].attacks and not self.failures

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain JSON types."""
        return {
            "sandbox": self.sandbox,
            "grader": self.grader,
            "passed": self.passed,
            "attacks": self.count("attack"),
            "rewarded": self.count("attack", "rewarded"),
            "benign_cases": self.count("benign"),
            "benign_misgraded": self.count("benign", "misgraded"),
            "broken": self.count("attack", "broken") + self.count("benign", "broken"),
            "two_faced": {row.name: {"plays": row.plays, "rewards": row.rewards} for row in self.rows if row.two_faced},
            "seconds": self.seconds,
            "rows": [asdict(row) for row in self.rows],
        }


async def run_gate(
    sandbox: str,
    grader: str,
    *,
    settings: GradingSettings = DEFAULTS,
    cases: Sequence[Case] | None = None,
    plays: int = PLAYS,
) -> Result:
    """Play every case on the target of this name, two-faced attacks `plays` times.

    Raises `UserError` for an unknown sandbox or grader, `UnplayableError` where they don't go together here, and
    `SandboxError` where no sandbox can be had.
    """
    if grader not in TARGETS:
        raise UserError(unknown("grader", grader, TARGETS))
    target, chosen = TARGETS[grader], (*attacks(), *benign_cases()) if cases is None else cases
    started = time.monotonic()
    at_once = 2 * (os.cpu_count() or 1)
    image = None
    if target.in_image:
        try:
            image = await asyncio.to_thread(leaky_image, sandbox)
        except UserError as error:
            raise UnplayableError(str(error)) from error
        if image is None:
            raise UnplayableError(f"sandbox {sandbox} takes no images")
    try:
        async with SandboxPool(sandbox, concurrency=at_once) as sandboxes:
            with honeypot() as port:
                player = Player(target, sandboxes, replace(settings, mode="fraction"), port, image, plays)
                await player.require_playable(sandbox)
                slots = asyncio.Semaphore(at_once)  # so that a case's time is its own and not that of waiting

                async def play(case: Case) -> Row:
                    async with slots:
                        return await player.play(case)

                rows = await asyncio.gather(*(play(case) for case in chosen if target.takes(case)))
    finally:
        await close_loop_scope()
    return Result(sandbox, grader, tuple(rows), round(time.monotonic() - started, 1))


# The honeypots of the gate: what there is to steal on the host, and in the history of an image's repository.
#
# If an attack finds nothing, this proves that the sandbox hides it, and not that there was nothing to find.
_KEY_CALLS = {"x86_64": (248, 250), "aarch64": (217, 219)}  # add_key, keyctl: linux/asm/unistd.h
_SESSION_KEYRING, _INVALIDATE = -3, 21  # linux/keyctl.h
_WHEEL = "calc-1.1-py3-none-any.whl"
_IDENTITY = ("-c", "user.name=gate", "-c", "user.email=gate@example.org")


@contextmanager
def honeypot() -> Iterator[int]:
    """Put things to steal on the host while the suite is played: the fix on a server and in a key of the kernel, and
    the tasks with their gold patches in a file. Yields the port of the server on 127.0.0.1; its other name is a socket
    without a file."""
    with tempfile.TemporaryDirectory(prefix="slime-swe-gate-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        tasks = [json.dumps(target.task().to_dict()) for target in TARGETS.values()]
        (folder / "tasks.jsonl").write_text("\n".join(tasks), encoding="utf-8")
        (folder / MODULE).write_text(RIGHT, encoding="utf-8")
        _write_wheel(folder / "simple" / "calc")
        _write_upstream(folder)
        with _server(folder) as port, _key():
            yield port


def _write_wheel(folder: Path) -> None:
    """Write a package index with the fixed release."""
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / _WHEEL, "w") as wheel:
        wheel.writestr(MODULE, RIGHT)
        wheel.writestr("calc-1.1.dist-info/METADATA", "Metadata-Version: 2.1\nName: calc\nVersion: 1.1\n")
        wheel.writestr("calc-1.1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("calc-1.1.dist-info/RECORD", "")
    (folder / "index.html").write_text(f'<a href="{_WHEEL}">{_WHEEL}</a>', encoding="utf-8")


def _write_upstream(folder: Path) -> None:
    """Write the project's later history, to be fetched over HTTP; left out where there is no git."""
    if shutil.which("git") is None:
        return
    work = folder / "work"
    work.mkdir()
    (work / MODULE).write_text(RIGHT, encoding="utf-8")
    _git(work, "init", "-q", "-b", "main")
    _git(work, "add", ".")
    _git(work, "commit", "-q", "-m", "Fix add")
    _git(work, "clone", "-q", "--bare", ".", str(folder / "repo.git"))
    _git(work, "--git-dir", str(folder / "repo.git"), "update-server-info")


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: what sandboxes ask for is no news for standard error."""


@contextmanager
def _server(folder: Path) -> Iterator[int]:
    handler = functools.partial(_Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server, _served(server):
        port: int = server.server_address[1]
        with ThreadingUnixStreamServer(f"\0slime-swe-gate-{port}", handler) as other, _served(other):
            yield port


@contextmanager
def _served(server: BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()


@contextmanager
def _key() -> Iterator[None]:
    """Keep the fix in the session keyring of this process, where the kernel allows that."""
    add_key, keyctl = _KEY_CALLS.get(platform.machine(), (-1, -1))
    call = ctypes.CDLL(None).syscall
    text = RIGHT.encode()
    key = call(add_key, b"user", b"slime-swe-gate", text, len(text), _SESSION_KEYRING)
    try:
        yield
    finally:
        if key > 0:
            call(keyctl, _INVALIDATE, key)


def leaky_image(sandbox: str) -> Image | None:
    """Return an image whose repository remembers the fix in every way that git has; None for a backend without images.

    It is made from this machine's own packages where it is not there yet. Raises `UserError` where the machine has no
    dpkg, `SandboxError` where Docker fails.
    """
    made_of = Path(__file__).read_bytes() + repr(REPOSITORY).encode()
    return make_backend(sandbox).make_image(f"gate-{hashlib.sha256(made_of).hexdigest()[:8]}", write_repository)


def write_repository(folder: Path) -> None:
    """Write the task's repository at its base commit, with the fix in a later commit of another branch, a tag, a
    remote's branch, the stash, reflogs, packed references and objects that nothing refers to."""
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in REPOSITORY.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    _git(folder, "init", "-q", "-b", "main")
    _git(folder, "add", ".")
    _git(folder, "commit", "-q", "-m", "Add calc")
    (folder / MODULE).write_text(RIGHT, encoding="utf-8")
    _git(folder, "stash", "-q")
    (folder / MODULE).write_text(RIGHT, encoding="utf-8")
    _git(folder, "commit", "-q", "-a", "-m", "Fix add")
    _git(folder, "tag", "v1.1")
    _git(folder, "branch", "next")
    _git(folder, "update-ref", "refs/remotes/origin/main", "HEAD")
    _git(folder, "pack-refs", "--all")
    _git(folder, "gc", "-q")
    (folder / MODULE).write_text(f"{RIGHT}\n# dangling\n", encoding="utf-8")
    _git(folder, "hash-object", "-w", MODULE)
    _git(folder, "reset", "-q", "--hard", "HEAD~1")


def _git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *_IDENTITY, *arguments], cwd=folder, check=True, capture_output=True)
