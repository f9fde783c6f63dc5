"""Run one of SLiME's tools with the shims in place: python -m slime_swe.launch.rehearse.tool SCRIPT ARGUMENT ...

Megatron writes checkpoints from processes of its own, which import the main module again: it stays this one, so that
they have the shims too.
"""

from __future__ import annotations

import sys
from pathlib import Path

from slime_swe.launch.slime_cpu.shims import install


def run(script: Path) -> None:
    """Execute a script as the program that it is."""
    code = compile(script.read_text(encoding="utf-8"), str(script), "exec")
    exec(code, {"__name__": "__main__", "__file__": str(script)})


if __name__ in ("__main__", "__mp_main__"):
    install()
if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    run(Path(sys.argv[0]))
