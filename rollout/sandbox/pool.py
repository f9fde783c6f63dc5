"""`SandboxPool`: fresh sandboxes of one backend, a bounded number of them open at once."""

from __future__ import annotations

import asyncio
import difflib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from slime_swe.data_sources.task import Image
from slime_swe.dotted import load_object
from slime_swe.errors import UserError
from slime_swe.rollout.sandbox.base import Backend, Limits, Sandbox, SandboxSpec
from slime_swe.rollout.sandbox.slots import Slots

BACKENDS = {
    "local": "slime_swe.rollout.sandbox.local.LocalBackend",
    "bubblewrap": "slime_swe.rollout.sandbox.local.BubblewrapBackend",
    "subprocess": "slime_swe.rollout.sandbox.local.SubprocessBackend",
    "overlay": "slime_swe.rollout.sandbox.overlay.backend.OverlayBackend",
    "docker": "slime_swe.rollout.sandbox.docker.backend.DockerBackend",
    "apptainer": "slime_swe.rollout.sandbox.apptainer.ApptainerBackend",
    "remote": "slime_swe.rollout.sandbox.remote.RemoteBackend",
    "ray": "slime_swe.rollout.sandbox.ray.backend.RayBackend",
}


class SandboxPool:
    """Owns a backend. Belongs to one event loop; leaving it, or `close`, ends what the backend keeps running."""

    def __init__(
        self,
        backend: str = "local",
        *,
        concurrency: int = 32,
        least: int | None = None,
        limits: Limits | None = None,
        keep_free: float = 0.0,
    ) -> None:
        """`backend` is a name of `BACKENDS` or any dotted path of a callable that makes a `Backend`.

        `overlay:IMAGE` and `docker:IMAGE` say in which image tasks without one of their own run; `ray:BACKEND` opens
        the sandboxes of any of them on the nodes of a Ray cluster.

        least: with it, how many are open at once adapts to the machine, between it and `concurrency` (see `Slots`); not
        to other machines: the nodes of a Ray cluster have pools of their own.

        keep_free: GiB of the disk with the images, as `Backend.keep_free`.
        """
        if concurrency < 1:
            raise UserError(f"sandbox concurrency must be at least 1, got {concurrency}")
        if least is not None and not 1 <= least <= concurrency:
            raise UserError(f"the least sandboxes at once must be 1 to concurrency={concurrency}, got {least}")
        self._name = backend
        self._backend = make_backend(backend)
        if keep_free and not self._backend.removes_images:
            raise UserError(f"{backend} sandboxes remove no images: use {', '.join(names_that('removes_images'))}")
        self._backend.keep_free = keep_free
        self._limits = limits or Limits()
        self.slots = Slots(concurrency, least, self._backend.pressure)
        self._starting = asyncio.Lock()

    @asynccontextmanager
    async def open(
        self,
        files: Mapping[str, str | bytes],
        limits: Limits | None = None,
        image: Image | None = None,
        layers: Sequence[Path] = (),
    ) -> AsyncIterator[Sandbox]:
        """A fresh sandbox that starts with `files` written over the image, once there is a slot for it.

        layers: folders of this machine, each with a tree as seen from / (`opt/agents/NAME/…`). They lie over the image
        and below what the sandbox writes, shared by all sandboxes without a copy. A layer owns its first folder that
        holds anything other than one subfolder; the image must not have that folder. No layer may change while a
        sandbox uses it.
        """
        self._check(image, layers)
        content = {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}
        spec = SandboxSpec(content, limits or self._limits, image, tuple(layers))
        async with self.slots.slot():
            await self.start()
            started = time.monotonic()
            async with self._backend.open(spec) as sandbox:
                self.slots.opened(image, time.monotonic() - started)
                yield sandbox

    async def start(self) -> None:
        """Bring the backend up, as each `open` does. Raises `UserError`, `SandboxError`."""
        async with self._starting:
            await self._backend.start()

    async def close(self) -> None:
        await self._backend.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _check(self, image: Image | None, layers: Sequence[Path]) -> None:
        if image is not None and not self._backend.takes_images:
            raise UserError(
                f"{self._name} sandboxes run this machine's own system, and the task needs the image {image.name}: "
                f"set rollout.sandbox to one of {', '.join(names_that('takes_images'))}"
            )
        if layers and not self._backend.takes_layers:
            raise UserError(
                f"{self._name} sandboxes take no layers (asked for {layers[0]}): set rollout.sandbox to one of "
                f"{', '.join(names_that('takes_layers'))}"
            )


@asynccontextmanager
async def open_sandbox(
    backend: str, files: Mapping[str, str | bytes], limits: Limits | None = None
) -> AsyncIterator[Sandbox]:
    """One sandbox without a pool, for scripts and tests; it pays for starting the backend."""
    async with SandboxPool(backend, concurrency=1) as pool, pool.open(files, limits) as sandbox:
        yield sandbox


def make_backend(name: str) -> Backend:
    """Raises `UserError` for an unknown name, with those that there are."""
    kind, _, of = name.partition(":")
    maker = backend_maker(kind)
    if of and not (getattr(maker, "takes_images", False) or getattr(maker, "wraps", False)):
        raise UserError(f"sandbox {name!r}: {kind} takes no image; {', '.join(names_that('takes_images'))} do")
    backend: Backend = maker(*([of] if of else []))
    return backend


def on_one_machine(name: str) -> str:
    """The backend whose sandboxes these are, on whatever machine: `overlay` of `ray:overlay`."""
    kind, _, of = name.partition(":")
    return of if getattr(backend_maker(kind), "wraps", False) else name


def backend_maker(kind: str) -> Any:
    """The class of a backend, or the function that makes one. Raises `UserError`."""
    try:
        return load_object(BACKENDS.get(kind, kind), "rollout.sandbox")
    except UserError as error:
        near = difflib.get_close_matches(kind, BACKENDS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        allowed = f"{', '.join(BACKENDS)}, or a dotted path to a backend of your own"
        why = f": {error}" if "." in kind else ""
        raise UserError(f"unknown sandbox {kind!r}{hint} (available: {allowed}){why}") from error


def names_that(capability: str) -> list[str]:
    """The built-in backends that have a capability of `Backend`."""
    return [name for name in BACKENDS if getattr(backend_maker(name), capability)]
