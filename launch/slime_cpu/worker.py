"""What Ray calls first in each of its workers: the shims are put in place with PyTorch and SLiME, not before. Some of
SLiME's actors need neither (one a GPU that only says its number, a lock), and PyTorch takes seconds to import.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from wrapt import register_post_import_hook


def set_up() -> None:
    register_post_import_hook(_after_torch, "torch")
    register_post_import_hook(_after_slime, "slime")  # a package without code: none of its modules is there yet


def _after_torch(_: ModuleType) -> None:
    from slime_swe.launch.slime_cpu.shims import without_cuda

    without_cuda()


def _after_slime(_: ModuleType) -> None:
    importlib.import_module("torch")  # the shims import it, and the other hook needs all of them
    from slime_swe.launch.slime_cpu.shims import install

    install()
