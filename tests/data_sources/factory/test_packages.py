"""Source distributions: what is read of them, and what is code and what is tests."""

from __future__ import annotations

import zipfile

import pytest

from slime_swe.data_sources.factory.downloads import find_releases
from slime_swe.data_sources.factory.packages import read_package
from slime_swe.errors import UserError
from tests.data_sources.factory import shop


def test_code_and_tests_are_kept_apart_and_documents_are_left_out(tmp_path):
    package = shop.package(tmp_path)
    assert (package.label, package.licence, package.root) == ("shop-1.1", "MIT", "")
    assert package.code == ("shop/__init__.py", "shop/core.py")
    assert package.tests == ("tests/test_core.py",)
    assert package.protected == ("tests/__init__.py", "tests/prices.txt", "tests/test_core.py")
    assert {"README.md", "docs/conf.py"}.isdisjoint(package.files) and "setup.py" in package.files


def test_code_below_src_is_found_there(tmp_path):
    moved = {path.replace("shop/", "src/shop/"): text for path, text in shop.files().items()}
    package = read_package(shop.pack(tmp_path, moved))
    assert (package.root, package.code) == ("src", ("src/shop/__init__.py", "src/shop/core.py"))


def test_a_zip_is_read_too(tmp_path):
    with zipfile.ZipFile(tmp_path / "shop.zip", "w") as packed:
        for path, text in shop.files().items():
            packed.writestr(f"shop-1.1/{path}", text)
    assert read_package(tmp_path / "shop.zip") == shop.package(tmp_path)


def test_bytes_large_files_and_paths_that_lead_out_are_left_out(tmp_path):
    odd = {"shop/data.bin": b"\xff\0", "shop/large.py": "x = 1\n" * 100_000, "../out.py": "x = 1\n"}
    package = read_package(shop.pack(tmp_path, {**shop.files(), **odd}))
    assert package.files == shop.package(tmp_path).files


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"PKG-INFO": ""}, "no PKG-INFO with a name and a version"),
        ({"tests/test_core.py": None}, "has no tests in it"),
        ({"shop/__init__.py": None}, "has no Python code in it"),
    ],
)
def test_what_is_no_source_distribution_is_said(tmp_path, change, said):
    left = {path: text for path, text in {**shop.files(), **change}.items() if text is not None}
    with pytest.raises(UserError, match=said):
        read_package(shop.pack(tmp_path, left))


def test_a_damaged_archive_is_said(tmp_path):
    (tmp_path / "shop-1.tar.gz").write_bytes(b"no archive")
    with pytest.raises(UserError, match=r"can't read .*shop-1\.tar\.gz"):
        read_package(tmp_path / "shop-1.tar.gz")


def test_archives_of_one_package_are_taken_together_the_newest_first(tmp_path):
    newer, older = shop.releases(tmp_path)
    assert find_releases([str(older), str(newer)], 3) == [[newer, older]]


@pytest.mark.parametrize("spec", ["no/such-1.0.tar.gz", "two words", "--upgrade", "name>=1"])
def test_what_is_no_package_is_said(spec):
    with pytest.raises(UserError, match=r"is not there|is no package"):
        find_releases([spec], 0)
