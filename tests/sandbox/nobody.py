"""A user who is not root, and has no cgroups."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec

REPOSITORY = Path(__file__).parents[2]
PYTHON = "/usr/bin/python3"  # one that another user may run
NOBODY = 65534


@dataclass(frozen=True)
class Nobody:
    """Runs Python scripts, with a home that all of them share: the image that is made there is made once."""

    home: Path

    RIGHTS: ClassVar[dict[str, Any]] = {"user": NOBODY, "group": NOBODY, "extra_groups": []}

    @classmethod
    def at(cls, home: Path) -> Nobody:
        os.chown(home, NOBODY, NOBODY)
        packages = (REPOSITORY / "src" / "slime_swe", Path(msgspec.__file__).parent)
        for package in packages:  # copied, since these may be closed to others
            shutil.copytree(package, home / "lib" / package.name, ignore=shutil.ignore_patterns("__pycache__"))
        return cls(home)

    @classmethod
    def why_not(cls) -> str | None:
        """The reason that there is no such user here, or None."""
        if os.geteuid() != 0:
            return "the rest of the suite runs without root then"
        probe = [PYTHON, "-c", f"import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"]
        if not os.path.exists(PYTHON) or subprocess.run(probe, **cls.RIGHTS).returncode:
            return f"{PYTHON} is not the Python of these tests"
        if subprocess.run(["unshare", "--user", "--mount", "true"], **cls.RIGHTS).returncode:
            return "no unprivileged user namespaces"
        return None

    def run(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "PYTHONPATH": f"{self.home}/lib",
            "HOME": str(self.home),
            "PATH": os.environ["PATH"],
        }
        command = [PYTHON, "-B", "-c", script, *arguments]
        return subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, **self.RIGHTS)
