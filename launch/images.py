"""The container images of tasks: which are on this machine, what the others take, and getting them."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import msgspec

from slime_swe.data_sources.corpora import CORPORA
from slime_swe.data_sources.corpora.corpus import NotFetched
from slime_swe.data_sources.registry import load_tasks, parse
from slime_swe.data_sources.task import Task
from slime_swe.errors import InfrastructureError, UserError
from slime_swe.files import cache_folder, keep_in_cache
from slime_swe.launch.doctor import Machine, MachineError
from slime_swe.sandbox.base import Backend
from slime_swe.sandbox.pool import backend_maker, make_backend, names_that, on_one_machine

GIB = 1 << 30
ENOUGH = 8  # images, of which the mean is taken for that of the others
AT_ONCE = 4  # images that are got at the same time; each takes several connections already
_RATE_LIMIT = ("toomanyrequests", "rate limit")


@dataclass(frozen=True)
class Survey:
    """The images that tasks need in one kind of sandbox. here_gib: what those that are here take; None where that is
    not known. gib: what those that are missing take, as far as can be said before, and how that is known. free_gib:
    room where they go; None where that is not this machine's disk."""

    sandbox: str
    images: Sequence[str]
    missing: Sequence[str]
    here_gib: float | None
    gib: float
    how: str
    free_gib: float | None

    @property
    def fits(self) -> bool:
        return self.free_gib is None or self.gib <= self.free_gib

    def __str__(self) -> str:
        here = len(self.images) - len(self.missing)
        taken = "" if not self.here_gib else f" ({self.here_gib:,.1f} GiB)"
        said = f"{len(self.images):,} images for {self.sandbox} sandboxes: {here:,} here{taken}"
        said += f", {len(self.missing):,} missing"
        if not self.missing:
            return said
        free = "" if self.free_gib is None else f", of {self.free_gib:,.0f} GiB that are free"
        return f"{said}, which take about {self.gib:,.0f} GiB ({self.how}: {self.each:.2g} GiB each){free}"

    @property
    def each(self) -> float:
        """The size of a missing image, on average, in GiB."""
        return self.gib / max(1, len(self.missing))


def survey(tasks: Sequence[Task], sandbox: str) -> Survey:
    """Ask the sandbox's backend for each image. Where `ENOUGH` of a task set are here, those of it that are missing are
    taken to be as large, and that is kept (`measured`). Raises `UserError`, `SandboxError` where it can't tell."""
    backend = make_backend(sandbox)
    images = {task.workspace.image.name: task for task in tasks if task.workspace.image}
    found = {image: backend.has_image(image) for image in images}
    here, missing = [name for name in images if found[name]], [name for name in images if not found[name]]
    here_gib = backend.images_gib(here) if here else 0.0
    folder = backend.image_folder() if missing else None
    free = None if folder is None else shutil.disk_usage(folder).free / GIB
    sets: dict[str, list[str]] = {}
    for image in here:
        sets.setdefault(set_of(images[image]), []).append(image)
    known = dict(measured(sandbox))
    for name, those in sets.items():
        gib = here_gib if len(those) == len(here) else backend.images_gib(those)
        if gib and len(those) >= ENOUGH:
            known[name] = gib / len(those)
    if kept := {name: gib for name, gib in known.items() if name}:
        again = "plans count what is published of them"
        keep_in_cache(_sizes(sandbox), msgspec.json.encode(kept), "the sizes of images", again)
    sizes = [size_of(set_of(images[image]), _published(images[image]), backend, known) for image in missing]
    how = " and ".join(sorted({how for _, how in sizes}))
    return Survey(sandbox, list(images), missing, here_gib, sum(size for size, _ in sizes), how, free)


def set_of(task: Task) -> str:
    """Name the set whose images are taken to be of one size; empty for a task that does not name its source."""
    return f"{task.source}:{task.split}" if task.source else ""


def size_of(name: str, published: float, backend: Backend, known: Mapping[str, float]) -> tuple[float, str]:
    """Return the size of an image in GiB beside the layers that it shares, and how it is known: of the set `name` it
    was `measured`, or is `published` of its corpus, or is `assumed`. published: 0 where nothing is. known: `measured`.

    What is published may be of images that share layers, which a backend that unpacks them does not.
    """
    if name in known:
        return known[name], "measured"
    if published and (backend.shares_layers or published > backend.image_gib):
        return published, "published"
    return backend.image_gib, "assumed"


def measured(sandbox: str) -> Mapping[str, float]:
    """Read the size of an image in GiB of each set of which `survey` found `ENOUGH` images here, in this kind of
    sandbox, when it last did. It is kept in this user's cache. Raises `UserError`."""
    file = _sizes(sandbox)
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, float])
    except FileNotFoundError:
        return {}
    except msgspec.DecodeError as error:
        raise UserError(f"{file} does not hold the sizes of images ({error}): remove it") from error


def _sizes(sandbox: str) -> Path:
    return cache_folder("image_sizes") / f"{on_one_machine(sandbox).partition(':')[0]}.json"


def _published(task: Task) -> float:
    corpus = CORPORA.get(task.source)
    return corpus.splits[task.split].image_gib if corpus and task.split in corpus.splits else 0.0


def get(found: Survey) -> Iterator[tuple[str, str]]:
    """Get each missing image; yield it as it arrives, with what went wrong, which is empty for one that is here now.

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
    """Return the command that gets the images of these task sets."""
    return f"slime-swe tasks images {' '.join(map(shlex.quote, specs))} --sandbox {shlex.quote(sandbox)} --pull"


def needs_images(spec: str) -> bool:
    """Say whether any task of a set runs in an image; of a corpus that is not here, by what is known of it.

    A set that can't be read needs none: what is wrong with it is said where it is read.
    """
    try:
        return any(task.workspace.image is not None for task in load_tasks(spec))
    except NotFetched:
        return CORPORA[parse(spec).source].in_images
    except UserError:
        return False


def backends_here(machine: Machine) -> list[str]:
    """List the backends that take images and have what they need on this machine."""
    return [name for name in names_that("takes_images") if backend_maker(name).runs_here and _works(name, machine)]


def _works(name: str, machine: Machine) -> bool:
    try:
        for requirement in backend_maker(name).requirements:
            machine.ask(*requirement.argv)
    except MachineError:
        return False
    return True


def remedy(machine: Machine) -> str:
    """Say what to do where a sandbox takes no images and the tasks need them."""
    here = backends_here(machine)
    if here:
        return f"set rollout.sandbox to one that does, on this machine {' or '.join(here)}"
    names = [name for name in names_that("takes_images") if backend_maker(name).runs_here]
    return (
        f"set rollout.sandbox to one of {', '.join(names)}; none of them has what it needs on this machine yet, and "
        "`slime-swe doctor` with that sandbox says what to install"
    )
