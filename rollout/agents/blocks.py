"""One model call, whose reply is the answer: search/replace blocks, or a unified diff (SWE-RL, arXiv:2502.18449)."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Self

from msgspec.structs import replace

from slime_swe.data_sources.task import Task
from slime_swe.patches import PatchError, apply_reply, paths_in_reply
from slime_swe.rollout.agents.native import SamplingAgent, fit, opening
from slime_swe.rollout.chat.template import ChatTemplate, Message, Rendered
from slime_swe.rollout.chat.tokenizer import eos_token_ids, load_tokenizer
from slime_swe.rollout.client import MIN_REPLY, Sampling
from slime_swe.rollout.engine import engine_client
from slime_swe.rollout.episode import EpisodeStatistics, Node, Session, StopReason, Turn
from slime_swe.rollout.settings import RolloutSettings
from slime_swe.sandbox.base import Sandbox

FORM = """\
Answer with blocks of this form, each with lines as they are in the file and what replaces them:
### path/to/file
<<<<<<< SEARCH
old lines
=======
new lines
>>>>>>> REPLACE"""
MAX_FILES = 20  # that are shown
_PATH = re.compile(r"(?<![\w./-])[\w./-]+\.\w+")  # from its first letter on: else a long word takes its length squared


@dataclass(eq=False)
class BlocksAgent(SamplingAgent):
    """An agent that shows the task and its files, samples once, and applies the reply.

    The files are the workspace's, but for those that the oracle protects; of an image, those that the statement names.
    They are cut where they leave no room for a reply. A reply of which any part is malformed or does not fit changes
    nothing: that is the policy's failure, counted as a malformed call, and the reason is the last turn of the record.
    """

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: RolloutSettings) -> AsyncIterator[Self]:
        """See `Agent.open`. Raises `TemplateError` where the chat template can't be used token-exactly."""
        template = await asyncio.to_thread(_load_template, settings)
        async with await engine_client(settings) as client:
            yield cls(settings, client, template)

    async def run(
        self, task: Task, sandbox: Sandbox, session: Session, sampling: Sampling, statistics: EpisodeStatistics
    ) -> StopReason:
        """See `Agent.run`."""
        with statistics.sandbox_time():
            files = await _shown_files(task, sandbox)
        head = await asyncio.to_thread(self._ask, task, files, session, sampling)
        room = self.room_after(head)
        if room < MIN_REPLY:
            return StopReason.CONTEXT_FULL
        head, said = await self.sample(head, session, sampling, statistics)
        head.turns = (replace(head.turns[0], text=self.template.decode(said.tokens)),)
        if said.finish_reason == "length":
            self._refuse(session, statistics, "the reply was cut at its limit, and nothing of it is applied")
            return StopReason.CONTEXT_FULL if len(said.tokens) >= room else StopReason.MAX_RESPONSE
        reply = await asyncio.to_thread(self.template.read, said.tokens)
        with statistics.sandbox_time():
            try:
                statistics.edits += await write_reply(reply.content, sandbox)
            except PatchError as error:
                self._refuse(session, statistics, str(error))
        return StopReason.SUBMITTED

    def _ask(self, task: Task, files: Mapping[str, str], session: Session, sampling: Sampling) -> Node:
        """Put the prompt into the session."""
        reply = max(MIN_REPLY, int(sampling.params["max_new_tokens"]))
        first = partial(_first, task, self.settings.system_prompt, [*files])
        room = self.settings.max_context - reply

        def rendered(contents: list[str]) -> Rendered:
            return self.template.render_first(first(contents))

        prompt = fit([*files.values()], rendered, room) or rendered(["" for _ in files])
        now = session.seconds
        roles = ["system", "user"][-len(prompt.contents) :]
        turns = [Turn(role, *content, now, now) for role, content in zip(roles, prompt.contents, strict=True)]  # type: ignore[arg-type]
        return session.add_context(prompt.tokens, turns)

    def _refuse(self, session: Session, statistics: EpisodeStatistics, why: str) -> None:
        """Record why nothing is applied. The policy does not see it."""
        statistics.malformed_calls += 1
        statistics.failed_edits += 1
        session.add_context((), [Turn("user", f"Error: {why}", 0, 0, session.seconds, session.seconds)])


def _load_template(settings: RolloutSettings) -> ChatTemplate:
    tokenizer = load_tokenizer(settings.checkpoint, settings.chat_template)
    template = ChatTemplate(tokenizer, (), eos_ids=eos_token_ids(settings.checkpoint))
    template.prove()
    return template


def _first(task: Task, system_prompt: str, paths: Sequence[str], contents: Sequence[str]) -> list[Message]:
    *before, asked = opening(task, system_prompt)
    files = [f"### {path}\n```\n{content}\n```" for path, content in zip(paths, contents, strict=True)]
    return [*before, {**asked, "content": "\n\n".join([str(asked["content"]), *files, FORM])}]


async def _shown_files(task: Task, sandbox: Sandbox) -> dict[str, str]:
    hidden = set(task.oracle.protected)
    named = task.workspace.files if task.workspace.image is None else dict.fromkeys(_PATH.findall(task.statement))
    paths = [path for path in sorted(named) if path not in hidden][:MAX_FILES]
    found = [(path, await _read(sandbox, path)) for path in paths]
    return {path: content.decode("utf-8", "replace").removesuffix("\n") for path, content in found if content}


async def write_reply(reply: str, sandbox: Sandbox) -> int:
    """Change the files as the reply says, and say how many. Raises `PatchError`."""
    paths = await asyncio.to_thread(paths_in_reply, reply)
    found = [(path, await _read(sandbox, path)) for path in paths]
    before = {path: content for path, content in found if content is not None}
    after = await asyncio.to_thread(apply_reply, before, reply)
    changed = [path for path in paths if before.get(path) != after.get(path)]
    for path in changed:
        try:
            if path in after:
                await sandbox.write_file(path, after[path])
            else:
                await sandbox.exec(f"rm -f -- {shlex.quote(path)}")
        except (OSError, ValueError) as error:
            raise PatchError(f"{path} can't be written: {error}") from error
    return len(changed)


async def _read(sandbox: Sandbox, path: str) -> bytes | None:
    """Read a file of the sandbox; None where there is no such file."""
    try:
        return await sandbox.read_file(path)
    except (OSError, ValueError):
        return None
