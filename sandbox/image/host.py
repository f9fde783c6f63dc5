"""An image made of this machine's own packages, without a registry: bash, git, Python and what they need.

It is what tasks of files alone run in; libstdc++ is for real agents. Needs a Debian or Ubuntu system (its dpkg knows
which files are whose); elsewhere name an image: `rollout.sandbox=docker:python:3.12-slim`.

    python -m slime_swe.sandbox.image.host [--package NAME]... (--folder FOLDER | --tag NAME)
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import NamedTuple

from slime_swe.errors import UserError
from slime_swe.sandbox.docker import client as docker_client

HOST_IMAGE = "host"  # the name under which a task asks for it
PACKAGES = (
    "bash", "coreutils", "dash", "diffutils", "findutils", "git", "grep", "gzip", "hostname", "libstdc++6", "mawk",
    "patch", "procps", "python3", "sed", "tar", "util-linux",
)  # fmt: skip
_INFO = Path("/var/lib/dpkg/info")
_LEFT_OUT = ("/usr/share/doc/", "/usr/share/man/", "/usr/share/locale/", "/usr/share/info/", "/usr/share/lintian/")
_FOLDERS = {"dev": 0o755, "etc": 0o755, "proc": 0o555, "root": 0o700, "run": 0o755, "sys": 0o555, "tmp": 0o1777,
            "usr": 0o755, "var": 0o755, "var/tmp": 0o1777, "testbed": 0o755}  # fmt: skip
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


def identity() -> Iterator[str]:
    """Yield what an image of this machine is made of, for a fingerprint."""
    try:
        yield digest()
    except UserError:
        yield "no packages to make an image of"


def digest(packages: Sequence[str] = PACKAGES) -> str:
    """Hash what the image is made of to a short name, which changes with the machine's packages. Raises `UserError`."""
    installed = _installed()
    lines = [f"{name} {installed[name].version}" for name in _closure(packages, installed)]
    return hashlib.sha256("\n".join([*lines, Path(__file__).read_text(encoding="utf-8")]).encode()).hexdigest()[:12]


def write_tar(path: Path, packages: Sequence[str] = PACKAGES) -> None:
    """Write the image's file system as a tar file, as `docker import` takes it. Raises `UserError`, `OSError`."""
    names = b"\0".join(os.fsencode(name) for name in _contents(packages))
    flags = ["--no-recursion", "--owner=root:0", "--group=root:0", "--format=gnu", "--null", "-T", "-"]
    subprocess.run(["tar", "-C", "/", *flags, "-cf", str(path)], input=names, check=True)
    with tarfile.open(path, "a", format=tarfile.GNU_FORMAT) as tar:
        for name, mode in _FOLDERS.items():
            tar.addfile(_entry(name, tarfile.DIRTYPE, mode))
        for name in _merged():
            link = _entry(name, tarfile.SYMTYPE, 0o777)
            link.linkname = f"usr/{name}"
            tar.addfile(link)
        for name, text in _FILES.items():
            entry = _entry(name, tarfile.REGTYPE, 0o644)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))


def write_folder(folder: Path, packages: Sequence[str] = PACKAGES) -> None:
    """Unpack the image's file system into a folder that is new or empty. Raises as `write_tar` does."""
    packed = folder.with_name(f"{folder.name}.tar")
    try:
        write_tar(packed, packages)
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["tar", "-xf", str(packed), "-C", str(folder)], check=True)
    finally:
        packed.unlink(missing_ok=True)


def import_tag(name: str, packages: Sequence[str] = PACKAGES, add: Callable[[Path], None] | None = None) -> None:
    """Import the image into Docker; `add` fills its /testbed. Raises as `write_tar`; `SandboxError` if Docker fails."""
    with tempfile.TemporaryDirectory() as folder:
        packed, repository = Path(folder, "image.tar"), Path(folder, "testbed")
        write_tar(packed, packages)
        if add is not None:
            add(repository)
            with tarfile.open(packed, "a") as tar:
                for path in repository.iterdir():  # the folder itself is in the tar file, where Docker wants it once
                    tar.add(path, f"testbed/{path.name}", filter=as_root)
        docker_client.import_tar(packed, name)


class _Package(NamedTuple):
    version: str
    needs: str  # as dpkg has it: "a (>= 1), b | c"


def _installed() -> dict[str, _Package]:
    """List the machine's packages by name and by the names they provide. Raises `UserError` where there is no dpkg."""
    if shutil.which("dpkg-query") is None:
        raise UserError(
            "an image of this machine's own packages needs dpkg, which is not here: name an image, such as "
            "rollout.sandbox=docker:python:3.12-slim"
        )
    form = "${db:Status-Abbrev}\t${binary:Package}\t${Version}\t${Provides}\t${Pre-Depends}, ${Depends}\n"
    listed = subprocess.run(["dpkg-query", "-W", "-f", form], check=True, capture_output=True, text=True).stdout
    packages: dict[str, _Package] = {}
    for line in listed.splitlines():
        status, name, version, provides, needs = line.split("\t")
        if status.startswith("ii"):
            package = _Package(f"{name} {version}", needs)
            for other in (name.partition(":")[0], *_names(provides)):
                packages.setdefault(other, package)
            packages[name.partition(":")[0]] = package
    return packages


def _names(text: str) -> list[str]:
    return [name for name in re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9.+-]*)", text)]


def _closure(packages: Sequence[str], installed: Mapping[str, _Package]) -> list[str]:
    """List the packages and all that they need, one name each; what is needed and not installed is left out. Raises
    `UserError` where one of `packages` is not installed.
    """
    missing = [name for name in packages if name not in installed]
    if missing:
        raise UserError(f"the host image needs {', '.join(missing)}: apt-get install {' '.join(missing)}")
    found: dict[str, str] = {}
    waiting = list(packages)
    while waiting:
        name = waiting.pop()
        package = installed[name]
        if package.version not in found:
            found[package.version] = name
            waiting += [need for need in _names(package.needs) if need in installed]
    return sorted(found.values())


def _contents(packages: Sequence[str]) -> list[str]:
    """List the paths of this machine, without a slash before them, that the image has too."""
    installed = _installed()
    merged = _merged()
    names: set[str] = set()
    for name in _closure(packages, installed):
        full = installed[name].version.partition(" ")[0]
        listings = [_INFO / f"{name}.list" for name in (full, full.partition(":")[0])]
        listing = next(place for place in listings if place.exists())
        for path in listing.read_text(encoding="utf-8").splitlines():
            if not path.startswith(_LEFT_OUT) and path != "/." and os.path.lexists(path):
                inside = path.strip("/")
                if inside.partition("/")[0] in merged:
                    inside = f"usr/{inside}"
                if inside not in _FOLDERS:
                    names.add(inside)
    return sorted(names.union(*_alternatives(names), _compiled(names)))


def _compiled(names: Set[str]) -> Iterator[str]:
    """Yield what this machine has compiled of the Python modules among these, which no package lists: without it, each
    process in a sandbox compiles again what it imports.
    """
    modules = {name.removesuffix(".py") for name in names if name.endswith(".py")}
    for folder in {os.path.dirname(module) for module in modules}:
        place = f"{folder}/__pycache__"
        found = os.listdir(f"/{place}") if os.path.isdir(f"/{place}") else []
        for file in found:
            module, _, kind = file.partition(".")
            if kind.endswith(".pyc") and ".opt-" not in kind and f"{folder}/{module}" in modules:
                yield from (place, f"{place}/{file}")


def _alternatives(names: Set[str]) -> Iterator[tuple[str, str]]:
    """Yield the links of Debian's alternatives system to files of the image, such as `awk`; they are no package's."""
    for folder in ("/usr/bin", "/usr/sbin"):
        for link in Path(folder).iterdir():
            middle = os.readlink(link) if link.is_symlink() else ""
            if middle.startswith("/etc/alternatives/") and os.path.realpath(link).strip("/") in names:
                yield str(link).strip("/"), middle.strip("/")


def _merged() -> list[str]:
    """List the top folders that are links into /usr."""
    names = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
    return [name for name in names if os.path.islink(f"/{name}")]


def _entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = kind, mode
    return entry


def as_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Give an entry of a tar file to root, as a filter for `TarFile.add`."""
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = "root"
    return entry


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", action="append", default=[], help="one more Debian package that is installed here")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--folder", type=Path, help="unpack it into this new folder")
    where.add_argument("--tag", help="import it into Docker under this name")
    options = parser.parse_args()
    packages = (*PACKAGES, *options.package)
    try:
        if options.folder:
            write_folder(options.folder, packages)
        else:
            import_tag(options.tag, packages)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
