"""The fixtures hold tests of the corpora's programs, which are not ours to run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from slime_swe.errors import UserError
from slime_swe.sandbox.cache import made_once
from slime_swe.sandbox.image import host as host_image

collect_ignore_glob = ["fixtures/*"]


@pytest.fixture(scope="session")
def host_base(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Make a folder the image of this machine's own packages. It is written once for a run, whose workers share it, and
    each folder links its files: replace one, and never write into it."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent

    def fill(folder: Path) -> Path:
        try:
            base = made_once(shared / "host-image", host_image.write_folder)
        except UserError as error:
            pytest.skip(str(error))
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-al", f"{base}/.", str(folder)], check=True)
        return folder

    return fill
