"""Source distributions from a package index: a folder of pages on a real HTTP server."""

from __future__ import annotations

import hashlib
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from slime_swe.data_sources.factory.downloads import find_releases
from slime_swe.errors import UserError
from tests.data_sources.factory import shop


@pytest.fixture
def index(tmp_path, monkeypatch):
    """Its folder of the package `shop`; a `setup.py` there writes a file `ran` beside it, were it executed."""
    folder = tmp_path / "simple" / "shop"
    folder.mkdir(parents=True)
    links = []
    for version, more in (
        ("1.0", ""),
        ("1.1", ""),
        ("1.2", ""),
        ("1.3", 'data-yanked=""'),
        ("1.4", 'data-requires-python="&lt;3"'),
        ("2.0rc1", ""),
    ):
        files = {**shop.files(version=version), "setup.py": f"open({str(tmp_path / 'ran')!r}, 'w')\n"}
        archive = shop.pack(folder, files, f"shop-{version}")
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        links.append(f'<a href="{archive.name}#sha256={digest}" {more}>{archive.name}</a>')
    links += ['<a href="shop-9.0-py3-none-any.whl">wheel</a>', '<a href="a%2F..%2Fshop-8.0.tar.gz">elsewhere</a>']
    (folder / "index.html").write_text("\n".join(links))
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        try:
            yield folder
        finally:
            server.shutdown()
            thread.join()


def names(found):
    return [[path.name for path in paths] for paths in found]


def test_the_newest_final_release_and_those_before_it(index, tmp_path):
    assert names(find_releases(["Shop"], 5)) == [["shop-1.2.tar.gz", "shop-1.1.tar.gz", "shop-1.0.tar.gz"]]
    assert names(find_releases(["shop==1.1"], 1)) == [["shop-1.1.tar.gz", "shop-1.0.tar.gz"]]
    assert names(find_releases(["shop==2.0rc1"], 0)) == [["shop-2.0rc1.tar.gz"]]
    assert not (tmp_path / "ran").exists()


def test_a_version_that_is_kept_needs_no_index(index, monkeypatch):
    (first,) = find_releases(["shop==1.1"], 0)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert find_releases(["shop==1.1"], 0) == [first]


@pytest.mark.parametrize("spec", ["nothing", "shop==3.0"])
def test_what_the_index_lacks_is_said(index, spec):
    with pytest.raises(UserError, match=f"no source distribution of {spec} is in http://127"):
        find_releases([spec], 0)


def test_an_archive_that_was_changed_is_refused(index):
    (index / "shop-1.2.tar.gz").write_bytes(b"other")
    with pytest.raises(UserError, match="its SHA-256 is another"):
        find_releases(["shop"], 0)


@pytest.mark.parametrize("address", ["http://me:secret@127.0.0.1:9/simple", "nowhere"])
def test_an_index_that_can_not_be_read_is_said_without_its_password(monkeypatch, tmp_path, address):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_INDEX_URL", address)
    with pytest.raises(UserError, match="is the index reachable") as error:
        find_releases(["shop"], 0)
    assert "secret" not in str(error.value)
