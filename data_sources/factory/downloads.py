"""Source distributions: files that are given, or those of a package index, kept in the cache.

They are taken from the index's own pages (PEP 503): pip would run a package's `setup.py` or build backend to know its
dependencies. The index is pip's (`index-url`, `extra-index-url`). One that wants a password in its address is not read.
"""

from __future__ import annotations

import hashlib
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import unquote, urldefrag, urljoin
from urllib.request import Request, urlopen

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name, parse_sdist_filename
from packaging.version import InvalidVersion, Version

from slime_swe import syntax
from slime_swe.data_sources.factory.packages import ARCHIVES
from slime_swe.errors import UserError
from slime_swe.files import cache_folder, replace_file, writing

SECONDS = 180.0  # without an answer
INDEX = "https://pypi.org/simple"
_SPEC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(==[A-Za-z0-9.!+_-]+)?")


@dataclass(frozen=True)
class Release:
    """An archive of an index. sha256: empty where the index does not say it."""

    version: Version
    url: str
    sha256: str = ""


def find_releases(specs: list[str], pairs: int) -> list[list[Path]]:
    """Find for each package its archives, the newest first: of a name, up to `pairs` releases before it as well.

    specs: `NAME`, `NAME==VERSION`, or paths of archives; those of one package are taken together. Raises `UserError`
    for what is none of these, and what no index has.
    """
    files: dict[str, list[Path]] = {}
    found: list[list[Path]] = []
    for spec in specs:
        if spec.endswith(ARCHIVES):
            path = Path(spec).expanduser()
            if not path.is_file():
                raise UserError(f"{spec} is not there: give the path of a source distribution, or a package's name")
            files.setdefault(_named(path)[0], []).append(path)
        elif not _SPEC.fullmatch(spec):
            raise UserError(f"{spec!r} is no package: write NAME, NAME==VERSION, or the path of a source distribution")
    found += [sorted(paths, key=lambda path: _named(path)[1], reverse=True) for paths in files.values()]
    return found + [_of_name(spec, pairs) for spec in specs if not spec.endswith(ARCHIVES)]


def _of_name(spec: str, pairs: int) -> list[Path]:
    """Get the archives of one `NAME` or `NAME==VERSION`. Raises `UserError`."""
    name, _, version = spec.partition("==")
    if version and not pairs and (kept := _kept(name, version)):
        return [kept]
    known = releases(name)
    wanted = _version(version) or next((one.version for one in known if not one.version.is_prerelease), None)
    newest = next((one for one in known if one.version == wanted), None)
    if newest is None:
        raise UserError(f"no source distribution of {spec} is in {_shown(', '.join(indexes()))}: give the path of one")
    older = [one for one in known if one.version < newest.version and not one.version.is_prerelease]
    return [download(one) for one in (newest, *older[:pairs])]


def releases(name: str) -> list[Release]:
    """Return the source distributions that this Python may use, the newest first. Raises `UserError`."""
    found: dict[Version, Release] = {}
    for index in indexes():
        page = f"{index.rstrip('/')}/{canonicalize_name(name)}/"
        try:
            content = _get(page, "text/html")
        except HTTPError as error:
            if error.code == 404:
                continue
            raise UserError(
                f"the package index answers {error.code} for {_shown(page)}: give an archive's path"
            ) from error
        except OSError as error:
            if not page.startswith("file:"):  # a folder that has nothing of this package
                raise UserError(
                    f"can't read {_shown(page)} ({error}): is the index reachable? Or give a path"
                ) from error
            continue
        for release in _on(page, content.decode("utf-8", "replace")):
            found.setdefault(release.version, release)
    return sorted(found.values(), key=lambda one: one.version, reverse=True)


def indexes() -> list[str]:
    """Return the addresses of pip's indexes, by its files and the environment."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    first, more = "", list[str]()
    for line in printed.splitlines():  # those of the environment are the first
        key, _, value = line.partition("=")
        if key.endswith(".index-url"):
            first = first or syntax.literal_eval(value)
        elif key.endswith(".extra-index-url"):
            more += syntax.literal_eval(value).split()
    return [first or INDEX, *more]


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found.append(dict(attrs))


def _on(page: str, content: str) -> Iterator[Release]:
    links = _Links()
    links.feed(content)
    for link in links.found:
        url, fragment = urldefrag(urljoin(page, link.get("href") or ""))
        name = unquote(url.rpartition("/")[2])
        if "/" in name or not name.endswith(ARCHIVES) or "data-yanked" in link or not _is_for_this_python(link):
            continue
        try:
            version = parse_sdist_filename(_as_sdist(name))[1]
        except ValueError:
            continue
        yield Release(version, url, fragment.removeprefix("sha256=") if fragment.startswith("sha256=") else "")


def _is_for_this_python(link: dict[str, str | None]) -> bool:
    try:
        return SpecifierSet(link.get("data-requires-python") or "").contains(platform.python_version())
    except InvalidSpecifier:
        return True


def download(release: Release) -> Path:
    """Return the archive, from the cache where it is there. Raises `UserError`."""
    place = cache_folder("sdists") / unquote(release.url.rpartition("/")[2])
    if place.is_file():
        return place
    try:
        content = _get(release.url)
    except OSError as error:
        raise UserError(f"can't get {_shown(release.url)} ({error}): give the path of a source distribution") from error
    if release.sha256 and hashlib.sha256(content).hexdigest() != release.sha256:
        raise UserError(f"{_shown(release.url)} is not what the index says it is: its SHA-256 is another")
    with writing(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        replace_file(place, content)
    return place


def _get(url: str, kind: str = "*/*") -> bytes:
    """Read what is at an address. Raises `OSError`."""
    try:
        with urlopen(Request(url, headers={"Accept": kind}), timeout=SECONDS) as answer:
            content: bytes = answer.read()
            return content
    except (HTTPException, ValueError) as error:  # it broke off; no address
        raise OSError(type(error).__name__) from error


def _shown(address: str) -> str:
    """Return the address without the password that it may hold."""
    return re.sub("//[^/@]*@", "//", address)


def _kept(name: str, version: str) -> Path | None:
    folder, wanted = cache_folder("sdists"), (canonicalize_name(name), _version(version))
    kept = [path for path in folder.iterdir() if path.name.endswith(ARCHIVES)] if folder.is_dir() else []
    return next((path for path in sorted(kept) if _named(path) == wanted), None)


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _as_sdist(name: str) -> str:
    return re.sub(r"\.(tgz|tar\.bz2|tar\.xz)$", ".tar.gz", name)


def _named(path: Path) -> tuple[str, Version]:
    """Read name and version off the file's name; what it does not tell is the stem, and version 0."""
    try:
        found = parse_sdist_filename(_as_sdist(path.name))
        return str(found[0]), found[1]
    except ValueError:
        return str(canonicalize_name(path.stem)), Version("0")
