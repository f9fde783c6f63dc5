"""Modules of the train loop that runs our plug-ins: SLiME, or its fork miles, which has most at the same places."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from slime_swe.dotted import is_part

PACKAGES = ("slime", "miles")


def module_of(name: str, *, of_miles: str = "") -> Any:
    """The module `slime.NAME` or `miles.NAME`, in miles `of_miles` where it lies elsewhere; None without either.

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
