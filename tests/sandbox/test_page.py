"""The sizes, numbers and seconds that docs/sandboxes.md states are the code's."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from slime_swe.patches import MAX_PATCH_BYTES
from slime_swe.sandbox.base import Backend
from slime_swe.sandbox.bubblewrap import _SANDBOX_USERS
from slime_swe.sandbox.docker import container
from slime_swe.sandbox.guest import files, processes
from slime_swe.sandbox.overlay.backend import OverlayBackend
from slime_swe.sandbox.ray import nodes
from slime_swe.sandbox.ray.backend import RayBackend
from slime_swe.sandbox.ray.ports import MAX_CONNECTIONS

PAGE = Path(__file__).parents[2] / "docs" / "sandboxes.md"
RAY = {name: one.default for name, one in inspect.signature(RayBackend.__init__).parameters.items()}


@pytest.mark.parametrize(
    "stated",
    [
        f"`read_file` raises `OSError` beyond {files.MAX_FILE_BYTES >> 20} MiB",
        f"grown by more than {files.MAX_FILE_BYTES >> 20} MiB, or beyond {files.MAX_GROWTH_BYTES >> 20} MiB of growth",
        f"a patch of more than {MAX_PATCH_BYTES >> 20} MiB, or names of more than {files.MAX_NAME_BYTES >> 20} MiB "
        f"(`docker`: or {container._MOST_BYTES >> 30} GiB more than the image had)",
        f"to one that no other open sandbox has, up to {_SANDBOX_USERS:,} at once",
        f"{processes.OPEN_FILES:,} for each process",
        f"{processes._PENDING_SIGNALS:,}, {processes._QUEUE_BYTES >> 10} KiB, {processes._LOCKED_BYTES >> 20} MiB",
        f"or {Backend.image_gib} GiB in Docker, whose images share layers, and {OverlayBackend.image_gib:g} GiB as a",
        f"A node takes {RAY['per_cpu']:g} at once for each CPU that Ray counts, and down to {RAY['least_per_cpu']:g} ",
        f"A task's files of more than {nodes.SENT_FILES >> 10} KiB go into Ray's object store",
        f"A port has {MAX_CONNECTIONS} connections at once",
        f"its actor is made again, at the earliest after {nodes.RETRY_SECONDS:g} seconds",
        f"an actor that is silent for {RAY['silence']:g} seconds",
        f"opening waits {nodes.START_SECONDS / 60:g} minutes for one",
    ],
)
def test_a_stated_figure_is_the_code_s(stated: str) -> None:
    text = re.sub(r" ?<!--.*?-->", "", PAGE.read_text(encoding="utf-8"))
    assert stated in " ".join(text.split())
