"""Python runs this file when it starts, where this folder is on its PYTHONPATH: before `sglang` is imported, replace
what it lacks on a CPU. A process that never imports it is left as it is.
"""

import sys
from importlib.abc import MetaPathFinder


class BeforeSglang(MetaPathFinder):
    """A finder that finds nothing, but puts the shims in place when `sglang` is imported."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "sglang":
            sys.meta_path.remove(self)
            from slime_swe.launch.slime_cpu.sglang_cpu import install

            install()


sys.meta_path.insert(0, BeforeSglang())
