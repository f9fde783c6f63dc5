"""The container images of tasks: which are on this machine, what the others take, and getting them."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from slime_swe.data_sources.corpora import CORPORA
from slime_swe.data_sources.corpora.corpus import NotFetched
from slime_swe.data_sources.registry import load_tasks, parse
from slime_swe.data_sources.task import Task
from slime_swe.errors import InfrastructureError, UserError
from slime_swe.launch.doctor.machine import Machine, MachineError
from slime_swe.rollout.sandbox.pool import backend_maker, make_backend, names_that

GIB = 1 << 30
AT_ONCE = 4  # images that are got at the same time; each takes several connections already
_RATE_LIMIT = ("toomanyrequests", "rate limit")


@dataclass(frozen=True)
class Survey:
    """Images that tasks need in one kind of sandbox. gib: what those that are missing take, as far as can be said
    before. free_gib: room where they go; None where that is not this machine's disk."""

    sandbox: str
    images: Sequence[str]
    missing: Sequence[str]
    gib: float
    free_gib: float | None

    @property
    def fits(self) -> bool:
        return self.free_gib is None or self.gib <= self.free_gib

    def __str__(self) -> str:
        here = len(self.images) - len(self.missing)
        said = f"{len(self.images):,} images for {self.sandbox} sandboxes: {here:,} here, {len(self.missing):,} missing"
        if not self.missing:
            return said
        free = "" if self.free_gib is None else f", of {self.free_gib:,.0f} GiB that are free"
        each = make_backend(self.sandbox).image_gib
        return f"{said}, which take about {self.gib:,.0f} GiB (assumed: {each:g} GiB each){free}"


def survey(tasks: Sequence[Task], sandbox: str) -> Survey:
    """Asks the sandbox's backend for each image. Raises `UserError`, `SandboxError` where it can't tell."""
    backend = make_backend(sandbox)
    images = list(dict.fromkeys(task.workspace.image.name for task in tasks if task.workspace.image))
    missing = [image for image in images if not backend.has_image(image)]
    folder = backend.image_folder() if missing else None
    free = None if folder is None else shutil.disk_usage(folder).free / GIB
    return Survey(sandbox, images, missing, len(missing) * backend.image_gib, free)


def get(found: Survey) -> Iterator[tuple[str, str]]:
    """Each missing image as it arrives, with what went wrong; that is empty for one that is here now.

    Raises `UserError` where a registry gives no more for now: what came stays, and the same command goes on.
    """
    backend = make_backend(found.sandbox)
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="images") as pool:
        try:
            waiting = {pool.submit(backend.get_image, image): image for image in found.missing}
            for done in as_completed(waiting):
                error = done.exception()
                if error is not None and not isinstance(error, UserError | InfrastructureError):
                    raise error
                if any(words in str(error).lower() for words in _RATE_LIMIT):
                    raise UserError(
                        f"the registry gives no more images for now ({error}): `docker login` raises the limit, and "
                        "the same command goes on where this one ended"
                    )
                yield waiting[done], "" if error is None else str(error)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def images_command(specs: Sequence[str], sandbox: str) -> str:
    """What gets the images of these task sets."""
    return f"slime-swe tasks images {' '.join(map(shlex.quote, specs))} --sandbox {shlex.quote(sandbox)} --pull"


def needs_images(spec: str) -> bool:
    """Whether any task of a set runs in an image; of a corpus that is not here, by what is known of it.

    A set that can't be read needs none: what is wrong with it is said where it is read.
    """
    try:
        return any(task.workspace.image is not None for task in load_tasks(spec))
    except NotFetched:
        return CORPORA[parse(spec).source].in_images
    except UserError:
        return False


def backends_here(machine: Machine) -> list[str]:
    """The backends that take images and have what they need on this machine."""
    return [name for name in names_that("takes_images") if backend_maker(name).runs_here and _works(name, machine)]


def _works(name: str, machine: Machine) -> bool:
    try:
        for requirement in backend_maker(name).requirements:
            machine.ask(*requirement.argv)
    except MachineError:
        return False
    return True


def remedy(machine: Machine) -> str:
    """What to do where a sandbox takes no images and the tasks need them."""
    here = backends_here(machine)
    if here:
        return f"set rollout.sandbox to one that does, on this machine {' or '.join(here)}"
    names = [name for name in names_that("takes_images") if backend_maker(name).runs_here]
    return (
        f"set rollout.sandbox to one of {', '.join(names)}; none of them has what it needs on this machine yet, and "
        "`slime-swe doctor` with that sandbox says what to install"
    )
