"""Find an object by its dotted path, or by a short name that a registry maps to one. Find a module of the train loop
that runs our plug-ins, which is SLiME or its fork miles."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

from slime_swe.errors import UserError, unknown

PACKAGES = ("slime", "miles")  # train loops: the fork has most at the same places


def load_object(path: str, where: str) -> Any:
    """Return the object at `module.attribute`. `where` names the setting that holds the path, for the error.

    The current folder is searched too, after everything else, so that a module of the user's own is found wherever
    Python was started from. Raises `UserError`; an error inside the module itself is not caught.
    """
    module_name, _, attribute = path.rpartition(".")
    if not module_name or not all(part.isidentifier() for part in path.split(".")):
        raise UserError(f"{where}={path!r} is no dotted path: write module.attribute")
    search_current_folder()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not is_part(error.name, module_name):
            raise UserError(f"{where}={path!r}: it imports {error.name!r}, which is not installed") from error
        raise UserError(f"{where}={path!r}: there is no module {error.name!r}") from error
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        raise UserError(f"{where}={path!r}: module {module_name} has no {attribute!r}") from error


def load_registered(name: str, registry: Mapping[str, str], where: str) -> Any:
    """Return the object that `name` stands for in `registry`, or that at the dotted path `name`. Raises `UserError`."""
    if name not in registry and "." not in name:
        raise UserError(f"{unknown(where, name, registry)}, or a dotted path of your own")
    return load_object(registry.get(name, name), where)


def module_of(name: str, *, of_miles: str = "") -> Any:
    """Import the module `slime.NAME` or `miles.NAME`, in miles `of_miles` where it lies elsewhere; None without either.

    Where both are installed, it is that of the one which this process runs. A package that one of them needs and that
    is missing raises `ModuleNotFoundError`.
    """
    for package in sorted(PACKAGES, key=lambda package: package not in sys.modules):
        path = f"{package}.{of_miles if of_miles and package == 'miles' else name}"
        try:
            return importlib.import_module(path)
        except ModuleNotFoundError as error:
            if not is_part(error.name, path):
                raise
    return None


def is_part(missing: str | None, module: str) -> bool:
    """Say whether `missing` is `module` or one of the packages that hold it, and not something that it imports."""
    return missing is not None and f"{module}.".startswith(f"{missing}.")


def search_current_folder() -> None:
    """Make modules of the current folder importable, after all others."""
    folder = os.getcwd()
    if "" not in sys.path and folder not in sys.path:
        sys.path.append(folder)
