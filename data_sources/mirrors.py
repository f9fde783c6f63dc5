"""Images from a registry of one's own, a mirror or a cache in place of the one that their names say."""

from __future__ import annotations

import string
from dataclasses import replace

from slime_swe.data_sources.task import Task
from slime_swe.errors import UserError

WANTED = (
    "a registry's address and a path in it, as mirror.example:5000/swe, or an image's whole name with {name} (what it "
    "is called elsewhere) or {id} (the task's)"
)
_FIELDS = {"name", "id"}
_DOCKER = "docker://"  # as Apptainer names what Docker would pull


def is_registry(text: str) -> bool:
    """Whether it is what `WANTED` says."""
    try:
        fields = {field for _, field, *_ in string.Formatter().parse(text) if field is not None}
    except ValueError:  # a brace alone
        return False
    return bool(text) and "://" not in text and not any(map(str.isspace, text)) and fields <= _FIELDS


def mirrored(task: Task, registry: str) -> Task:
    """The task with its image from there. One that is no registry's, as a folder or a `.sif` file, stays.

    Raises `UserError` for what is no registry.
    """
    if not is_registry(registry):
        raise UserError(f"registry={registry!r} is no registry: give {WANTED}")
    image = task.workspace.image
    if image is None:
        return task
    named = replace(image, name=name_in(registry, image.name, task.id))
    return replace(task, workspace=replace(task.workspace, image=named))


def name_in(registry: str, name: str, task_id: str) -> str:
    """What an image that Docker knows by `name` is called in the registry."""
    scheme, name = (_DOCKER, name.removeprefix(_DOCKER)) if name.startswith(_DOCKER) else ("", name)
    if name.startswith(("/", "dir:")) or name.endswith(".sif") or "://" in name:
        return name
    if name.startswith(f"{registry.rstrip('/')}/"):
        return scheme + name  # it is that registry's already
    host, slash, path = name.partition("/")
    if not slash:
        path = f"library/{name}"  # Docker's own images
    elif not ("." in host or ":" in host or host == "localhost"):
        path = name
    whole = registry if "{" in registry else f"{registry.rstrip('/')}/{{name}}"
    return scheme + whole.format(name=path, id=task_id)
