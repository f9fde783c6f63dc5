"""A small package in two releases, as source distributions."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from slime_swe.data_sources.factory.packages import Package, read_package

CODE = '''\
"""A shop."""


def total(prices, discount=0):
    """The sum, less a discount that is never more than it."""
    result = 0
    for price in prices:
        result = result + price
    if discount > result:
        discount = result
    return result - discount


def cheapest(prices, most=None):
    found = None
    for name, price in prices.items():
        if most is not None and price > most:
            continue
        if found is None or price < prices[found]:
            found = name
    return found


class Basket:
    def __init__(self, most=3):
        self.most = most
        self.items = []

    def add(self, name, count=1):
        if len(self.items) + count > self.most:
            raise ValueError("full")
        for _ in range(count):
            self.items.append(name)
        return self

    def counts(self):
        found = {}
        for name in self.items:
            if name in found:
                found[name] = found[name] + 1
            else:
                found[name] = 1
        return found
'''
TESTS = """\
import pytest

from shop.core import Basket, cheapest, total


def test_total():
    assert total([10, 20]) == 30


def test_total_with_a_discount():
    assert total([10, 20], 5) == 25


def test_a_discount_is_never_more():
    assert total([10, 20], 50) == 0


@pytest.mark.parametrize("most, name", [(None, "pear"), (2, None), (9, "pear")])
def test_cheapest(most, name):
    assert cheapest({"apple": 5, "pear": 3}, most) == name


def test_basket():
    assert Basket().add("pear", 2).add("apple").counts() == {"pear": 2, "apple": 1}


def test_a_full_basket():
    with pytest.raises(ValueError):
        Basket().add("pear", 4)


@pytest.mark.skip
def test_never():
    assert False
"""
OLD_CODE = CODE.replace("    if discount > result:\n        discount = result\n", "")


def files(code: str = CODE, version: str = "1.1") -> dict[str, str]:
    return {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: Shop\nVersion: {version}\nLicense: MIT\n",
        "README.md": "# Shop\n",
        "docs/conf.py": "html = 1\n",
        "setup.py": "from setuptools import setup\n\nsetup()\n",
        "shop/__init__.py": "from shop.core import Basket, cheapest, total\n",
        "shop/core.py": code,
        "tests/__init__.py": "",
        "tests/prices.txt": "5\n",
        "tests/test_core.py": TESTS,
    }


def pack(folder: Path, content: dict[str, str | bytes], name: str = "shop-1.1") -> Path:
    path = folder / f"{name}.tar.gz"
    with tarfile.open(path, "w:gz") as bundle:
        for inside, text in content.items():
            data = text.encode() if isinstance(text, str) else text
            member = tarfile.TarInfo(f"{name}/{inside}")
            member.size = len(data)
            bundle.addfile(member, io.BytesIO(data))
    return path


def releases(folder: Path) -> tuple[Path, Path]:
    """The newer, and the older."""
    return pack(folder, files()), pack(folder, files(OLD_CODE, "1.0"), "shop-1.0")


def package(folder: Path) -> Package:
    return read_package(pack(folder, files()))
