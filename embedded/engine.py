"""The engine thread: owns the model, takes requests and commands from other threads, computes step after step."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from slime_swe.embedded.exact_forward import Decoder, KVCache
from slime_swe.embedded.forward import recompute_log_probs
from slime_swe.embedded.model import Qwen2, read_tensors
from slime_swe.embedded.scheduler import Decode, Request, Scheduler
from slime_swe.embedded.train_data import TrainData

T = TypeVar("T")


class EngineStopped(RuntimeError):
    """The engine thread has ended; nothing more will be computed."""


class Engine:
    """Everything public may be called from any thread. `on_exit` runs on the engine's thread when it ends."""

    def __init__(
        self,
        model: Qwen2,
        *,
        slots: int,
        max_length: int,
        decode: Decode,
        on_exit: Callable[[], None] = lambda: None,
    ) -> None:
        cache = KVCache(model.config, slots, max_length)
        self.model = model
        self.scheduler = Scheduler(Decoder(model, cache), decode)
        self.paused = False
        self.model_path = ""
        self._on_exit = on_exit
        self._held: list[Request] = []  # that came while it was paused
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._running = True
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; requests in flight are aborted."""
        with self._wake:
            self._running = False
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    def submit(self, request: Request) -> None:
        """Queue a request; its `done` is called on the engine's thread. While the engine is paused it is held back, and
        is not aborted with those that came before: as in SGLang.
        """
        self._post(lambda: self._held.append(request) if self.paused else self.scheduler.add(request))

    def drop(self, request: Request) -> None:
        """Forget a request that nobody waits for."""

        def drop() -> None:
            if request in self._held:
                self._held.remove(request)
            else:
                self.scheduler.abort(lambda other: other is request)

        self._post(drop)

    @property
    def waiting(self) -> int:
        """The number of requests that are yet to be begun."""
        return len(self.scheduler.waiting) + len(self._held)

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run `function` on the engine's thread, between two steps."""
        future: Future[T] = Future()
        self._post(lambda: _settle(future, function))
        return future

    def abort(self, rid: str | None) -> Future[int]:
        """End the request `rid`, or all where None; return how many there were."""
        return self.call(lambda: self.scheduler.abort(lambda request: rid in (None, request.rid)))

    def pause(self, mode: str) -> Future[None]:
        """Run nothing until `resume`. Requests end (`abort`), go back to the queue (`retract`) or stay (`in_place`)."""

        def pause() -> None:
            self.paused = True
            if mode == "abort":
                self.scheduler.abort(lambda _: True)
            elif mode == "retract":
                self.scheduler.retract()

        return self.call(pause)

    def resume(self) -> Future[None]:
        return self.call(self._resume)

    def _resume(self) -> None:
        self.paused = False
        held, self._held = self._held, []
        for request in held:
            self.scheduler.add(request)

    def flush(self) -> Future[bool]:
        return self.call(self.scheduler.flush)

    def score(self, tokens: list[int], start: int) -> Future[tuple[list[float], str]]:
        """Return each token's log-probability after the one at `start`, and the version of the weights that gave it.

        They are computed at once, and all other requests wait meanwhile."""

        def score() -> tuple[list[float], str]:
            mask = [1] * (len(tokens) - start - 1)
            data = TrainData([tokens], [mask], [], [], [], [])
            (log_probs,) = recompute_log_probs(self.model, data, [0], 1.0, len(tokens))
            return log_probs, self.scheduler.weight_version

        return self.call(score)

    def update_weights(self, directory: Path, version: str | None) -> Future[None]:
        """Load `directory`'s tensors; raises CheckpointError, and keeps the old weights, where they don't fit.

        Active requests go on under the new weights from what they have sampled, with their context recomputed.
        """

        def update() -> None:
            self.model.load_tensors(read_tensors(directory))
            self.scheduler.retract()
            self.scheduler.flush()
            self.scheduler.decoder.load(self.model)
            self.model_path = str(directory)
            if version is not None:
                self.scheduler.weight_version = version

        return self.call(update)

    def _post(self, item: Callable[[], None]) -> None:
        with self._wake:
            if not self._running:
                raise EngineStopped("the engine has stopped; restart the server")
            self._inbox.append(item)
            self._wake.notify()

    def _run(self) -> None:
        try:
            while self._running:
                self._drain()
                if self.scheduler.busy and not self.paused:
                    self.scheduler.step()
                else:
                    self._sleep()
        finally:  # also where a step raised: nobody may wait for a thread that is gone
            with self._wake:
                self._running = False
            self._drain()
            self._resume()
            self.scheduler.abort(lambda _: True, "the engine stopped", 503)
            self._on_exit()

    def _drain(self) -> None:
        while self._inbox:
            self._inbox.popleft()()

    def _sleep(self) -> None:
        with self._wake:
            while self._running and not self._inbox and (self.paused or not self.scheduler.busy):
                self._wake.wait()


def _settle(future: Future[T], function: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except BaseException as error:  # handed to the caller, who waits for it
        future.set_exception(error)
