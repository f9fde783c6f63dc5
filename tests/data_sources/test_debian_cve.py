"""Fixes from Debian's source packages: as archives, as trees, with and without their patches applied."""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from slime_swe.data_sources.corpora.debian_cve import fixes_in
from slime_swe.data_sources.registry import load_tasks
from slime_swe.data_sources.vulnerability import weaknesses_in
from slime_swe.errors import UserError

TOY = Path(__file__).parent / "fixtures" / "debian_cve" / "toy-1.0"


def archived(folder: Path, *, original: bool = True) -> Path:
    """The toy as `apt-get source --download-only` leaves it."""
    with tarfile.open(folder / "toy_1.0-1.debian.tar.xz", "w:xz") as tar:
        tar.add(TOY / "debian", "debian")
    if original:
        with tarfile.open(folder / "toy_1.0.orig.tar.gz", "w:gz") as tar:
            tar.add(TOY / "toy.c", "toy-1.0/toy.c")
    return folder


def test_patches_are_applied_in_their_order_and_those_that_prepare_a_fix_are_none():
    first, second = fixes_in(TOY)
    assert (first.package, first.patch, first.path, first.cves) == (
        "toy",
        "CVE-2024-0001.patch",
        "toy.c",
        ("CVE-2024-0001",),
    )
    assert first.cwes == ("CWE-125",) and first.date == "2023-10-14T22:45:54+02:00"
    assert second.date == "2024-02-03T00:00:00+00:00"
    assert first.before.startswith("/* A toy,\n   of two lines. */\n"), "the patch before it is in the text"
    assert first.after != second.before and "stddef.h" in second.before and "at >= size" in second.before


def test_an_archive_and_a_tree_say_the_same(tmp_path):
    expected = [*fixes_in(TOY)]
    assert [*fixes_in(archived(tmp_path))] == expected
    assert [*fixes_in(TOY.parent)] == expected


@pytest.mark.skipif(shutil.which("patch") is None, reason="GNU patch is not installed here")
def test_a_tree_with_its_patches_applied_says_the_same(tmp_path):
    """As dpkg-source leaves it: the patches applied, by GNU patch, and in .pc what was there before each."""
    tree = Path(shutil.copytree(TOY, tmp_path / "toy"))
    names = [line.split()[0] for line in (tree / "debian/patches/series").read_text().splitlines() if line[0] != "#"]
    for name in names:
        kept = tree / ".pc" / name
        kept.mkdir(parents=True)
        shutil.copy(tree / "toy.c", kept / "toy.c")
        subprocess.run(["patch", "-p1", "-F0", "-s", "-i", f"debian/patches/{name}"], cwd=tree, check=True)
    (tree / ".pc/applied-patches").write_text("".join(f"{name}\n" for name in names))
    assert [*fixes_in(tree)] == [*fixes_in(TOY)]


def test_a_patch_that_does_not_fit_and_what_follows_it_in_its_file_are_left_out(tmp_path):
    tree = Path(shutil.copytree(TOY, tmp_path / "toy"))
    patch = tree / "debian/patches/CVE-2024-0002-pre1.patch"
    patch.write_text(patch.read_text().replace(" #include", " #exclude"))
    assert [fix.patch for fix in fixes_in(tree)] == ["CVE-2024-0001.patch"]


def test_a_patch_reaches_no_file_outside_of_its_tree(tmp_path):
    tree = Path(shutil.copytree(TOY, tmp_path / "toy"))
    (tree / "toy.c").rename(tmp_path / "toy.c")
    for patch in (tree / "debian/patches").glob("*.patch"):
        patch.write_text(patch.read_text().replace("/toy.c", "/../toy.c"))
    assert [*fixes_in(tree)] == []


@pytest.mark.parametrize("broken", ["orig", "archive", "nothing"])
def test_what_is_missing_is_said(tmp_path, broken):
    said = {
        "orig": r"has patches alone.*toy_1.0.orig.tar.\*.*apt-get source --download-only toy",
        "archive": "toy_1.0-1.debian.tar.xz can't be read",
        "nothing": "holds no source package of Debian",
    }
    if broken == "orig":
        archived(tmp_path, original=False)
    elif broken == "archive":
        archived(tmp_path)
        (tmp_path / "toy_1.0-1.debian.tar.xz").write_bytes(b"\xfd7zXZ\x00 and no more")
    with pytest.raises(UserError, match=said[broken]):
        [*fixes_in(tmp_path)]


def test_functions_that_one_patch_alone_changes_are_one_split_and_all_are_another():
    every = load_tasks(f"debian_cve:all?folder={TOY.parent}")
    assert [(task.metadata["function"], *task.metadata["cves"]) for task in every[::2]] == [
        ("get", "CVE-2024-0002"),
        ("last", "CVE-2024-0002"),
    ], "get is faulty still after its first fix"
    (one, _) = load_tasks(f"debian_cve:one?folder={TOY.parent}")
    assert one.oracle.cwes == ("CWE-125",) and one.metadata["created_at"] == "2023-10-14T22:45:54+02:00"
    assert one.workspace.files["function.c"].startswith("int get(const int *cells, int size, int at)\n{\n")
    assert load_tasks(f"debian_cve:one?folder={TOY.parent}&before=2024-01-01") == [one, _]


NVD = '{"vulnerabilities": [{"cve": {"id": "CVE-2024-0002", "weaknesses": [{"description": [{"value": "CWE-476"}]}]}}]}'
RECORD = """{"cveMetadata": {"cveId": "CVE-2024-0003"},
"containers": {"cna": {"problemTypes": [{"descriptions": [{"cweId": "CWE-20"}]}]}}}"""


def test_weaknesses_are_read_from_both_kinds_of_record(tmp_path):
    (tmp_path / "nvd.json").write_text(NVD)
    (tmp_path / "one.json").write_text(RECORD)
    (tmp_path / "more.json").write_text("[1, null]")
    assert weaknesses_in(tmp_path) == {"CVE-2024-0002": ("CWE-476",), "CVE-2024-0003": ("CWE-20",)}
    archived(tmp_path)
    assert {task.oracle.cwes for task in load_tasks(f"debian_cve:all?folder={tmp_path}")} == {("CWE-476",)}
    (tmp_path / "more.json").write_text("{")
    with pytest.raises(UserError, match=r"more.json is no JSON"):
        weaknesses_in(tmp_path)
