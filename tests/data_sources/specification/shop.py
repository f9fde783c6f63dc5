"""A small project with tests and doctests, for tests."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from slime_swe.data_sources.specification.tasks import project

CODE = '''\
"""A shop."""


def total(prices, discount=0):
    """The sum of the prices, less the discount, but never below zero."""
    return max(0, added(prices) - discount)


def added(prices):
    """Add all the prices up, one after the other."""
    result = 0
    for price in prices:
        result += price
    return result


def vague(x):
    """Do it."""
    return x * 7


def halves(number):
    """Half of a number that is even.

    >>> halves(10)
    5
    >>> half = halves
    >>> half(44)
    22
    """
    return number // 2


def shown(number):
    """Print the number, which is no value that could be compared.

    >>> shown(1)
    1
    """
    print(number)


class Till:
    """Counts what was paid at the till of a shop."""

    def __init__(self):
        """Begin with nothing paid at all."""
        self.paid = 0

    def pay(self, amount):
        """Add the amount to what was paid before it."""
        self.paid += amount
        return self.paid


def settings():
    """Runs when the module is imported, and stays as it is."""
    return {"currency": "EUR"}


SETTINGS = settings()
'''
TESTS = """\
import pytest
from shop.till import Till, added, total, vague


@pytest.mark.parametrize(("prices", "expected"), [([3, 4], 7), ([], 0)])
def test_added(prices, expected):
    assert added(prices) == expected


def test_total():
    assert total([30, 41], 20) == 51


def test_vague():
    assert vague(11) == 77


class TestTill:
    def test_pay(self):
        till = Till()
        till.pay(5)
        assert till.pay(18) == 23

    def test_start(self):
        assert Till().paid == 0
"""
FILES = {"shop/__init__.py": "", "shop/till.py": CODE, "tests/test_till.py": TESTS}
SHOP = project("shop", "1.0", FILES, "MIT")


def sdist(folder: Path) -> Path:
    """The project's source distribution, whose code is below `src`."""
    texts = {
        "PKG-INFO": "Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n",
        "tests/test_till.py": FILES["tests/test_till.py"],
    }
    texts |= {f"src/{path}": text for path, text in FILES.items() if path.startswith("shop/")}
    archive = folder / "shop-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as bundle:
        for path, text in texts.items():
            entry = tarfile.TarInfo(f"shop-1.0/{path}")
            entry.size = len(text.encode())
            bundle.addfile(entry, io.BytesIO(text.encode()))
    return archive
