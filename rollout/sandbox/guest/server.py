"""What a sandbox's first process does: answer the host, one request at a time, until the host is gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import files, wire
from .commands import Commands
from .wire import Channel

Answer = tuple[dict[str, Any], bytes]


class Server:
    """Answers `exec`, `read`, `write` and `changes`. An `OSError` is an answer, not a failure."""

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._initial: dict[str, bytes] = {}

    def serve(self, channel: Channel) -> None:
        """Returns when the host has closed its end; nothing else is running then."""
        try:
            while True:
                request, blob = channel.receive()
                if request["op"] != "cancel":  # one that comes too late has nothing to cancel
                    channel.send(*self.answer(request, blob))
        except EOFError:
            pass
        finally:
            self._commands.close()

    def answer(self, request: Mapping[str, Any], blob: bytes) -> Answer:
        try:
            answer: Answer = getattr(self, f"_{request['op']}")(request, blob)
            return answer
        except OSError as error:
            return {"errno": error.errno, "error": error.strerror, "path": str(error.filename)}, b""
        except UnicodeEncodeError as error:
            return {"errno": 2, "error": f"not a path: {error.reason}", "path": ""}, b""

    def _exec(self, request: Mapping[str, Any], blob: bytes) -> Answer:
        outcome = self._commands.run(request["command"], request["seconds"])
        head, tail = outcome.output.parts()
        answer = {"exit_code": outcome.exit_code, "seconds": outcome.seconds}
        return {**answer, "head": len(head), "missing": outcome.output.missing}, head + tail

    def _start(self, request: Mapping[str, Any], blob: bytes) -> Answer:
        """The files that the sandbox starts with, which `changes` compares with."""
        self._initial = wire.unpack_files(request["files"], blob)
        files.write(self._initial)
        return {}, b""

    def _read(self, request: Mapping[str, Any], blob: bytes) -> Answer:
        return {}, files.read(request["path"])

    def _write(self, request: Mapping[str, Any], blob: bytes) -> Answer:
        files.write(wire.unpack_files(request["files"], blob))
        return {}, b""

    def _changes(self, request: Mapping[str, Any], blob: bytes) -> Answer:
        changes = files.changes(self._initial)
        index, contents = wire.pack_files(changes.files.items())
        return {"files": index, "oversized": changes.oversized, "deleted": changes.deleted}, contents
