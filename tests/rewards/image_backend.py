"""Local sandboxes that hold what an image would: repositories by image name, laid as files. No Docker is needed."""

from __future__ import annotations

import dataclasses
import subprocess
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from slime_swe.sandbox import SandboxPool
from slime_swe.sandbox.base import SandboxSpec
from slime_swe.sandbox.local import LocalBackend, LocalSandbox

IMAGES: dict[str, dict[str, bytes]] = {}
_COMMIT = """\
git init --quiet --initial-branch=main
git add --all --force
git -c user.name=a -c user.email=a@b commit --quiet --message=base
"""


class ImageBackend(LocalBackend):
    """Opens what `IMAGES` holds under the image's name, with the task's files over it."""

    takes_images = True

    def open(self, spec: SandboxSpec) -> LocalSandbox:
        held = IMAGES[spec.image.name] if spec.image else {}
        return super().open(dataclasses.replace(spec, files={**held, **spec.files}, image=None))


def backend() -> ImageBackend:
    return ImageBackend()


@asynccontextmanager
async def sandboxes_with(image: str, files: Mapping[str, str | bytes]) -> AsyncIterator[SandboxPool]:
    """Sandboxes that have an image of this name, a repository of these files."""
    IMAGES[image] = committed(files)
    async with SandboxPool(f"{__name__}.backend") as pool:
        yield pool


def committed(files: Mapping[str, str | bytes]) -> dict[str, bytes]:
    """These files in a git repository with one commit, `.git` and all."""
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        for path, content in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content.encode() if isinstance(content, str) else content)
        subprocess.run(["bash", "-euc", _COMMIT], cwd=root, check=True, capture_output=True)
        found = (path for path in root.rglob("*") if path.is_file() and "hooks" not in path.parts)
        return {str(path.relative_to(root)): path.read_bytes() for path in found}
